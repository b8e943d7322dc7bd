//! `route()`: algorithms 1 and 2 of the paper with tombstones, missing leases and `filter_inserts`. Pure.
//!
//! The exhaustive model of the protocol (`tests/model`) routes by these very functions.

use sextant_common::expiry::{Life, Tick, Ticks, judge};
use sextant_common::operation::ReadMode;

use sextant_rules::mutant::{self, Mutant};

/// What is known when the filters are consulted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    pub mode: ReadMode,
    /// A lease makes the memtables' filters usable.
    pub leased: bool,
    /// B_m of the active or of a frozen memtable contains the key. Means nothing without a lease.
    pub in_memtable_filter: bool,
    /// There is an SSTable that may have the key (in `Nda` mode by its range alone).
    pub sst_candidates: bool,
    /// Table option: every write of a new key leaves a bit.
    pub filter_inserts: bool,
    /// The memtables have said that they have no entry, to a registered read that nothing has ended since. Means nothing without a
    /// lease.
    pub no_entry: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Order {
    MemtablesFirst,
    SstablesFirst,
    /// No filter has the key, and every write would have left a bit.
    Nobody,
}

/// Where to read, in which order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Plan {
    order: Order,
    sst_candidates: bool,
    /// The memtables cannot hold the key: what the SSTables say is final, also if they say no.
    memtables_ruled_out: bool,
}

#[inline]
pub fn route(facts: Facts) -> Plan {
    // Without a lease a pda read is done as bda.
    let precise = facts.mode == ReadMode::Pda && facts.leased;
    if precise && facts.no_entry {
        // As if they were asked, and said it again.
        let order = if facts.sst_candidates { Order::SstablesFirst } else { Order::Nobody };
        return Plan { order, sst_candidates: facts.sst_candidates, memtables_ruled_out: true };
    }
    if !precise || facts.in_memtable_filter {
        return Plan {
            order: Order::MemtablesFirst,
            sst_candidates: facts.sst_candidates,
            memtables_ruled_out: false,
        };
    }
    let order = match (facts.sst_candidates, facts.filter_inserts) {
        (true, _) => Order::SstablesFirst,
        (false, true) => Order::Nobody,
        // Absent, or newly inserted: an INSERT leaves no bit.
        (false, false) => Order::MemtablesFirst,
    };
    Plan { order, sst_candidates: facts.sst_candidates, memtables_ruled_out: facts.filter_inserts }
}

impl Plan {
    /// The answer, if nobody has to be asked for it. `cached`: what the SSTables say, if that is known.
    #[inline]
    pub fn answer_at_once(self, cached: Option<Found>) -> Option<Answer> {
        match (self.order, cached) {
            (Order::Nobody, _) => Some(Answer::Absent),
            (Order::SstablesFirst, Some(Found::Value)) => Some(Answer::Value),
            // Of an SSTable: if inserts leave no bit, one may have followed.
            (Order::SstablesFirst, Some(Found::Tombstone)) if self.memtables_ruled_out => {
                Some(Answer::Absent)
            }
            _ => None,
        }
    }
}

/// What a tier said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Found {
    Value,
    /// Or a value that has expired.
    Tombstone,
    NoEntry,
    /// Of an SSTable: a value of which only the leader knows whether it has expired.
    Undecided,
}

impl Found {
    /// What a record is by what is known of the time.
    #[inline]
    pub fn of(is_value: bool, expires_at: Option<Tick>, ticks: Ticks) -> Self {
        match judge(expires_at, ticks) {
            _ if !is_value => Found::Tombstone,
            Life::Alive => Found::Value,
            Life::Expired => Found::Tombstone,
            Life::Unknown => Found::Undecided,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// The value that the tier just gave.
    Value,
    Absent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    AskMemtables,
    AskSstables,
    Done(Answer),
}

/// A plan being carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Progress {
    plan: Plan,
    memtables_asked: bool,
    sstables_asked: bool,
    /// Of what the SSTables said, the leader's time decides what it is.
    undecided: bool,
}

impl Progress {
    #[inline]
    pub fn new(plan: Plan) -> Self {
        Self { plan, memtables_asked: false, sstables_asked: false, undecided: false }
    }

