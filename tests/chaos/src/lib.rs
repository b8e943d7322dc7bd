//! Clusters of real processes on a real kernel, broken on purpose.
//!
//! Five programs: [`run`] (`cargo xtask chaos`) breaks a cluster under load for some minutes, in random ways from a seed, and
//! checks that no answer was wrong and nothing acknowledged was lost; [`failover`] (`cargo xtask failover`) measures how long
//! service is gone for each kind of fault; [`storm`] (`cargo xtask storm`) asks more of a cluster than it can do at once;
//! [`rolling`] (`cargo xtask rolling`) restarts one server after the other under load; [`hosts`] (`cargo xtask hosts`) breaks the
//! containers of `deploy/compose.yaml`.
//!
//! Owns: what the machine offers for that ([`host`]: namespaces, packet filters, small disks, a library between server and
//! kernel), the kinds of faults ([`fault`]) and how they come into force ([`injection`]), the load ([`workload`]). Does not own:
//! starting and signalling servers (`sextant-dev-cluster`), the verdict (`sextant-checker`).
//!
//! Invariant: nothing outside of the run is touched. With namespaces, the whole run lives in a network, mount and process
//! namespace of its own, which end with it, however it ends; without, only its own child processes on loopback are touched. Containers, networks and volumes have a project name of their own.

pub mod args;
pub mod failover;
pub mod fault;
pub mod host;
pub mod hosts;
pub mod injection;
pub mod objects;
pub mod rolling;
pub mod run;
pub mod server;
pub mod storm;
pub mod testbed;
pub mod units;
pub mod workload;
