//! The sequencer's decision: which of the waiting requests take effect, and what their group says.
//!
//! Conditions are evaluated against the newest **appended** state: an overlay of the group being formed, then the
//! memtables, then what the p-node found in the SSTables at a version since which no flush of the table was applied. Whether
//! a key is in the active memtable is asked of the memtable, never of its filter (truncation leaves bits behind).
//!
//! An update becomes a put of what it makes of that state: the log, and whoever replays it, knows puts only. A lifetime becomes the
//! time at which it ends.
//!
//! Whether a record has expired is judged by the newest appended tick (`common::expiry`), also of what a p-node found.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use sextant_common::configuration::Feature;
use sextant_common::expiry::{Tick, is_expired};
use sextant_common::ids::{Generation, Seq, TableId};
use sextant_common::key::{filter_prefix, prefix_hash};
use sextant_common::limits::{BATCH_BYTES_MAX, BATCH_OPS_MAX, REMEMBERED_BYTES_MAX};
use sextant_common::marks::{Kind, Marks};
use sextant_common::object::Header;
use sextant_common::operation::{
    Base, Change, Condition, Effect, Lifetime, Misfit, Present, RecordedOutcome, Returns, Tally, Told,
    Update, WriteOp, WriteRequest, change, check_kind, needs_record, needs_value,
};
use sextant_rules::mutant::{self, Mutant};

use super::Partition;
use super::rules::{self, Asks, Checked, InMemtable};
use super::sessions;
use crate::command::{Group, OPERATION_BYTES_MAX, REQUEST_BYTES_MAX, RequestResult, TableWrites, Write};
use crate::lease::ring::Run;
use crate::memtable::{Bookmark, Memtable, Seen, Version};

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
    /// The group is full: nothing was decided, and the request belongs into the next one. `bytes`: what it would write, if that is
    /// known, because it was the first.
    NotYet { bytes: usize },
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
    InActive(Known),
    InFrozen(Known),
    Nowhere,
}

/// What an operation knows of a version.
#[derive(Clone)]
struct Known {
    facts: InMemtable,
    /// If the operation needs it, and there is one.
    value: Option<Bytes>,
    marks: Marks,
    /// It would exist, but for the time.
    has_expired: bool,
}

/// What an operation meets, once it is known whether its condition holds.
struct Met {
    checked: Checked,
    /// If the operation needs it, and there is one.
    value: Option<Bytes>,
    /// Of the record that exists.
    marks: Marks,
    /// A record that has expired is in its place.
    has_expired: bool,
}

/// The times by which a group is formed.
#[derive(Clone, Copy)]
struct Times {
    /// The newest appended tick.
    tick: Tick,
    /// The leader's wall clock.
    wall_ms: u64,
}

struct Forming {
    times: Times,
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
    /// Hashes of prefixes that have an entry in this group.
    prefixes: HashSet<(TableId, u64)>,
    /// By ordinal.
    bookmarks: Vec<Option<Bookmark>>,
    /// Keys, values and kept answers, in bytes.
    bytes: usize,
    /// Of these, the values that updates have made.
    made_bytes: usize,
    bytes_max: usize,
    /// Of the entry, at most.
    entry_bytes: usize,
}

/// Values that one request may be answered with, in bytes: its answer is one message, and is in memory at once.
const TOLD_BYTES_MAX: usize = 12 * 1024 * 1024;

/// The longest entry that one request makes, in bytes.
pub const REQUEST_ENTRY_BYTES_MAX: usize =
    REQUEST_BYTES_MAX + BATCH_BYTES_MAX + BATCH_OPS_MAX * OPERATION_BYTES_MAX + REMEMBERED_BYTES_MAX;

/// A group that has something ends before the request with which its entry would be longer: requests that carry little may be
/// remembered with much.
pub const GROUP_ENTRY_BYTES_MAX: usize = 12 * 1024 * 1024;

/// A request's results as they are kept, and their bytes; none outside a session.
#[derive(Default)]
struct Kept {
    results: Option<Vec<RecordedOutcome>>,
    bytes: usize,
}

