//! What clients ask of records, and what becomes of it: one vocabulary for clients, p-nodes, memtable servers and
//! tools.
//!
//! Owns the words, and what makes sense of a single operation by itself: an [`Operation`] has an [`Effect`] (perhaps
//! an [`Update`] of what is there) and a [`Condition`]; a [`RequestId`] makes a repeated one take effect once; [`OpOutcome`] and [`WriteOutcome`] are what is
//! answered. As the leader of its partition gets it, an operation is a [`WriteOp`] with a [`Base`]. A read has a
//! [`ReadMode`] and finds a [`Record`]. Whoever waits does so in a [`Lane`]. Does not own how conditions are decided (memtable-server `partition/rules.rs`),
//! nor how anything travels (`proto`).

mod condition;
mod lane;
mod lifetime;
mod outcome;
mod read_mode;
mod request;
mod update;

use std::collections::HashMap;

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::expiry::Tick;
use crate::ids::Seq;
use crate::limits::{VALUE_BYTES_MAX, check_key, check_value};
use crate::marks::Kind;

pub use condition::{Base, Condition, Expected};
pub use lane::Lane;
pub use lifetime::{Lifetime, LifetimeTest};
pub use outcome::{
    OpOutcome, Record, RecordedOutcome, TOLD_BYTES_MAX, WEIGHT_BYTES, WriteOutcome, WriteStatus,
};
pub use read_mode::ReadMode;
pub use request::{RequestId, WriteOp, WriteRequest};
pub use update::{
    Change, Misfit, Present, Returns, Tally, Told, Update, change, check_kind, parse_decimal, parse_integer,
};

/// What a write does to the record of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    Put(Bytes),
    Delete,
    /// Depends on the value that is there.
    Update(Update),
    /// Nothing is written: it is there for its condition, or for what it tells.
    Check,
}

impl Effect {
    /// The value that is put.
    pub fn value(&self) -> Option<&Bytes> {
        match self {
            Effect::Put(value) => Some(value),
            Effect::Delete | Effect::Update(_) | Effect::Check => None,
        }
    }

    /// How many of the operations before it in its batch count for it.
    pub fn counted(&self) -> usize {
        if let Effect::Update(Update::Count { counted, .. }) = self { *counted as usize } else { 0 }
    }

    /// Of the value that it brings, in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Effect::Put(value) => value.len(),
            Effect::Delete | Effect::Check => 0,
            Effect::Update(update) => update.bytes(),
        }
    }
}

/// A write that asks nothing, as one of many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    pub key: Bytes,
    pub value: Bytes,
    /// Not [`Lifetime::Kept`]: that asks what is there.
    pub lifetime: Lifetime,
}

/// One write of a batch, as a client asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// "" or "default": the default table. A batch may write to several tables.
    pub table: String,
    pub key: Bytes,
    pub effect: Effect,
    /// Of the record that it leaves.
    pub lifetime: Lifetime,
    pub condition: Condition,
    /// A failed condition skips this write only; otherwise it fails the whole batch.
    pub skip_on_failure: bool,
    pub returns: Returns,
}

impl Operation {
    pub fn new(table: impl Into<String>, key: impl Into<Bytes>, effect: Effect) -> Self {
        Self {
            table: table.into(),
            key: key.into(),
            lifetime: Lifetime::usual(&effect),
            effect,
            condition: Condition::None,
            skip_on_failure: false,
            returns: Returns::Nothing,
        }
    }

    /// A change that depends on the value that is there.
    pub fn update(table: impl Into<String>, key: impl Into<Bytes>, update: Update) -> Self {
        Self::new(table, key, Effect::Update(update))
    }

    /// A blind put.
    pub fn put(table: impl Into<String>, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Self::new(table, key, Effect::Put(value.into()))
    }

    /// Puts only if the key does not exist.
    pub fn insert(table: impl Into<String>, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Self::put(table, key, value).only_if(Condition::Absent)
    }

    /// A blind delete.
    pub fn delete(table: impl Into<String>, key: impl Into<Bytes>) -> Self {
        Self::new(table, key, Effect::Delete)
    }

    /// Deletes and reports whether the key existed: skipped if it does not.
    pub fn delete_checked(table: impl Into<String>, key: impl Into<Bytes>) -> Self {
        Self::delete(table, key).only_if(Condition::Present).skip_on_failure()
    }

    /// Changes nothing. With a condition, it makes a batch depend on a record that the batch does not write.
    pub fn check_only(table: impl Into<String>, key: impl Into<Bytes>) -> Self {
        Self::new(table, key, Effect::Check)
    }

    pub fn only_if(mut self, condition: Condition) -> Self {
        self.condition = condition;
        self
    }

    pub fn skip_on_failure(mut self) -> Self {
        self.skip_on_failure = true;
        self
    }

    /// How long the record that it leaves is there.
    pub fn lasting(mut self, lifetime: Lifetime) -> Self {
        self.lifetime = lifetime;
        self
    }

    pub fn returning(mut self, returns: Returns) -> Self {
        self.returns = returns;
        self
    }