    #[inline]
    pub fn start(&mut self) -> Step {
        match self.plan.order {
            Order::MemtablesFirst => self.ask_memtables(),
            Order::SstablesFirst => self.ask_sstables(),
            Order::Nobody => Step::Done(Answer::Absent),
        }
    }

    #[inline]
    pub fn memtables_said(&mut self, found: Found) -> Step {
        match found {
            Found::Value => Step::Done(Answer::Value),
            // Newer than anything in an SSTable: final.
            Found::Tombstone => Step::Done(Answer::Absent),
            Found::NoEntry if self.undecided => {
                // What they said is judged again, by the answer's time.
                self.undecided = false;
                self.ask_sstables()
            }
            Found::NoEntry if self.plan.sst_candidates && !self.sstables_asked => self.ask_sstables(),
            Found::NoEntry => Step::Done(Answer::Absent),
            // (No memtable says so: a leader knows the time.)
            Found::Undecided => self.ask_memtables(),
        }
    }

    #[inline]
    pub fn sstables_said(&mut self, found: Found) -> Step {
        match found {
            Found::Value => Step::Done(Answer::Value),
            // Also if they cannot hold the key.
            Found::Undecided => {
                self.undecided = true;
                self.ask_memtables()
            }
            Found::Tombstone if mutant::active(Mutant::SstTombstoneFinal) => Step::Done(Answer::Absent),
            // The key may have been inserted since, and an INSERT leaves no bit.
            Found::Tombstone | Found::NoEntry if !self.memtables_asked && !self.plan.memtables_ruled_out => {
                self.ask_memtables()
            }
            Found::Tombstone | Found::NoEntry => Step::Done(Answer::Absent),
        }
    }

    #[inline]
    pub fn asked_memtables(&self) -> bool {
        self.memtables_asked
    }

    #[inline]
    pub fn asked_sstables(&self) -> bool {
        self.sstables_asked
    }

    fn ask_memtables(&mut self) -> Step {
        self.memtables_asked = true;
        Step::AskMemtables
    }

