//! Explores the protocol within bounds given on the command line.

use std::process::ExitCode;

use sextant_environment::Clock;
use sextant_environment::clock::{SystemClock, WallSource};
use sextant_model::bounds::{TOMBSTONES, VALUES};
use sextant_model::election::{self, Election};
use sextant_model::explore::Model;
use sextant_model::placement::{self, Placement};
use sextant_model::state::{Cell, WriteKind};
use sextant_model::{Bounds, Mutant, Protocol, explore};
use sextant_rules::catalogue::Way;

const USAGE: &str = "\
usage: sextant-model [options]
       sextant-model election [--writes N] [--wipes N] [--campaigns N] [--changes N] [--states-max N] [--mutant NAME] [--trace]
       sextant-model placement [--elections N] [--copies N] [--changes N] [--cuts N] [--releases N] [--wipes N] [--states-max N] [--mutant NAME] [--trace]

bounds:
  --pnodes N --keys N --writes N --freezes N --compactions N --failovers N --refusals N --mode-changes N --retries N --session-expiries N
  --loads N --adopted --ticks N
  --kinds update,put,insert,replace,delete
  --preloaded values|tombstones|nothing
                         what an SSTable has of every key at the beginning (else: one beginning of each kind)
  --expiries N,..        when writes expire, in ticks; 0: never (else: at any tick, or never)
  --preloaded-expiry N   when the preloaded values do (else: at the first tick)
  --buries               flushes write what has expired as tombstones
parts of the protocol:
  --batches --shared-groups --sessions --cache --grace --split-reads --slips --filter-inserts --two-replies
  --all                  all of them
  --registered           registered reads; with them: --shared-slot --sstables-not-kept --overflows --drops
exploration:
  --states-max N         stop after so many states
  --mutant NAME          weaken a rule; `--mutant list` names them
  --trace                print the trace of a violation
";

struct Options {
    bounds: Bounds,
    states_max: u64,
    trace: bool,
}

fn parse(arguments: &[String]) -> Result<Options, String> {
    let mut options = Options { bounds: Bounds::small(), states_max: u64::MAX, trace: false };
    let b = &mut options.bounds;
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().map(String::as_str).ok_or(format!("{argument} needs a value"));
        let number = |text: &str| text.parse::<u64>().map_err(|e| format!("{argument}: {e}"));
        let small = |text: &str| text.parse::<u8>().map_err(|e| format!("{argument}: {e}"));
        match argument.as_str() {
            "--pnodes" => b.pnodes = small(value()?)?.into(),
            "--keys" => b.keys = small(value()?)?.into(),
            "--writes" => b.writes = small(value()?)?.into(),
            "--freezes" => b.freezes = small(value()?)?,
            "--compactions" => b.compactions = small(value()?)?,
            "--failovers" => b.failovers = small(value()?)?,
            "--refusals" => b.refusals = small(value()?)?,
            "--mode-changes" => b.mode_changes = small(value()?)?,
            "--retries" => b.retries = small(value()?)?,
            "--kinds" => {
                let kind = |name: &str| {
                    let found = WriteKind::ALL.into_iter().find(|k| k.name() == name);
                    found.ok_or(format!("no such kind of write: {name}"))
                };
                b.kinds = value()?.split(',').map(kind).collect::<Result<_, _>>()?;
            }
            "--preloaded" => {
                b.preloaded = vec![match value()? {
                    "values" => VALUES,
                    "tombstones" => TOMBSTONES,
                    "nothing" => Cell::NOTHING,
                    other => return Err(format!("--preloaded: values, tombstones or nothing, not {other}")),
                }];
            }
            "--session-expiries" => b.session_expiries = number(value()?)? as u8,
            "--loads" => b.loads = small(value()?)?,
            "--ticks" => {
                b.ticks = small(value()?)?;
                (b.expiries, b.preloaded_expiry) = ((0..=b.ticks).collect(), b.ticks.min(1));
            }
            "--expiries" => {
                b.expiries = value()?.split(',').map(small).collect::<Result<_, _>>()?;
            }
            "--buries" => b.buries = true,
            "--preloaded-expiry" => b.preloaded_expiry = small(value()?)?,
            "--adopted" => b.adopted = true,
            "--drops" => b.loaded = Cell::NOTHING,
            "--registered" => b.registered = true,
            "--shared-slot" => b.shared_slot = true,
            "--sstables-not-kept" => b.sstables_not_kept = true,
            "--overflows" => b.overflows = true,
            "--batches" => b.batches = true,
            "--shared-groups" => b.shared_groups = true,
            "--sessions" => b.sessions = true,
            "--cache" => b.cache = true,
            "--grace" => b.grace = true,
            "--split-reads" => b.split_reads = true,
            "--slips" => b.slips = true,
            "--filter-inserts" => b.filter_inserts = true,
            "--scans" => b.scans = true,
            "--two-replies" => b.two_replies = true,
            "--all" => {
                (b.batches, b.shared_groups, b.sessions, b.cache, b.grace) = (true, true, true, true, true);
                (b.split_reads, b.slips, b.two_replies) = (true, true, true);
            }
            "--states-max" => options.states_max = number(value()?)?,
            "--mutant" => {
                let name = value()?;
                b.mutant = Some(mutant(name, &[Way::Model, Way::Covered])?);
            }
            "--trace" => options.trace = true,
            _ => return Err(USAGE.to_owned()),
        }
    }
    Ok(options)
}

