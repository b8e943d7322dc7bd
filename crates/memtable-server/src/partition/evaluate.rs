//! The sequencer's decision: which of the waiting requests take effect, and what their group says.
//!
//! Conditions are evaluated against the newest **appended** state: an overlay of the group being formed, then the
//! memtables, then what the p-node found in the SSTables at a version since which no flush of the table was applied. Whether
//! a key is in the active memtable is asked of the memtable, never of its filter (truncation leaves bits behind).

use std::collections::HashMap;

use bytes::Bytes;
use sextant_common::ids::{Generation, Seq, TableId};
use sextant_common::key::filter_hash;
use sextant_common::operation::{Condition, RecordedOutcome, WriteOp, WriteRequest};
use sextant_rules::mutant::{self, Mutant};

use super::Partition;
use super::rules::{self, Asks, InMemtable};
use super::sessions::Seen;
use crate::command::{Group, RequestResult, TableWrites, Write};
use crate::lease::ring::Run;
use crate::memtable::{Bookmark, Memtable, Version};

pub use super::rules::Refusal;

/// What is to be answered to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is part of the group: answer when the group is published.
    Applied(Vec<RecordedOutcome>),
    /// It changes nothing: answer when everything that it saw is published, and, if it belongs to a session, when the group
    /// that records the answer is. `ok`: no condition failed (a duplicate, or only skipped operations).
    Unchanged { ok: bool, results: Vec<RecordedOutcome> },
    /// Nothing was decided: answer at once.
    Refused(Refusal),
}

/// A group, and what the requests are to be answered.
#[derive(Debug, Default)]
pub struct Evaluated {
    /// None if nothing took effect and nothing is to be remembered. A group without writes only records what requests of
    /// sessions were answered: a delayed copy of one must find its answer, under any leader, and not take effect after all.
    pub group: Option<Group>,
    /// The bf-log entries that must be out before the group is proposed.
    pub runs: Vec<Run>,
    /// One for each request, in their order.
    pub verdicts: Vec<Verdict>,
    /// Where the keys of the group's writes were found: see [`Partition::expect`].
    pub bookmarks: Vec<Option<Bookmark>>,
}

/// The newest appended state of a key, as far as a memtable has it.
enum Newest {
    InActive(InMemtable),
    InFrozen(InMemtable),
    Nowhere,
}

struct Forming {
    term: u64,
    first_seq: u64,
    ordinal: u32,
    tables: HashMap<TableId, usize>,
    writes: Vec<TableWrites>,
    requests: Vec<RequestResult>,
    /// Index into `requests` by (session, number): a retry may stand in the same group as its original.
    by_number: HashMap<(u64, u64), usize>,
    overlay: HashMap<TableId, HashMap<Bytes, Version>>,
    hashes: HashMap<TableId, Vec<u64>>,
    /// By ordinal.
    bookmarks: Vec<Option<Bookmark>>,
}

/// What takes effect of an operation, if its request does.
struct Effect {
    /// Of the operation in its request.
    op: usize,
    leaves_bit: bool,
    bookmark: Option<Bookmark>,
}

impl Verdict {
    /// The answer that was given before.
    fn remembered(results: Vec<RecordedOutcome>) -> Self {
        Verdict::Unchanged { ok: !results.iter().any(|r| r.failed), results }
    }
}

impl Forming {
    /// Puts a request's results into the duplicate table, with this group.
    fn record(&mut self, request: &WriteRequest, results: &[RecordedOutcome]) {
        let failed = results.iter().any(|r| r.failed);
        if request.id.session == 0 || failed && mutant::active(Mutant::FailedForgotten) {
            return;
        }
        self.by_number.insert((request.id.session, request.id.number), self.requests.len());
        self.requests.push(RequestResult { id: request.id, results: results.to_vec() });
    }
}

