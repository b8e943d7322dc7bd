//! Load generator with the conventions of YCSB.
//!
//! Owns: workloads A to F, YCSB's keys, fields and distributions, the threads that run them, what is measured and how it is
//! reported. Does not own: how a cluster is reached (`target`: gRPC, RESP, or a p-node in the generator).
//!
//! Differences from YCSB, on purpose: a record is one value that holds all fields (`record`), so an update rewrites all of
//! them (YCSB's `writeallfields=true`); every value that is read is verified, and a wrong or missing one counts as an error;
//! inserts are checked (the record must not exist); a thread is a tokio task.
//!
//! Invariant: all modes of a comparison run the same code against the same target; only the mode differs.

mod args;
mod cluster_file;
mod compare;
mod counters;
mod distribution;
mod keys;
mod measure;
mod phase;
mod progress;
mod record;
mod report;
mod run;
mod sequence;
mod settings;
mod target;
mod workload;

pub use args::{CompareOptions, InsertMode, Options, PhaseArgs, Switch, YcsbArgs, read_modes};
pub use cluster_file::{ClusterFile, Running, RunningServer};
pub use compare::{Comparison, Median, Run};
pub use distribution::{Chooser, Distribution, Permutation, Zipfian};
pub use keys::{fnv_hash64, key};
pub use record::{Layout, Wrong};
pub use report::{KindReport, Latency, Parameters, Report};
pub use run::{RunReport, run};
pub use workload::{Operation, Workload};
