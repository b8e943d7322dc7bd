//! The tables.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::load::{Outcomes, Storm};
use super::servers::Terms;
use super::witness::Witnessed;

/// What came of one storm.
#[derive(Debug)]
pub struct Row {
    pub storm: Storm,
    pub outcomes: Outcomes,
    pub seconds: f64,
    pub witnessed: Witnessed,
    /// MiB, by role.
    pub peaks: BTreeMap<&'static str, u64>,
    /// Before and after.
    pub terms: (Terms, Terms),
}

#[derive(Debug, Default)]
pub struct Report {
    pub quiet: Witnessed,
    pub rows: Vec<Row>,
}

impl Row {
    /// Terms that began meanwhile, over all partitions.
    pub fn elections(&self) -> u64 {
        let (before, after) = &self.terms;
        after.iter().map(|(id, term)| term.saturating_sub(before.get(id).copied().unwrap_or(*term))).sum()
    }

    /// Writes whose outcome nobody knows: the storm's and the witnesses'.
    pub fn unknown(&self) -> usize {
        self.outcomes.get("OUTCOMEUNKNOWN").copied().unwrap_or(0) + self.witnessed.writes.unknown
    }

    fn outcomes(&self) -> String {
        self.outcomes.iter().map(|(name, n)| format!("{n} {name}")).collect::<Vec<_>>().join(", ")
    }

    fn peaks(&self) -> String {
        let peak = |role: &str| self.peaks.get(role).copied().unwrap_or(0);
        format!("{} / {} / {}", peak("pnode"), peak("memtable"), peak("sstable"))
    }

    pub fn line(&self) -> String {
        format!(
            "{}: {} in {:.1} s; {} elections; peaks p-node/memtable/sstable {} MiB; {}",
            self.storm.name(),
            self.outcomes(),
            self.seconds,
            self.elections(),
            self.peaks(),
            self.witnessed.line()
        )
    }
}

impl Report {
    /// No outcome unknown, no election, and no witness was refused.
    pub fn promises_kept(&self) -> bool {
        self.rows.iter().all(|row| {
            let witnessed = &row.witnessed;
            row.unknown() == 0
                && row.elections() == 0
                && witnessed.reads.errors == 0
                && witnessed.writes.errors == 0
        })
    }

    pub fn markdown(&self) -> String {
        let mut text = String::from(
            "| storm | outcomes | seconds | new terms | peak MiB: p-node / memtable / sstable | \
             small reads, ms: p50 / p99 / worst | small writes | failed |\n|---|---|---|---|---|---|---|---|\n",
        );
        let _ = writeln!(
            text,
            "| none | | | | | {} | {} | {} |",
            self.quiet.reads.short(),
            self.quiet.writes.short(),
            self.quiet.reads.errors + self.quiet.writes.errors
        );
        for row in &self.rows {
            let _ = writeln!(
                text,
                "| {} | {} | {:.1} | {} | {} | {} | {} | {} |",
                row.storm.describe(),
                row.outcomes(),
                row.seconds,
                row.elections(),
                row.peaks(),
                row.witnessed.reads.short(),
                row.witnessed.writes.short(),
                row.witnessed.reads.errors + row.witnessed.writes.errors
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        let terms = |term| Terms::from([(0, 1), (1, term)]);
        Row {
            storm: Storm::LargeSets,
            outcomes: [("OK".to_owned(), 100)].into(),
            seconds: 1.0,
            witnessed: Witnessed::default(),
            peaks: [("pnode", 300)].into(),
            terms: (terms(2), terms(2)),
        }
    }

    #[test]
    fn an_unknown_outcome_a_new_term_or_a_refused_witness_breaks_a_promise() {
        let broken = |change: fn(&mut Row)| {
            let mut row = row();
            change(&mut row);
            !Report { rows: vec![row], ..Report::default() }.promises_kept()
        };
        assert!(!broken(|_| {}));
        assert!(broken(|row| row.outcomes = [("OUTCOMEUNKNOWN".to_owned(), 1)].into()));
        assert!(broken(|row| row.terms.1 = Terms::from([(0, 1), (1, 3)])));
        assert!(broken(|row| row.witnessed.reads.errors = 1));
    }

    #[test]
    fn the_table_has_a_row_for_each_storm() {
        let text = Report { rows: vec![row()], ..Report::default() }.markdown();
        assert!(
            text.contains("| 100 clients SET 8 MiB each at once | 100 OK | 1.0 | 0 | 300 / 0 / 0 |"),
            "{text}"
        );
    }
}
