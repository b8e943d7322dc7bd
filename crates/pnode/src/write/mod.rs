//! Writes: conditions proved against SSTables, sent to the leader, retried without ever taking effect twice.
//!
//! Owns: the p-node's own sessions (`session`), the bases of conditions (`base`), the loop that sends and retries
//! (`execute`). Does not own the evaluation of conditions: the sequencer decides.
//!
//! Invariants: a retry repeats session and number; a number is given up only when its answer is here or nobody waits for it
//! any more; a request that may have been executed is never sent under another number.

mod base;
mod execute;
mod session;

pub(crate) use session::{Begun, Sessions};
