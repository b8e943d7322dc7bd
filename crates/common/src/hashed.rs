//! A hash as the hash of itself, for maps whose keys were hashed before (with a seed, where clients choose them).

use std::hash::Hasher;

/// Takes a `u64` for what it is. (Also: the same keys share a bucket in every run of a simulation.)
#[derive(Clone, Default)]
pub struct AlreadyHashed(u64);

impl Hasher for AlreadyHashed {
    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    #[inline]
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}