impl Kept {
    fn of(request: &WriteRequest, results: &[RecordedOutcome]) -> Self {
        let failed = results.iter().any(|r| r.failed);
        if request.id.session == 0 || failed && mutant::active(Mutant::FailedForgotten) {
            return Self::default();
        }
        // Of the rest it learns that they are forgotten. So no request pushes all others out of the duplicate table, and the log's entry
        // stays about as long as what was sent.
        let mut room = REMEMBERED_BYTES_MAX;
        let results = results.iter().map(|result| result.to_keep(&mut room)).collect();
        Self { results: Some(results), bytes: REMEMBERED_BYTES_MAX - room }
    }
}

/// What a request has used of what it may.
struct Allowance {
    /// For values that updates make: what is written in all is no more than a batch may write.
    made: usize,
    told: usize,
}

impl Allowance {
    fn of(request: &WriteRequest) -> Self {
        let carried: usize = request.ops.iter().map(|op| op.key.len() + op.effect.bytes()).sum();
        Self { made: BATCH_BYTES_MAX.saturating_sub(carried), told: TOLD_BYTES_MAX }
    }

    /// Whether there is room for what an operation makes.
    fn make(&mut self, effect: &Effect, value: Option<&Bytes>) -> Result<(), Misfit> {
        let made = match effect {
            // (A header was carried.)
            Effect::Update(update) if !matches!(update, Update::Header { .. }) => value.map_or(0, Bytes::len),
            _ => 0,
        };
        self.made = self.made.checked_sub(made).ok_or(Misfit::TooLong)?;
        Ok(())
    }

    /// Whether there is room for what an operation tells.
    fn tell(&mut self, told: Option<&Told>) -> Result<(), Misfit> {
        let left = self.told.checked_sub(told.map_or(0, Told::bytes));
        self.told = left.ok_or(Misfit::TooLong)?;
        Ok(())
    }
}

/// What takes effect of an operation, if its request does.
struct Effected {
    /// Of the operation in its request.
    op: usize,
    /// None: a tombstone.
    value: Option<Bytes>,
    marks: Marks,
    leaves_bit: bool,
    /// The active memtable does not have the key, so perhaps not its prefix.
    is_new: bool,
    is_insert: bool,
    bookmark: Option<Bookmark>,
}

impl Verdict {
    /// The answer that was given before.
    fn remembered(results: Vec<RecordedOutcome>) -> Self {
        Verdict::Unchanged { ok: !results.iter().any(|r| r.failed), results }
    }
}

impl Forming {
    /// Takes room in the entry for a request that writes something (so many bytes), or nothing, and is remembered so. Whether there is.
    fn admit(&mut self, request: &WriteRequest, writes: Option<usize>, kept: &Kept) -> bool {
        if writes.is_none() && kept.results.is_none() {
            return true;
        }
        let headers = REQUEST_BYTES_MAX + request.ops.len() * OPERATION_BYTES_MAX;
        let longer = self.entry_bytes + headers + writes.unwrap_or(0) + kept.bytes;
        let has_room = self.entry_bytes == 0 || longer <= GROUP_ENTRY_BYTES_MAX;
        if has_room {
            self.entry_bytes = longer;
        }
        has_room
    }

    /// Puts a request's results into the duplicate table, with this group.
    fn record(&mut self, request: &WriteRequest, Kept { results, bytes }: Kept) {
        let Some(results) = results else { return };
        self.by_number.insert((request.id.session, request.id.number), self.requests.len());
        self.bytes += bytes;
        self.requests.push(RequestResult { id: request.id, results });
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
        self.evaluate_up_to(usize::MAX, term, requests, now_ms)
    }

