//! A partition replica, as the server's other tasks see it: what its worker publishes, and the ways to reach the worker.
//!
//! Owns no rule: the worker's are in [`crate::worker`], those of reads in [`crate::reading`].

mod admission;
mod catch_up;
mod handle;
mod inbox;
mod loading;
mod numbers;
mod published;
mod reply;
mod snapshots_out;
mod state;

#[cfg(test)]
pub use admission::QueueShare;
pub use admission::QueuedWrite;
pub use catch_up::{Behind, CatchUp};
pub use handle::Handle;
pub use inbox::{Event, FilterSet, KnownLog, LogFeed, TableWish, body_of};
pub use loading::{Adopted, LoadJob, LoadPlace, Phase, Written};
pub use numbers::{Members, Numbers, TableNumbers, Writes};
pub use published::Published;
pub use reply::{Answer, ReplySink, WriteFate};
pub use snapshots_out::SnapshotsOut;
pub use state::{Leader, ReplicaState};
