//! Medians and ratios of what the rounds measured. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::client::Measured;
use crate::load::{Load, Shape};
use crate::machine::Machine;
use crate::servers::Kind;

/// Who drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Program {
    Own,
    RedisBenchmark,
}

/// What is repeated in each round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Run {
    pub program: Program,
    pub load: Load,
    pub shape: Shape,
    pub server: Kind,
}

/// What a server is, and what it costs when nobody asks it for anything.
#[derive(Clone, Debug, Serialize)]
pub struct About {
    pub server: Kind,
    pub version: String,
    pub promises: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out: Option<String>,
    /// Per cent of a core.
    pub at_rest_percent: f64,
}

/// How it was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Options {
    pub quick: bool,
    pub rounds: usize,
    pub seconds: f64,
    pub records: u64,
    pub value_bytes: usize,
    pub spread: bool,
    pub etcd_connections: usize,
}

/// All rounds of one run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Rounds {
    /// By the number of the round: others take their ratios to the same one.
    pub measured: BTreeMap<usize, Measured>,
    pub failed: BTreeMap<usize, String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Row {
    #[serde(flatten)]
    pub run: Run,
    /// `None`: all rounds failed.
    pub median: Option<Measured>,
    /// Sextant's throughput as a multiple of this server's: the median of the rounds' ratios. 0 to 1: Sextant is slower.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sextant_ratio: Option<f64>,
    #[serde(flatten)]
    pub rounds: Rounds,
}

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub machine: Machine,
    pub options: Options,
    pub servers: Vec<About>,
    pub took_seconds: u64,
    /// In order of programs, loads, shapes, servers.
    pub rows: Vec<Row>,
}

/// Rows in the order of their runs.
pub fn rows(runs: BTreeMap<Run, Rounds>) -> Vec<Row> {
    let ratio = |run: &Run, theirs: &Rounds| {
        let ours =
            runs.get(&Run { server: Kind::Sextant, ..*run }).filter(|_| run.server != Kind::Sextant)?;
        let both = theirs.measured.iter().filter_map(|(round, theirs)| {
            let ours = ours.measured.get(round)?;
            (theirs.per_second > 0.0).then(|| ours.per_second / theirs.per_second)
        });
        median(both)
    };
    let row = |(run, rounds): (&Run, &Rounds)| Row {
        run: *run,
        median: median_of(rounds),
        sextant_ratio: ratio(run, rounds),
        rounds: rounds.clone(),
    };
    runs.iter().map(row).collect()
}

/// The middle one, or the mean of the two in the middle.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        len if len % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

/// Each figure's own median; errors of all rounds.
fn median_of(rounds: &Rounds) -> Option<Measured> {
    let of = |figure: fn(&Measured) -> f64| median(rounds.measured.values().map(figure));
    let mut errors = BTreeMap::new();
    for (what, count) in rounds.measured.values().flat_map(|measured| &measured.errors) {
        *errors.entry(what.clone()).or_default() += count;
    }
    Some(Measured {
        per_second: of(|m| m.per_second)?,
        p50_us: of(|m| m.p50_us)?,
        p99_us: of(|m| m.p99_us)?,
        server_us: of(|m| m.server_us)?,
        client_us: of(|m| m.client_us)?,
        errors,
    })
}

/// In how many of the runs Sextant is slower than a peer, and of how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slower {
    pub peer: Kind,
    pub slower: usize,
    pub of: usize,
}

pub fn slower(rows: &[Row]) -> Vec<Slower> {
    let own = || rows.iter().filter(|row| row.run.program == Program::Own);
    let peers: BTreeSet<Kind> = own().map(|row| row.run.server).collect();
    let of = |peer: Kind| {
        let ratios: Vec<_> =
            own().filter(|row| row.run.server == peer).filter_map(|row| row.sextant_ratio).collect();
        Slower { peer, slower: ratios.iter().filter(|ratio| **ratio < 1.0).count(), of: ratios.len() }
    };
    peers.into_iter().map(of).filter(|slower| slower.of > 0).collect()
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn run(load: Load, clients: usize, server: Kind) -> Run {
        Run { program: Program::Own, load, shape: Shape { clients, pipeline: 1 }, server }
    }

    pub fn rounds(rates: &[f64]) -> Rounds {
        let measured = |rate: &f64| Measured {
            per_second: *rate,
            p50_us: 1e6 / rate,
            p99_us: 2e6 / rate,
            server_us: 20.0,
            client_us: 10.0,
            errors: BTreeMap::new(),
        };
        Rounds { measured: rates.iter().map(measured).enumerate().collect(), failed: BTreeMap::new() }
    }

    #[test]
    fn a_median_is_in_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median([f64::NAN, 1.0]), Some(1.0));
        assert_eq!(median([]), None);
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        let (ours, theirs) = (run(Load::Set, 1, Kind::Sextant), run(Load::Set, 1, Kind::Redis));
        let lonely = run(Load::Set, 64, Kind::Redis);
        // The machine was twice as fast in the second round: the ratios do not notice.
        let mut runs = BTreeMap::from([
            (ours, rounds(&[100.0, 200.0, 110.0])),
            (theirs, rounds(&[200.0, 400.0, 200.0])),
            (lonely, rounds(&[1.0])),
        ]);
        // A round that only one of them has does not count.
        runs.get_mut(&theirs).unwrap().measured.insert(7, rounds(&[1.0]).measured[&0].clone());
        let rows = rows(runs);
        let ratio = |run| rows.iter().find(|row| row.run == run).unwrap().sextant_ratio;
        assert_eq!((ratio(ours), ratio(theirs), ratio(lonely)), (None, Some(0.5), None));
        assert_eq!(rows[0].median.as_ref().unwrap().per_second, 110.0);
        assert_eq!(slower(&rows), [Slower { peer: Kind::Redis, slower: 1, of: 1 }]);
    }

    #[test]
    fn errors_of_all_rounds_are_kept_and_nothing_has_no_median() {
        let mut some = rounds(&[1.0, 2.0]);
        for measured in some.measured.values_mut() {
            measured.errors.insert("TRYAGAIN".to_owned(), 3);
        }
        assert_eq!(median_of(&some).unwrap().errors["TRYAGAIN"], 6);
        assert!(median_of(&Rounds::default()).is_none());
    }
}
