//! A whole cluster on one machine, for development, the command line (`sextant dev`) and tests.
//!
//! Owns: which servers there are, their ports and data directories, starting, killing, pausing and stopping them in order.
//! Does not own: what the servers do. Servers talk to each other over loopback sockets only, whether they run in this process
//! or in processes of their own, so nothing here behaves otherwise than in a real deployment.
//!
//! The data directory:
//!
//! ```text
//! cluster.toml          the [cluster] section that all servers share, and the [ports] that were chosen once
//! config/<server>.toml  one configuration a server, written anew at each start
//! log/<server>.log      standard output and error of each server process
//! <server>/             the data of a memtable or sstable server
//! ready.json            the ready line, while the cluster runs
//! dev.lock              held while the cluster runs
//! ```
//!
//! Invariant: internal addresses never change during the life of a data directory, so a restart finds everything.

mod cluster;
mod files;
mod in_process;
mod layout;
mod options;
mod ports;
mod process;
mod ready;
mod role;
mod slot;

pub use cluster::{Death, DevCluster};
pub use in_process::LocalConfig;
pub use options::{DevOptions, Place, Placement, Tuning};
pub use ready::{PNodeReady, ReadyLine, ServerReady};
pub use role::Role;
