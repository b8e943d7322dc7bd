//! Where the requests of each phase come from. A source belongs to one thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::distribution::{Chooser, Permutation};
use crate::keys::key;
use crate::phase::request::{Context, Request};
use crate::target::Thread;
use crate::workload::{Operation, SCAN_RECORDS_MAX, Workload};

/// Makes the requests of one thread.
pub trait Source: Send + 'static {
    /// The phase's `index`-th request; `None`: there is nothing left for this thread.
    fn next(&mut self, index: u64, rng: &mut fastrand::Rng) -> Option<Request>;
}

/// Writes records 0, 1, 2 ...
pub struct Load {
    pub context: Context,
    pub blind: bool,
}

impl Source for Load {
    fn next(&mut self, index: u64, rng: &mut fastrand::Rng) -> Option<Request> {
        let key = key(index);
        let value = self.context.layout.generate(&key, rng);
        Some(Request::Insert { number: index, key, value, blind: self.blind })
    }
}

/// Rewrites the first so many records of a random order.
pub struct Update {
    pub context: Context,
    pub order: Permutation,
}

impl Source for Update {
    fn next(&mut self, index: u64, rng: &mut fastrand::Rng) -> Option<Request> {
        let key = key(self.order.at(index));
        let value = self.context.layout.generate(&key, rng);
        Some(Request::Update { key, value })
    }
}

/// Reads every record once through each p-node: fills caches and finds what is wrong or missing.
pub struct Reread {
    pub order: Permutation,
    /// Of the thread's p-node; shared by its threads.
    pub next: Arc<AtomicU64>,
}

impl Source for Reread {
    fn next(&mut self, _index: u64, _rng: &mut fastrand::Rng) -> Option<Request> {
        let at = self.next.fetch_add(1, Relaxed);
        (at < self.order.len()).then(|| Request::read(self.order.at(at)))
    }
}

/// A workload's mix.
pub struct Transactions {
    pub context: Context,
    pub workload: Workload,
    pub chooser: Chooser,
}

impl Source for Transactions {
    fn next(&mut self, _index: u64, rng: &mut fastrand::Rng) -> Option<Request> {
        let sequence = &self.context.sequence;
        Some(match self.workload.next(rng) {
            Operation::Read => Request::read(self.chooser.next(rng, sequence.end())),
            Operation::Update => {
                let key = key(self.chooser.next(rng, sequence.end()));
                let value = self.context.layout.generate(&key, rng);
                Request::Update { key, value }
            }
            Operation::Insert => {
                let number = sequence.take();
                let key = key(number);
                let value = self.context.layout.generate(&key, rng);
                Request::Insert { number, key, value, blind: false }
            }
            Operation::Scan => {
                let number = self.chooser.next(rng, sequence.end());
                Request::Scan { number, key: key(number), count: rng.u32(1..=SCAN_RECORDS_MAX) }
            }
            Operation::ReadModifyWrite => {
                let number = self.chooser.next(rng, sequence.end());
                Request::ReadModifyWrite { number, key: key(number) }
            }
        })
    }
}

/// The first number from `records` on that has no record: earlier runs of workloads D and E may have inserted some. Found
/// by doubling steps and halving, since their numbers are contiguous.
pub async fn find_end<T: Thread>(thread: &mut T, records: u64) -> sextant_common::Result<u64> {
    let mut exists =
        async |number: u64| Ok::<_, sextant_common::Error>(thread.read(key(number)).await?.is_some());
    let mut step = 1;
    let mut from = records;
    while exists(from + step - 1).await? {
        from += step;
        step *= 2;
    }
    // Everything below `from` exists, `from + step - 1` does not.
    let (mut low, mut high) = (from, from + step - 1);
    while low < high {
        let middle = low + (high - low) / 2;
        if exists(middle).await? {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Ok(low)
}
