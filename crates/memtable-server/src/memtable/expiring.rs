//! Counts what expires. One writer, any number of readers.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use sextant_common::expiry::Tick;
use sextant_common::manifest::Expiring;

#[derive(Debug, Default)]
pub(super) struct AtomicExpiring {
    records: AtomicU64,
    first: AtomicU64,
    last: AtomicU64,
}

impl AtomicExpiring {
    #[inline]
    pub fn add(&self, expires_at: Option<Tick>) {
        if expires_at.is_some() {
            let mut all = self.get();
            all.add(expires_at);
            // Whoever reads in between sees a range that is too small by what is just being written, which nobody has heard of.
            self.first.store(all.first.0, Relaxed);
            self.last.store(all.last.0, Relaxed);
            self.records.store(all.records, Relaxed);
        }
    }

    pub fn get(&self) -> Expiring {
        Expiring {
            records: self.records.load(Relaxed),
            first: Tick(self.first.load(Relaxed)),
            last: Tick(self.last.load(Relaxed)),
        }
    }
}