    /// The same, until updates would make the group longer than `bytes_max`, or its entry would be longer than
    /// [`GROUP_ENTRY_BYTES_MAX`]: the rest has to wait. (What is longer by itself makes a group alone. What carries its values is for the
    /// caller to bound.)
    pub fn evaluate_up_to<'r>(
        &self,
        bytes_max: usize,
        term: u64,
        requests: impl IntoIterator<Item = &'r WriteRequest>,
        now_ms: u64,
    ) -> Evaluated {
        let time_ms = self.time_ms().max(now_ms);
        let mut forming = Forming {
            times: Times { tick: self.tick, wall_ms: now_ms },
            term,
            first_seq: self.next_seq,
            ordinal: 0,
            tables: HashMap::new(),
            writes: Vec::new(),
            requests: Vec::new(),
            by_number: HashMap::new(),
            overlay: HashMap::new(),
            hashes: HashMap::new(),
            prefixes: HashSet::new(),
            bookmarks: Vec::new(),
            bytes: 0,
            made_bytes: 0,
            bytes_max,
            entry_bytes: 0,
        };
        let mut is_full = false;
        let mut decide = |request| {
            // Whoever waits, waits in line: what comes later may not overtake.
            if is_full {
                return Verdict::NotYet { bytes: 0 };
            }
            let verdict = self.evaluate_request(request, time_ms, &mut forming);
            is_full = matches!(verdict, Verdict::NotYet { .. });
            verdict
        };
        let verdicts = requests.into_iter().map(&mut decide).collect();
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
                sessions::Seen::Duplicate(_) if mutant::active(Mutant::NoDuplicateTable) => {
                    sessions::Seen::New
                }
                seen => seen,
            };
            match seen {
                sessions::Seen::New => {}
                sessions::Seen::Duplicate(results) => {
                    return Verdict::remembered(results.to_vec());
                }
                sessions::Seen::TooOld => return Verdict::Refused(Refusal::TooOld),
                sessions::Seen::UnknownSession => return Verdict::Refused(Refusal::UnknownSession),
            }
        }
        if let Some(op) = request.ops.iter().find(|op| self.manifest.table(op.table).is_none()) {
            let _ = op;
            return Verdict::Refused(Refusal::UnknownTable);
        }
        // First all conditions, each against the state before the batch plus the batch's earlier operations; then effects.
        let mut results = Vec::with_capacity(request.ops.len());
        let mut effects: Vec<Effected> = Vec::with_capacity(request.ops.len());
        let mut allowance = Allowance::of(request);
        let made_max = allowance.made;
        // What the request's earlier operations have done, and the first of them that did something to the key.
        let mut local: HashMap<(TableId, &Bytes), (Version, usize)> = HashMap::new();
        let has_more = request.ops.len() > 1;
        let mut failed = false;
        // Operations that met what the request itself had done, and the first that did something to their key.
        let mut saw_batch: Vec<(usize, usize)> = Vec::new();
        // What those met that did something: their results say what they made.
        let mut met_seqs: Vec<(usize, Seq)> = Vec::new();
        for (i, op) in request.ops.iter().enumerate() {
            let of_batch = local.get(&(op.table, &op.key));
            let (newest, bookmark) = match of_batch {
                Some((version, first)) => {
                    saw_batch.push((i, *first));
                    (Newest::InActive(seen(op, version, forming.times)), None)
                }
                None => self.newest(op, forming),
            };
            let times = forming.times;
            let Met { checked, value: before, marks, has_expired } = match self.check(op, &newest, times) {
                Ok(met) => met,
                Err(refusal) => return Verdict::Refused(refusal),
            };
            let (holds, existed, seq) = (checked.holds, checked.existed, Seq(checked.seq));
            let present = before.as_ref().map(|value| Present { value, kind: marks.kind() });
            if let Err(misfit) = check_kind(&op.effect, op.returns, present) {
                failed = true;
                results.push(misfits(misfit, existed, seq));
                continue;
            }
            if !holds {
                let told = before.filter(|_| op.returns == Returns::Before).map(Told::Value);
                let has_room = allowance.tell(told.as_ref());
                let told = match has_room {
                    Ok(()) => told,
                    // What it asked for would be missing.
                    Err(misfit) if op.skip_on_failure => {
                        failed = true;
                        results.push(misfits(misfit, existed, seq));
                        continue;
                    }
                    // (It fails in any case.)
                    Err(_) => None,
                };
                failed |= !op.skip_on_failure;
                let told = told.map(Box::new);
                results.push(RecordedOutcome {
                    applied: false,
                    existed,
                    failed: !op.skip_on_failure,
                    seq,
                    told,
                });
                continue;
            }
            let counted = i - op.effect.counted().min(i)..i;
            let done = |i: usize| {
                let result: &RecordedOutcome = &results[i];
                (&request.ops[i].key, &request.ops[i].effect, result.applied, result.existed)
            };
            let tally = Tally::of(counted.map(done));
            let made = change(&op.effect, op.returns, present, tally, allowance.made);
            let fits = |(change, told): (Change, Option<Told>)| {
                allowance.tell(told.as_ref()).map(|()| (change, told))
            };
            let (change, told) = match made.and_then(fits) {
                Ok((change, told)) => (change, told.map(Box::new)),
                Err(misfit) => {
                    failed = true;
                    results.push(misfits(misfit, existed, seq));
                    continue;
                }
            };
            let (value, kind) = match change {
                // What would be gone already is removed.
                Change::To(..) if op.lifetime.is_over(times.tick, times.wall_ms) => (None, Kind::Plain),
                Change::To(header, Kind::SortedSet) if !self.keeps_bounds(op) => {
                    (Some(Header::split_bounds(&header).0), Kind::SortedSet)
                }
                Change::To(value, kind) => (Some(value), kind),
                Change::Removed => (None, Kind::Plain),
                Change::None => {
                    results.push(RecordedOutcome { applied: true, existed, failed: false, seq, told });
                    continue;
                }
            };
            let ends_at = op.lifetime.ends_at(marks.expires_at(), times.tick, times.wall_ms);
            let marks = Marks::new(kind, ends_at.filter(|_| value.is_some()));
            // (A touched value, too, is written again, and a counted header.)
            if let Err(misfit) = allowance.make(&op.effect, value.as_ref()) {
                failed = true;
                results.push(misfits(misfit, existed, seq));
                continue;
            }
            let in_active = match &newest {
                Newest::InActive(_) => true,
                Newest::InFrozen(_) => mutant::active(Mutant::PutAsInsertOverFrozen),
                Newest::Nowhere => false,
            };
            // An INSERT (checked: the key does not exist) leaves no bit, unless the table wants one for every new key. What has expired
            // counts as present: so whoever looks for the key asks the memtables, and not the SSTables first.
            let is_insert = asks(&op.condition).is_insert() && !has_expired;
            let wants_bits = self.manifest.table(op.table).is_some_and(|t| t.options.filter_inserts);
            let leaves_bit = rules::leaves_bit(in_active, is_insert, wants_bits);
            let (met_seq, seq) = (seq, forming.first_seq + u64::from(forming.ordinal) + effects.len() as u64);
            results.push(RecordedOutcome { applied: true, existed, failed: false, seq: Seq(seq), told });
            if has_more {
                met_seqs.push((i, met_seq));
                let first = of_batch.map_or(i, |(_, first)| *first);
                local.insert((op.table, &op.key), (Version { seq, value: value.clone(), marks }, first));
            }
            let is_new = !matches!(newest, Newest::InActive(_));
            effects.push(Effected { op: i, value, marks, leaves_bit, is_new, is_insert, bookmark });
        }
        if failed {
            for result in &mut results {
                if std::mem::take(&mut result.applied) {
                    result.told = None;
                }
            }
            // What the batch itself would have written is nobody's to know: its versions will be others'. Each operation is told
            // what was there before the batch.
            met_seqs.into_iter().for_each(|(i, seq)| results[i].seq = seq);
            for (i, first) in saw_batch {
                (results[i].existed, results[i].seq) = (results[first].existed, results[first].seq);
                results[i].told.take_if(|told| !matches!(**told, Told::Misfit(_)));
            }
            let kept = Kept::of(request, &results);
            if !forming.admit(request, None, &kept) {
                return Verdict::NotYet { bytes: 0 };
            }
            forming.record(request, kept);
            return Verdict::Unchanged { ok: false, results };
        }
        let made_bytes = made_max - allowance.made;
        let written = |effect: &Effected| {
            request.ops[effect.op].key.len() + effect.value.as_ref().map_or(0, Bytes::len)
        };
        let bytes: usize = effects.iter().map(written).sum();
        let longer = forming.bytes > 0 && forming.bytes + bytes > forming.bytes_max;
        if longer && forming.made_bytes + made_bytes > 0 {
            return Verdict::NotYet { bytes };
        }
        let kept = Kept::of(request, &results);
        if !forming.admit(request, (!effects.is_empty()).then_some(bytes), &kept) {
            return Verdict::NotYet { bytes };
        }
        forming.record(request, kept);
        if effects.is_empty() {
            return Verdict::Unchanged { ok: true, results };
        }
        forming.made_bytes += made_bytes;
        forming.bytes += bytes;
        for effected in effects {
            forming.bookmarks.push(effected.bookmark);
            self.add(&request.ops[effected.op], effected, forming);
        }
        Verdict::Applied(results)
    }

    fn add(&self, op: &WriteOp, effected: Effected, forming: &mut Forming) {
        let Effected { value, marks, leaves_bit, is_new, is_insert, .. } = effected;
        let prefix = if is_new { self.prefix_of(op, is_insert, forming) } else { None };
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
        let write = Write { ordinal, key: op.key.clone(), value: value.clone(), marks, leaves_bit, prefix };
        if leaves_bit || prefix.is_some() {
            forming.hashes.entry(op.table).or_default().extend(write.bits());
        }
        forming.writes[at].writes.push(write);
        let version = Version { seq: forming.first_seq + u64::from(ordinal), value, marks };
        forming.overlay.entry(op.table).or_default().insert(op.key.clone(), version);
    }

    /// Whether the header of a sorted set that an operation leaves may have bounds: servers of older versions could not read them; and
    /// whoever writes elements as they were elsewhere, and only touches the header, does not say where they are.
    fn keeps_bounds(&self, op: &WriteOp) -> bool {
        let allows = self.configuration().is_some_and(|(newest, _)| newest.allows(Feature::Bounds));
        let only_touched = op.effect == Effect::Update(Update::Touch) && op.lifetime == Lifetime::Kept;
        allows && !only_touched
    }

    /// The hash of the prefix of a key that is new in the active memtable, if the write leaves an entry for it.
    fn prefix_of(&self, op: &WriteOp, is_insert: bool, forming: &mut Forming) -> Option<u64> {
        let option = self.manifest.table(op.table)?.options.filter_prefix;
        let prefix = filter_prefix(&op.key, option)?;
        let hash = prefix_hash(prefix);
        // One entry a group is enough.
        if forming.prefixes.contains(&(op.table, hash)) {
            return None;
        }
        if is_insert && mutant::active(Mutant::InsertLeavesNoPrefix) {
            return None;
        }
        let state = self.tables.get(&op.table);
        let counts = |memtable: &Memtable| memtable.has_prefix(prefix);
        let in_frozen = mutant::active(Mutant::FrozenPrefixCounts)
            && state.is_some_and(|table| table.frozen.iter().any(|f| counts(&f.memtable)));
        let in_active = in_frozen || state.is_some_and(|table| counts(&table.active));
        (rules::leaves_prefix(in_active) && forming.prefixes.insert((op.table, hash))).then_some(hash)
    }

    /// The newest state, and where the key is in the active memtable if it was looked for there.
    fn newest(&self, op: &WriteOp, forming: &Forming) -> (Newest, Option<Bookmark>) {
        let blind = mutant::active(Mutant::UpdateMissesGroup) && matches!(op.effect, Effect::Update(_));
        let here = forming.overlay.get(&op.table).filter(|_| !blind);
        if let Some(version) = here.and_then(|keys| keys.get(&op.key)) {
            return (Newest::InActive(seen(op, version, forming.times)), None);
        }
        let Some(table) = self.tables.get(&op.table) else { return (Newest::Nowhere, None) };
        // One search says all: whether it is there, whether it is a tombstone, what it is compared with, where it is written.
        let slot = table.active.seek(&op.key);
        if let Some(version) = slot.newest() {
            return (Newest::InActive(seen_there(op, &version, forming.times)), slot.bookmark());
        }
        let times = forming.times;
        let newest = |memtable: &Memtable| {
            memtable.seek(&op.key).newest().map(|version| seen_there(op, &version, times))
        };
        let frozen = table.frozen.iter().rev().find_map(|f| newest(&f.memtable));
        (frozen.map_or(Newest::Nowhere, Newest::InFrozen), slot.bookmark())
    }

    /// Whether the condition holds, what is known of the key, and its value if the operation needs it.
    fn check(&self, op: &WriteOp, newest: &Newest, times: Times) -> Result<Met, Refusal> {
        let known = match newest {
            Newest::InActive(known) | Newest::InFrozen(known) => Some(known),
            Newest::Nowhere => None,
        };
        let asks = match asks(&op.condition) {
            Asks::Nothing if needs_record(&op.effect, op.lifetime, op.returns) => Asks::Record,
            asks => asks,
        };
        let base = op.base.map(|base| match op.condition {
            Condition::Lifetime(_) => {
                Base { value_matches: lifetime_matches(op, base.marks.expires_at(), times), ..base }
            }
            // An object has no value.
            Condition::ValueEquals(_) if base.marks.kind() != Kind::Plain => {
                Base { value_matches: false, ..base }
            }
            _ => base,
        });
        let judged = base.map(|base| base.as_of(times.tick));
        let checked =
            rules::check(asks, known.map(|known| known.facts), judged, self.last_flush_version(op.table))?;
        if let Some(Known { value, marks, has_expired, .. }) = known {
            return Ok(Met { checked, value: value.clone(), marks: *marks, has_expired: *has_expired });
        }
        let needed = needs_value(&op.effect, op.returns);
        if needed && checked.existed && op.base_value.is_none() {
            return Err(Refusal::NeedsBase);
        }
        Ok(Met {
            checked,
            value: op.base_value.clone().filter(|_| needed && checked.existed),
            marks: judged.filter(|_| checked.existed).map_or(Marks::NONE, |base| base.marks),
            has_expired: base.is_some_and(|base| base.has_expired(times.tick)),
        })
    }
}

