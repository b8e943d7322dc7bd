//! The protocol's rules as they stand on their own: facts in, verdict out, no state.
//!
//! The partition gathers the facts and asks; the exhaustive model of the protocol (`tests/model`) asks the very same
//! functions, so that the two cannot drift apart.

use sextant_common::ids::{Generation, ManifestVersion};
use sextant_common::operation::Base;
use sextant_rules::mutant::{self, Mutant};

/// Why nothing is decided about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    UnknownTable,
    /// A flush of the table was applied after the version in `base`: the check is void in both directions.
    StaleManifest,
    UnknownSession,
    TooOld,
    /// A condition needs `base`, and no memtable has the key.
    NeedsBase,
}

/// What a [`Condition`](sextant_common::operation::Condition) asks of its key, without the bytes that it may carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    Nothing,
    /// Nothing of it, but what it is: to change it, or to answer with it.
    Record,
    /// Makes the operation an INSERT.
    Absent,
    Present,
    /// A value, or a lifetime: whoever compares it gives the outcome with the facts.
    Value,
    /// 0: the key is absent.
    Seq(u64),
}

impl Asks {
    /// An INSERT is a write of a key that provably does not exist.
    pub fn is_insert(self) -> bool {
        matches!(self, Asks::Absent | Asks::Seq(0))
    }
}

/// The newest appended version of a key, if a memtable has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InMemtable {
    /// It is no tombstone.
    pub exists: bool,
    pub seq: u64,
    pub value_matches: bool,
}

/// A condition's outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked {
    pub holds: bool,
    /// Whether the key existed, as far as known.
    pub existed: bool,
    /// The seq that was seen; 0: none.
    pub seq: u64,
}

/// Whether a condition holds against the newest appended state. `base`: what the p-node found in the SSTables; it counts only
/// where no memtable has the key, and only if no flush of the table (the newest made version `last_flush`) came after it:
/// otherwise it is void, whatever it says.
#[inline]
pub fn check(
    asks: Asks,
    newest: Option<InMemtable>,
    base: Option<Base>,
    last_flush: ManifestVersion,
) -> Result<Checked, Refusal> {
    if asks == Asks::Nothing {
        return Ok(match newest {
            Some(version) => Checked { holds: true, existed: version.exists, seq: version.seq },
            None => Checked { holds: true, existed: false, seq: 0 },
        });
    }
    let known = match newest {
        Some(version) => version,
        None => {
            let base = base.ok_or(Refusal::NeedsBase)?;
            if base.manifest < last_flush && !mutant::active(Mutant::InsertNotVoided) {
                return Err(Refusal::StaleManifest);
            }
            InMemtable { exists: base.present, seq: base.seq.0, value_matches: base.value_matches }
        }
    };
    let holds = match asks {
        Asks::Nothing | Asks::Record => true,
        Asks::Absent | Asks::Seq(0) => !known.exists,
        Asks::Present => known.exists,
        Asks::Value => known.exists && known.value_matches,
        Asks::Seq(seq) => known.exists && known.seq == seq,
    };
    Ok(Checked { holds, existed: known.exists, seq: if known.exists { known.seq } else { 0 } })
}

/// Whether a write leaves a bf-log entry. `in_active`: the active memtable has the key (the memtable, not its filter: a
/// truncation leaves bits behind). `wants_bits`: the table's option `filter_inserts`.
#[inline]
pub fn leaves_bit(in_active: bool, is_insert: bool, wants_bits: bool) -> bool {
    !in_active && (!is_insert || wants_bits)
}

/// Whether a write leaves a bf-log entry for the prefix of its key, in a table whose filters know prefixes: the first of each memtable
/// does, whatever it is. `in_active`: the active memtable has a key that begins so (the memtable, not its filter).
#[inline]
pub fn leaves_prefix(in_active: bool) -> bool {
    !in_active
}

/// Whether an entry's generation is that of the memtable which it meets. If not, it was evaluated against another state of
/// the log, and every replica ignores it.
#[inline]
pub fn fits(evaluated: Generation, current: Generation) -> bool {
    evaluated == current
}

/// Whether a memtable read is stale: a memtable that the SSTables of version `searched` do not hold is gone (the newest one
/// that is gone was flushed at `dropped`). It does not matter whether it was frozen at `searched` already.
#[inline]
pub fn is_stale(searched: ManifestVersion, dropped: ManifestVersion) -> bool {
    searched < dropped && !mutant::active(Mutant::NoStaleManifest)
}

/// Whether a reader that searched version `searched` needs a memtable whose flush made version `flushed_at`.
#[inline]
pub fn needs_flushed(searched: ManifestVersion, flushed_at: ManifestVersion) -> bool {
    flushed_at > searched
}

/// Whether a frozen memtable may be flushed: everything up to its freeze is published. (A flag before that would let one
/// reader see a value through the new SSTable that another does not see yet.)
#[inline]
pub fn may_flush(freeze_index: u64, published_index: u64) -> bool {
    freeze_index <= published_index || mutant::active(Mutant::FlushBeforePublished)
}
