//! Whose answers a p-node asks its leaders to register. A registration costs a write of its key an entry in the bf-log, and the wait
//! for all holders; so what is read once is not registered, and what was kept and used before a write ended it is, at once.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::config::RegisterReads;

/// Keys that are remembered, as many as a leader registers: 1 MiB. With fewer places than keys that are read, a key's is taken by another
/// before it is asked for again, and hardly anything would be registered.
const TAGS: usize = 1 << 18;

pub(super) struct Registrar {
    which: RegisterReads,
    /// Of keys that were read from memtables and not registered since: a part of their hashes, at a place that another part says.
    /// Keys that share a place forget each other.
    tags: Box<[AtomicU32]>,
}

impl Registrar {
    pub fn new(which: RegisterReads) -> Self {
        let tags = if which == RegisterReads::Second { TAGS } else { 0 };
        Self { which, tags: (0..tags).map(|_| AtomicU32::new(0)).collect() }
    }

    /// Whether the answer of a leader that is about to be asked is to be kept. `was_useful`: the last one that was kept of the key.
    pub fn wants(&self, hash: u64, was_useful: bool) -> bool {
        match self.which {
            RegisterReads::Off => false,
            RegisterReads::Every => true,
            RegisterReads::Second => {
                let (tag, place) = ((hash >> 32) as u32 | 1, &self.tags[hash as usize % TAGS]);
                let wanted = was_useful || place.load(Ordering::Relaxed) == tag;
                // Once it is kept, it comes again when a write has ended that.
                place.store(if wanted { 0 } else { tag }, Ordering::Relaxed);
                wanted
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_registered_when_it_is_asked_for_again() {
        let registrar = Registrar::new(RegisterReads::Second);
        let (a, b) = (5 << 32 | 7, 6 << 32 | 8);
        let wants = [a, b, a, a, b, a].map(|hash| registrar.wants(hash, false));
        assert_eq!(wants, [false, false, true, false, true, true]);
    }

    #[test]
    fn what_was_useful_is_registered_at_once() {
        let registrar = Registrar::new(RegisterReads::Second);
        assert_eq!([true, false, true].map(|useful| registrar.wants(5 << 32, useful)), [true, false, true]);
        assert!(!Registrar::new(RegisterReads::Off).wants(5 << 32, true));
    }

    #[test]
    fn keys_of_one_place_forget_each_other() {
        let registrar = Registrar::new(RegisterReads::Second);
        let (a, b) = (4 << 32 | 7, 6 << 32 | 7);
        assert_eq!([a, b, a, a].map(|hash| registrar.wants(hash, false)), [false, false, false, true]);
    }

    #[test]
    fn every_read_or_none() {
        assert!(Registrar::new(RegisterReads::Every).wants(1, false));
        assert!(!Registrar::new(RegisterReads::Off).wants(1, false));
    }
}