/// Of an operation that does not go with what it meets.
fn misfits(misfit: Misfit, existed: bool, seq: Seq) -> RecordedOutcome {
    let told = Some(Box::new(Told::Misfit(misfit)));
    RecordedOutcome { applied: false, existed, failed: true, seq, told }
}

/// What an operation sees of a version of the group.
fn seen(op: &WriteOp, version: &Version, times: Times) -> Known {
    let value = version.value.as_ref();
    known(op, version.seq, value.map(|v| &v[..]), version.marks, times, || value.cloned())
}

/// The same of one that is in a memtable.
fn seen_there(op: &WriteOp, version: &Seen<'_>, times: Times) -> Known {
    known(op, version.seq(), version.value(), version.marks(), times, || version.to_version().value)
}

fn known(
    op: &WriteOp,
    seq: u64,
    value: Option<&[u8]>,
    marks: Marks,
    times: Times,
    copied: impl FnOnce() -> Option<Bytes>,
) -> Known {
    let has_expired = value.is_some() && is_expired(marks.expires_at(), times.tick);
    let value = value.filter(|_| !has_expired);
    let value_matches = match &op.condition {
        Condition::ValueEquals(expected) => marks.kind() == Kind::Plain && value == Some(&expected[..]),
        Condition::Lifetime(_) => lifetime_matches(op, marks.expires_at(), times),
        _ => false,
    };
    let needed = value.is_some() && needs_value(&op.effect, op.returns);
    Known {
        facts: InMemtable { exists: value.is_some(), seq, value_matches },
        value: if needed { copied() } else { None },
        marks: if value.is_some() { marks } else { Marks::NONE },
        has_expired,
    }
}

/// Whether a record that exists has a lifetime as the condition wants it.
fn lifetime_matches(op: &WriteOp, present: Option<Tick>, times: Times) -> bool {
    let new = op.lifetime.ends_at(present, times.tick, times.wall_ms);
    matches!(op.condition, Condition::Lifetime(test) if test.holds(present, new))
}

fn asks(condition: &Condition) -> Asks {
    match condition {
        Condition::None => Asks::Nothing,
        Condition::Absent => Asks::Absent,
        Condition::Present => Asks::Present,
        Condition::ValueEquals(_) | Condition::Lifetime(_) => Asks::Value,
        Condition::SeqEquals(seq) => Asks::Seq(seq.0),
    }
}
