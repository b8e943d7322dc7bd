//! Other servers: connections, streams, deadlines, leaders, health.
//!
//! Owns: one connection a server (large writes have another, as have large answers and pages of scans); one long-lived stream a server and kind of request, fed by a coalescer; who leads which
//! partition; which replicas to avoid for a while, and which are far. Does not own any decision about a read or a write: it says what a server
//! answered, or that it did not.
//!
//! Messages end here: what is asked and answered are types of this module.
//!
//! Invariants: every wait ends (with the request's deadline, the stream, or the server); a broken stream fails everything in
//! flight on it at once.

mod coalescer;
mod distances;
mod health;
mod large;
mod leaders;
mod memtable;
mod pages;
mod refusals;
mod retry;
mod sstable;

pub(crate) use coalescer::{Answers, Patience};
use coalescer::{Call, Coalescer, Limits};
pub(crate) use distances::Distances;
pub(crate) use health::Health;
pub(crate) use large::{LARGE_ANSWER_MAX, LargeReads, OnTheWay, VALUE_BYTES_MAX, busy, held};
pub(crate) use leaders::{Hint, Leaders};
pub(crate) use memtable::{
    Disposed, Leases, MemtableAnswer, MemtablePeer, MemtablePeers, MemtableRead, MemtableSays, News, Passage,
    SentOp, SentWrite, TableWish, WriteSays, connect_leases,
};
pub(crate) use pages::{MemtablePageSays, Page, PageRequest, SstPageSays};
pub(crate) use refusals::Refusals;
pub(crate) use retry::{Backoff, Deadline, more_telling, unhurried};
pub(crate) use sstable::{SstGet, SstPeer, SstPeers, SstSays};
