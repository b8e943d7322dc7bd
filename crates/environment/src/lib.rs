//! The environment that a server runs in: everything that is not a pure function of its input.
//!
//! Owns time, randomness, disk, network and threads, behind traits ([`env::Env`]), so that a whole cluster can run in a
//! deterministic simulation; configuration; and what every server does alike: `/metrics` over HTTP, logs, bounded memory
//! for requests, orderly ends. Does not own any protocol rule, and knows no message of ours.
//!
//! Here is only what a release build needs: the disk that forgets and the clock that tests set are in the crate
//! `simulated`.

pub mod calls;
pub mod clock;
pub mod config;
pub mod disk_space;
pub mod env;
pub mod freight;
pub mod http;
pub mod latency;
pub mod logging;
pub mod process;
pub mod rng;
pub mod room;
pub mod shutdown;
pub mod slow_log;
pub mod vfs;

pub use clock::Clock;
pub use env::Env;