impl Partition {
    /// Decides on requests in their order. `now_ms`: the leader's wall clock.
    pub fn evaluate<'r>(
        &self,
        term: u64,
        requests: impl IntoIterator<Item = &'r WriteRequest>,
        now_ms: u64,
    ) -> Evaluated {
        let time_ms = self.time_ms().max(now_ms);
        let mut forming = Forming {
            term,
            first_seq: self.next_seq,
            ordinal: 0,
            tables: HashMap::new(),
            writes: Vec::new(),
            requests: Vec::new(),
            by_number: HashMap::new(),
            overlay: HashMap::new(),
            hashes: HashMap::new(),
            bookmarks: Vec::new(),
        };
        let verdicts =
            requests.into_iter().map(|r| self.evaluate_request(r, time_ms, &mut forming)).collect();
        let nothing = forming.requests.is_empty() || mutant::active(Mutant::FailedForgotten);
        if forming.ordinal == 0 && nothing {
            return Evaluated { verdicts, ..Evaluated::default() };
        }
        let mut tables: Vec<_> = forming.hashes.into_iter().collect();
        tables.sort_by_key(|(t, _)| *t);
        let runs = tables
            .into_iter()
            .map(|(table, hashes)| Run::Bits { table, generation: self.generation(table), hashes })
            .collect();
        let group = Group {
            term: forming.term,
            first_seq: forming.first_seq,
            time_ms,
            tables: forming.writes,
            requests: forming.requests,
        };
        Evaluated { group: Some(group), runs, verdicts, bookmarks: forming.bookmarks }
    }

    fn generation(&self, table: TableId) -> Generation {
        self.tables.get(&table).map_or(Generation(1), |t| t.generation())
    }

    fn evaluate_request(&self, request: &WriteRequest, time_ms: u64, forming: &mut Forming) -> Verdict {
        if request.id.session != 0 {
            if let Some(at) = forming.by_number.get(&(request.id.session, request.id.number)) {
                return Verdict::remembered(forming.requests[*at].results.clone());
            }
            let seen = match self.sessions.seen(request.id, time_ms) {
                Seen::Duplicate(_) if mutant::active(Mutant::NoDuplicateTable) => Seen::New,
                seen => seen,
            };
            match seen {
                Seen::New => {}
                Seen::Duplicate(results) => {
                    return Verdict::remembered(results.to_vec());
                }
                Seen::TooOld => return Verdict::Refused(Refusal::TooOld),
                Seen::UnknownSession => return Verdict::Refused(Refusal::UnknownSession),
            }
        }
        if let Some(op) = request.ops.iter().find(|op| self.manifest.table(op.table).is_none()) {
            let _ = op;
            return Verdict::Refused(Refusal::UnknownTable);
        }
        // First all conditions, each against the state before the batch plus the batch's earlier operations; then effects.
        let mut results = Vec::with_capacity(request.ops.len());
        let mut effects: Vec<Effect> = Vec::with_capacity(request.ops.len());
        // What the request's earlier operations have done.
        let mut local: HashMap<(TableId, &Bytes), Version> = HashMap::new();
        let has_more = request.ops.len() > 1;
        let mut failed = false;
        for (i, op) in request.ops.iter().enumerate() {
            let (newest, bookmark) = match local.get(&(op.table, &op.key)) {
                Some(version) => (Newest::InActive(seen(op, version.seq, version.value.as_deref())), None),
                None => self.newest(op, forming),
            };
            let (holds, existed, seq) = match self.check(op, &newest) {
                Ok(outcome) => outcome,
                Err(refusal) => return Verdict::Refused(refusal),
            };
            if !holds {
                failed |= !op.skip_on_failure;
                results.push(RecordedOutcome { applied: false, existed, failed: !op.skip_on_failure, seq });
                continue;
            }
            let in_active = match &newest {
                Newest::InActive(_) => true,
                Newest::InFrozen(_) => mutant::active(Mutant::PutAsInsertOverFrozen),
                Newest::Nowhere => false,
            };
            // An INSERT (checked: the key does not exist) leaves no bit, unless the table wants one for every new key.
            let is_insert = asks(&op.condition).is_insert();
            let wants_bits = self.manifest.table(op.table).is_some_and(|t| t.options.filter_inserts);
            let leaves_bit = rules::leaves_bit(in_active, is_insert, wants_bits);
            let seq = forming.first_seq + u64::from(forming.ordinal) + effects.len() as u64;
            results.push(RecordedOutcome { applied: true, existed, failed: false, seq: Seq(seq) });
            effects.push(Effect { op: i, leaves_bit, bookmark });
            if has_more {
                local.insert((op.table, &op.key), Version { seq, value: op.effect.value().cloned() });
            }
        }
        if failed {
            for result in &mut results {
                result.applied = false;
            }
            forming.record(request, &results);
            return Verdict::Unchanged { ok: false, results };
        }
        forming.record(request, &results);
        if effects.is_empty() {
            return Verdict::Unchanged { ok: true, results };
        }
        for Effect { op, leaves_bit, bookmark } in effects {
            self.add(&request.ops[op], leaves_bit, forming);
            forming.bookmarks.push(bookmark);
        }
        Verdict::Applied(results)
    }

    fn add(&self, op: &WriteOp, leaves_bit: bool, forming: &mut Forming) {
        let at = *forming.tables.entry(op.table).or_insert_with(|| {
            forming.writes.push(TableWrites {
                table: op.table,
                generation: self.generation(op.table),
                writes: Vec::new(),
            });
            forming.writes.len() - 1
        });
        let ordinal = forming.ordinal;
        forming.ordinal += 1;
        let value = op.effect.value();
        let write = Write { ordinal, key: op.key.clone(), value: value.cloned(), leaves_bit };
        forming.writes[at].writes.push(write);
        if leaves_bit {
            forming.hashes.entry(op.table).or_default().push(filter_hash(&op.key));
        }
        let version = Version { seq: forming.first_seq + u64::from(ordinal), value: value.cloned() };
        forming.overlay.entry(op.table).or_default().insert(op.key.clone(), version);
    }

    /// The newest state, and where the key is in the active memtable if it was looked for there.
    fn newest(&self, op: &WriteOp, forming: &Forming) -> (Newest, Option<Bookmark>) {
        let here = forming.overlay.get(&op.table);
        if let Some(version) = here.and_then(|keys| keys.get(&op.key)) {
            return (Newest::InActive(seen(op, version.seq, version.value.as_deref())), None);
        }
        let Some(table) = self.tables.get(&op.table) else { return (Newest::Nowhere, None) };
        // One search says all: whether it is there, whether it is a tombstone, what it is compared with, where it is written.
        let slot = table.active.seek(&op.key);
        if let Some(version) = slot.newest() {
            return (Newest::InActive(seen(op, version.seq(), version.value())), slot.bookmark());
        }
        let newest = |memtable: &Memtable| {
            memtable.seek(&op.key).newest().map(|version| seen(op, version.seq(), version.value()))
        };
        let frozen = table.frozen.iter().rev().find_map(|f| newest(&f.memtable));
        (frozen.map_or(Newest::Nowhere, Newest::InFrozen), slot.bookmark())
    }

    /// Whether the condition holds, whether the key existed (as far as known), and the seq that was seen.
    fn check(&self, op: &WriteOp, newest: &Newest) -> Result<(bool, bool, Seq), Refusal> {
        let newest = match newest {
            Newest::InActive(version) | Newest::InFrozen(version) => Some(*version),
            Newest::Nowhere => None,
        };
        let checked = rules::check(asks(&op.condition), newest, op.base, self.last_flush_version(op.table))?;
        Ok((checked.holds, checked.existed, Seq(checked.seq)))
    }
}

/// What an operation sees of a version.
fn seen(op: &WriteOp, seq: u64, value: Option<&[u8]>) -> InMemtable {
    let value_matches = match &op.condition {
        Condition::ValueEquals(expected) => value == Some(&expected[..]),
        _ => false,
    };
    InMemtable { exists: value.is_some(), seq, value_matches }
}

fn asks(condition: &Condition) -> Asks {
    match condition {
        Condition::None => Asks::Nothing,
        Condition::Absent => Asks::Absent,
        Condition::Present => Asks::Present,
        Condition::ValueEquals(_) => Asks::Value,
        Condition::SeqEquals(seq) => Asks::Seq(seq.0),
    }
}