    /// Whether it asks nothing of the record that is there.
    pub fn is_blind(&self) -> bool {
        self.condition == Condition::None && !needs_record(&self.effect, self.lifetime, self.returns)
    }

    /// What becomes of a record if this is all that happens, when what it leaves expires, and what is answered: a whole database, for
    /// tests and drafts. `before`: the record, unless it has expired; `tally`: of the operations that this one counts.
    pub fn execute(
        &self,
        before: Option<&Record>,
        tally: Tally,
        now: Tick,
    ) -> (Change, Option<Tick>, OpOutcome) {
        let present = before.map(|record| Present { value: &record.value, kind: record.kind });
        let (value, expiry) = (
            before.filter(|record| record.kind == Kind::Plain).map(|record| &record.value),
            before.and_then(|record| record.expires_at),
        );
        let expires_at = self.lifetime.ends_at(expiry, now, now.0);
        let holds = match &self.condition {
            Condition::None => true,
            Condition::Absent => before.is_none(),
            Condition::Present => before.is_some(),
            Condition::ValueEquals(expected) => value == Some(expected),
            Condition::SeqEquals(seq) => before.map_or(Seq(0), |record| record.seq) == *seq,
            Condition::Lifetime(test) => before.is_some() && test.holds(expiry, expires_at),
        };
        let seq = before.map_or(Seq(0), |record| record.seq);
        let outcome = OpOutcome { existed: before.is_some(), seq, ..OpOutcome::default() };
        if let (false, Err(misfit)) = (holds, check_kind(&self.effect, self.returns, present)) {
            return (Change::None, None, OpOutcome { told: Told::Misfit(misfit), ..outcome });
        }
        if !holds {
            let told = value.filter(|_| self.returns == Returns::Before).cloned();
            return (
                Change::None,
                None,
                OpOutcome { told: told.map_or(Told::Nothing, Told::Value), ..outcome },
            );
        }
        match change(&self.effect, self.returns, present, tally, VALUE_BYTES_MAX) {
            Ok((change, told)) => {
                let outcome = OpOutcome { applied: true, told: told.unwrap_or_default(), ..outcome };
                match change {
                    Change::To(..) if self.lifetime.is_over(now, now.0) => (Change::Removed, None, outcome),
                    change => (change, expires_at, outcome),
                }
            }
            Err(misfit) => (Change::None, None, OpOutcome { told: Told::Misfit(misfit), ..outcome }),
        }
    }

    /// The same for a batch, each operation on what those before it have left: what becomes of each record, all of it or nothing. (The
    /// versions that it writes have no number yet: [`Seq(u64::MAX)`](Seq).)
    pub fn execute_batch(
        ops: &[Operation],
        before: impl Fn(&Operation) -> Option<Record>,
        now: Tick,
    ) -> (Vec<(Change, Option<Tick>)>, WriteOutcome) {
        let (mut changes, mut results) = (Vec::with_capacity(ops.len()), Vec::with_capacity(ops.len()));
        let mut left: HashMap<(&str, &[u8]), Option<Record>> = HashMap::new();
        for (at, op) in ops.iter().enumerate() {
            let place = (&op.table[..], &op.key[..]);
            let met = left.get(&place).cloned().unwrap_or_else(|| before(op));
            let counted = at - op.counted().min(at)..at;
            let done = |at: usize| {
                let result: &OpOutcome = &results[at];
                (&ops[at].key, &ops[at].effect, result.applied, result.existed)
            };
            let tally = Tally::of(counted.map(done));
            let (change, expires_at, outcome) = op.execute(met.as_ref(), tally, now);
            if ops.len() > 1 {
                match &change {
                    Change::To(value, kind) => {
                        let record =
                            Record { value: value.clone(), seq: Seq(u64::MAX), expires_at, kind: *kind };
                        left.insert(place, Some(record));
                    }
                    Change::Removed => drop(left.insert(place, None)),
                    Change::None => {}
                }
            }
            changes.push((change, expires_at));
            results.push(outcome);
        }
        let is_good = |(op, result): (&Operation, &OpOutcome)| {
            result.applied || op.skip_on_failure && !matches!(result.told, Told::Misfit(_))
        };
        let applied = ops.iter().zip(&results).all(is_good);
        if !applied {
            changes.fill((Change::None, None));
            for result in &mut results {
                if std::mem::take(&mut result.applied) {
                    result.told = Told::Nothing;
                }
            }
            // What was there before the batch is told, and nothing of what it would have left.
            for (op, result) in ops
                .iter()
                .zip(&mut results)
                .filter(|(op, _)| left.contains_key(&(&op.table[..], &op.key[..])))
            {
                let there = before(op);
                (result.existed, result.seq) = (there.is_some(), there.map_or(Seq(0), |record| record.seq));
            }
        }
        (changes, WriteOutcome { applied, results })
    }

    /// How many of the operations before it count for it.
    pub fn counted(&self) -> usize {
        self.effect.counted()
    }

    /// What it writes: key and value, in bytes.
    pub fn written_bytes(&self) -> usize {
        self.key.len() + self.effect.bytes()
    }

