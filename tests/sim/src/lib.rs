//! Sextant's whole cluster in a deterministic simulation.
//!
//! Owns a world in one process and one thread: simulated machines (clocks, disks, network) on [turmoil], the real servers on
//! them, clients that write a history, faults, and the judgement of what came of it. A seed decides everything, so every run
//! can be replayed. Does not own any rule of the database: it is judged by the checker and by invariants that servers report
//! through [`sextant_rules::probe::Probe`].
//!
//! Built with the feature `simulation` and `--cfg tokio_unstable` (tokio's scheduler takes a seed only then); without the feature
//! the crate is empty. One process runs one seed: global counters in dependencies would leak from run to run.
#![cfg(feature = "simulation")]

#[cfg(not(tokio_unstable))]
compile_error!("the simulation needs `--cfg tokio_unstable`: use `cargo xtask sim`");

mod broken;
mod clock;
mod cluster;
mod counters;
mod host;
mod interpose;
mod invariants;
mod many;
mod nemesis;
mod plan;
mod report;
mod run;
mod workload;
mod world;

pub use broken::{broken, mutant_named, mutants};
pub use many::{ManyOptions, many};
pub use plan::{Profile, Scene};
pub use report::{Report, Verdict};
pub use run::{Options, run};