/// The one of that name among those of a model, or all their names.
fn mutant(name: &str, of: &[Way]) -> Result<Mutant, String> {
    let there: Vec<Mutant> = of.iter().flat_map(|way| Mutant::all_in(*way)).collect();
    there.iter().copied().find(|mutant| mutant.name() == name).ok_or_else(|| {
        let names: Vec<&str> = there.iter().map(|mutant| mutant.name()).collect();
        format!("mutants:\n  {}", names.join("\n  "))
    })
}

/// Explores elections instead.
fn election(arguments: &[String]) -> Result<bool, String> {
    let mut bounds = election::Bounds { writes: 2, wipes: 2, campaigns: 3, changes: 6, mutant: None };
    let (mut states_max, mut trace) = (u64::MAX, false);
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        let small = |text: &String| text.parse::<u8>().map_err(|e| format!("{argument}: {e}"));
        match argument.as_str() {
            "--writes" => bounds.writes = small(value()?)?.min(4),
            "--wipes" => bounds.wipes = small(value()?)?,
            "--campaigns" => bounds.campaigns = small(value()?)?,
            "--changes" => bounds.changes = small(value()?)?,
            "--states-max" => states_max = value()?.parse().map_err(|e| format!("{argument}: {e}"))?,
            "--mutant" => {
                bounds.mutant = Some(mutant(value()?, &[Way::Election])?);
            }
            "--trace" => trace = true,
            _ => return Err(USAGE.to_owned()),
        }
    }
    Ok(explored(&Election::new(bounds), states_max, trace))
}

/// Explores where SSTables are.
fn placement(arguments: &[String]) -> Result<bool, String> {
    let mut bounds = placement::Bounds {
        elections: 2,
        copies: 3,
        changes: 2,
        cuts: 1,
        releases: 2,
        wipes: 1,
        mutant: None,
    };
    let (mut states_max, mut trace) = (u64::MAX, false);
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        let small = |text: &String| text.parse::<u8>().map_err(|e| format!("{argument}: {e}"));
        match argument.as_str() {
            "--elections" => bounds.elections = small(value()?)?,
            "--copies" => bounds.copies = small(value()?)?,
            "--changes" => bounds.changes = small(value()?)?,
            "--cuts" => bounds.cuts = small(value()?)?,
            "--releases" => bounds.releases = small(value()?)?,
            "--wipes" => bounds.wipes = small(value()?)?,
            "--states-max" => states_max = value()?.parse().map_err(|e| format!("{argument}: {e}"))?,
            "--mutant" => bounds.mutant = Some(mutant(value()?, &[Way::Placement])?),
            "--trace" => trace = true,
            _ => return Err(USAGE.to_owned()),
        }
    }
    Ok(explored(&Placement::new(bounds), states_max, trace))
}

/// Explores, and prints what came of it. Whether all is well.
fn explored<M: Model>(model: &M, states_max: u64, trace: bool) -> bool {
    let clock = SystemClock::new(WallSource::default());
    let start_ns = clock.grantor_ns();
    let explored = explore(model, states_max);
    let seconds = (clock.grantor_ns() - start_ns) as f64 / 1e9;
    println!(
        "{} states, {} transitions, depth {}, {seconds:.1} s: {}",
        explored.states,
        explored.transitions,
        explored.depth,
        match (&explored.violation, explored.exhausted) {
            (Some(v), _) => format!("VIOLATION after {} steps: {}", v.trace.len(), v.what),
            (None, true) => "exhausted, no violation".to_owned(),
            (None, false) => "not exhausted, no violation so far".to_owned(),
        }
    );
    if let (Some(violation), true) = (&explored.violation, trace) {
        for (n, line) in violation.trace.iter().enumerate() {
            println!("{:3}. {line}", n + 1);
        }
    }
    explored.violation.is_none()
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let well = match arguments.split_first() {
        Some((first, rest)) if first == "election" => election(rest),
        Some((first, rest)) if first == "placement" => placement(rest),
        _ => parse(&arguments).and_then(|options| {
            Ok(explored(&Protocol::new(options.bounds)?, options.states_max, options.trace))
        }),
    };
    match well {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(2),
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}