    /// What it carries: the value that it expects too, in bytes.
    pub fn carried_bytes(&self) -> usize {
        self.written_bytes() + self.condition.bytes()
    }

    /// Whether its key and values are within the [limits](crate::limits).
    pub fn check(&self) -> Result<()> {
        check_key(&self.key)?;
        if let Effect::Update(update) = &self.effect
            && update.least_bytes() > VALUE_BYTES_MAX
        {
            return Err(Error::invalid(Misfit::TooLong.message()));
        }
        [self.effect.value(), self.condition.value()].into_iter().flatten().try_for_each(|v| check_value(v))
    }
}

/// Whether it takes the value that is there, not only whether there is one: to change it, or to answer with it.
pub fn needs_value(effect: &Effect, returns: Returns) -> bool {
    matches!(effect, Effect::Update(_)) || returns == Returns::Before
}

/// Whether it takes something of the record that is there: its value, or how long it is there.
pub fn needs_record(effect: &Effect, lifetime: Lifetime, returns: Returns) -> bool {
    needs_value(effect, returns) || lifetime == Lifetime::Kept && *effect != Effect::Delete
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use crate::marks::Marks;

    #[test]
    fn an_operation_knows_what_it_writes_and_what_it_carries() {
        let expects = Operation::put("", "k", "new").only_if(Condition::ValueEquals("before".into()));
        assert_eq!((expects.written_bytes(), expects.carried_bytes()), (4, 10));
        let checked = Operation::delete_checked("t", "key");
        assert_eq!((checked.written_bytes(), checked.carried_bytes()), (3, 3));
        assert!(checked.skip_on_failure && checked.effect.value().is_none());
    }

    #[test]
    fn a_batch_is_executed_whole_or_not_at_all() {
        let here =
            || Record { value: "v".into(), seq: crate::ids::Seq(1), expires_at: None, kind: Kind::Plain };
        let before = |op: &Operation| (op.key == "here").then(here);
        let gone = Operation::delete_checked("", "gone");
        let ops = [Operation::insert("", "new", "w"), gone.clone(), Operation::delete("", "here")];
        let (changes, outcome) = Operation::execute_batch(&ops, before, Tick(0));
        let changes: Vec<_> = changes.into_iter().map(|(change, _)| change).collect();
        assert_eq!(changes, [Change::To("w".into(), Kind::Plain), Change::None, Change::Removed]);
        let applied: Vec<_> = outcome.results.iter().map(|result| result.applied).collect();
        assert_eq!((outcome.applied, applied), (true, vec![true, false, true]));
        let ops = [Operation::insert("", "new", "w"), gone, Operation::insert("", "here", "w")];
        let (changes, outcome) = Operation::execute_batch(&ops, before, Tick(0));
        assert!(changes.iter().all(|(change, _)| *change == Change::None));
        assert!(!outcome.applied && outcome.results.iter().all(|result| !result.applied));
    }

    #[test]
    fn the_operations_of_a_batch_meet_what_those_before_them_have_left() {
        let set = |key: &'static str, value: &'static str| Operation::put("", key, value);
        let there = |key: &'static str| Operation::update("", key, Update::Touch).only_if(Condition::Present);
        let seen = |key: &'static str, seq| set(key, "x").only_if(Condition::SeqEquals(Seq(seq)));
        let before =
            |op: &Operation| (op.key == "old").then(|| Record::marked("v".into(), Seq(7), Marks::NONE));
        let applied = |ops: &[Operation]| Operation::execute_batch(ops, before, Tick(0)).1.applied;
        assert!(applied(&[
            set("k", "1"),
            there("k"),
            Operation::delete("", "k"),
            Operation::insert("", "k", "2")
        ]));
        assert!(!applied(&[there("k"), set("k", "1")]));
        assert!(applied(&[seen("old", 7), there("old")]) && applied(&[seen("new", 0)]));
        assert!(!applied(&[set("old", "w"), seen("old", 7)]) && !applied(&[seen("old", 8)]));
        let check = |seq| Operation::check_only("", "old").only_if(Condition::SeqEquals(Seq(seq)));
        assert!(applied(&[check(7), set("new", "x")]) && !applied(&[set("new", "x"), check(8)]));
    }

    #[test]
    fn key_value_and_expected_value_are_checked() {
        let too_long = || Bytes::from(vec![0; VALUE_BYTES_MAX + 1]);
        Operation::insert("", "k", "v").check().unwrap();
        for bad in [
            Operation::delete("", ""),
            Operation::put("", "k", too_long()),
            Operation::delete("", "k").only_if(Condition::ValueEquals(too_long())),
            Operation::check_only("", "k").only_if(Condition::ValueEquals(too_long())),
            Operation::update("", "k", Update::Append(too_long())),
            Operation::update("", "k", Update::SetRange { offset: u32::MAX, bytes: "x".into() }),
        ] {
            assert_eq!(bad.check().unwrap_err().kind, ErrorKind::Invalid);
        }
    }
}
