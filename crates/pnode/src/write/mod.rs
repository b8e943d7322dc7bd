//! Writes: conditions proved against SSTables, sent to the leader, retried without ever taking effect twice.
//!
//! Owns: writes that ask nothing and travel in batches (`blind`), sessions (`sessions`), which of callers' are still being opened
//! (`openings`), their numbers (`numbers`) and how many of them are under way (`window`, pure), the bases of conditions (`base`), what an
//! answer means (`attempt`, pure), the loop that sends and retries ([`Writer`]). Does not own the evaluation of conditions: the sequencer
//! decides.
//!
//! Invariants: a retry repeats session and number; a number is given up only when its answer is here or nobody waits for it
//! any more; a request that may have been executed is never sent under another number.

mod attempt;
mod base;
mod blind;
mod numbers;
mod openings;
mod prepare;
mod sessions;
mod window;
mod writer;

pub(crate) use base::Found;
pub(crate) use blind::BlindWrites;
pub(crate) use prepare::check_is_batch;
pub(crate) use writer::Writer;