    fn ask_sstables(&mut self) -> Step {
        self.sstables_asked = true;
        Step::AskSstables
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn facts() -> Facts {
        Facts {
            mode: ReadMode::Pda,
            leased: true,
            in_memtable_filter: false,
            sst_candidates: true,
            filter_inserts: false,
            no_entry: false,
        }
    }

    /// Carries the plan out against a given state; the tiers asked, and the tier whose value was the answer.
    fn run(facts: Facts, memtables: Found, sstables: Found) -> (Vec<&'static str>, Option<&'static str>) {
        let mut progress = Progress::new(route(facts));
        let mut asked = Vec::new();
        let mut step = progress.start();
        loop {
            let tier = *asked.last().unwrap_or(&"nobody");
            match step {
                Step::Done(Answer::Value) => return (asked, Some(tier)),
                Step::Done(Answer::Absent) => return (asked, None),
                Step::AskMemtables => {
                    asked.push("memtables");
                    step = progress.memtables_said(memtables);
                }
                Step::AskSstables => {
                    asked.push("sstables");
                    step = progress.sstables_said(sstables);
                }
            }
            assert!(asked.len() <= 2, "each tier is asked at most once");
        }
    }

    #[test]
    fn sst_tombstone_is_not_final() {
        let inserted_after_the_delete = run(facts(), Found::Value, Found::Tombstone);
        assert_eq!(inserted_after_the_delete, (vec!["sstables", "memtables"], Some("memtables")));
        assert_eq!(run(facts(), Found::NoEntry, Found::Tombstone), (vec!["sstables", "memtables"], None));
    }

    #[test]
    fn memtable_tombstone_is_final() {
        for mode in ReadMode::ALL {
            let facts = Facts { mode, in_memtable_filter: true, ..facts() };
            assert_eq!(run(facts, Found::Tombstone, Found::Value), (vec!["memtables"], None));
        }
    }

    #[test]
    fn a_record_in_an_sstable_touches_no_memtable() {
        assert_eq!(run(facts(), Found::NoEntry, Found::Value), (vec!["sstables"], Some("sstables")));
    }

    #[test]
    fn no_lease_is_read_as_bda() {
        for in_memtable_filter in [false, true] {
            let pda = Facts { leased: false, in_memtable_filter, ..facts() };
            let bda = Facts { mode: ReadMode::Bda, ..facts() };
            assert_eq!(route(pda), route(bda));
        }
    }

    #[test]
    fn filter_inserts_makes_negatives_final() {
        let facts = Facts { filter_inserts: true, ..facts() };
        assert_eq!(run(facts, Found::NoEntry, Found::Tombstone), (vec!["sstables"], None));
        assert_eq!(
            run(Facts { sst_candidates: false, ..facts }, Found::NoEntry, Found::NoEntry),
            (vec![], None)
        );
        // A bit, or no lease: the memtables have to be asked all the same.
        for facts in [Facts { in_memtable_filter: true, ..facts }, Facts { leased: false, ..facts }] {
            assert_eq!(run(facts, Found::Value, Found::Tombstone), (vec!["memtables"], Some("memtables")));
        }
    }

    #[test]
    fn what_was_kept_of_the_memtables_is_as_good_as_their_answer_under_a_lease_only() {
        for (in_memtable_filter, filter_inserts) in
            [(false, false), (true, false), (false, true), (true, true)]
        {
            let kept = Facts { no_entry: true, in_memtable_filter, filter_inserts, ..facts() };
            assert_eq!(run(kept, Found::NoEntry, Found::Value), (vec!["sstables"], Some("sstables")));
            assert_eq!(run(kept, Found::NoEntry, Found::Tombstone), (vec!["sstables"], None));
            let nowhere = Facts { sst_candidates: false, ..kept };
            assert_eq!(run(nowhere, Found::NoEntry, Found::NoEntry), (vec![], None));
            let no_lease = Facts { leased: false, ..kept };
            assert_eq!(run(no_lease, Found::Value, Found::Value), (vec!["memtables"], Some("memtables")));
        }
    }

    /// Paper, table 2 and algorithm 2: which tier comes first.
    #[test]
    fn algorithm_2_decides_the_first_tier() {
        for in_memtable_filter in [false, true] {
            for sst_candidates in [false, true] {
                let facts = Facts { in_memtable_filter, sst_candidates, ..facts() };
                let memtables_first = in_memtable_filter || !sst_candidates;
                let expected = if memtables_first { Step::AskMemtables } else { Step::AskSstables };
                assert_eq!(Progress::new(route(facts)).start(), expected);
            }
        }
    }

    fn found() -> impl Strategy<Value = Found> {
        prop_oneof![Just(Found::Value), Just(Found::Tombstone), Just(Found::NoEntry)]
    }

    proptest! {
        /// For every state that the write policy (paper, table 1) can lead to, and any false positives, the answer is the newest
        /// record.
        #[test]
        fn the_answer_is_the_newest_record(
            mode in prop_oneof![Just(ReadMode::Pda), Just(ReadMode::Bda), Just(ReadMode::Nda)],
            memtables in found(), sstables in found(),
            leased: bool, filter_inserts: bool, inserted_without_a_bit: bool,
            false_bit: bool, false_candidate: bool, kept: bool,
        ) {
            // Only an INSERT (onto nothing, or onto a tombstone) leaves no bit.
            let may_lack_a_bit = memtables != Found::NoEntry && sstables != Found::Value && !filter_inserts;
            let has_bit = memtables != Found::NoEntry && !(may_lack_a_bit && inserted_without_a_bit);
            let facts = Facts {
                mode,
                leased,
                // Without a lease the copy may lack anything.
                in_memtable_filter: if leased { has_bit || false_bit } else { false_bit },
                sst_candidates: sstables != Found::NoEntry || false_candidate,
                filter_inserts,
                no_entry: kept && leased && memtables == Found::NoEntry,
            };
            let expected = match (memtables, sstables) {
                (Found::Value, _) => Some("memtables"),
                (Found::NoEntry, Found::Value) => Some("sstables"),
                _ => None,
            };
            prop_assert_eq!(run(facts, memtables, sstables).1, expected);
        }
    }
}
