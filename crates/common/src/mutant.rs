//! Deliberate bugs, for showing that the tests would notice them.
//!
//! Owns the list of mutants and which one of them is active in this process. Without the feature `mutants` none ever is, the
//! question is a constant, and the compiler removes it together with its answer. The feature never gets into a release build.

#[cfg(all(feature = "mutants", not(debug_assertions)))]
compile_error!("the feature `mutants` is for tests: it must not be in a release build");

/// A rule that a mutant breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mutant {
    /// The simulated disk ignores fsyncs of files and directories.
    NoFsync = 1,
    /// A group is published although a lease forbids it.
    NoLeaseWait,
    /// An SSTable's tombstone ends a read: the memtables are not asked.
    TombstoneFinal,
}

impl Mutant {
    pub const ALL: [(&'static str, Mutant); 3] = [
        ("no-fsync", Mutant::NoFsync),
        ("no-lease-wait", Mutant::NoLeaseWait),
        ("tombstone-final", Mutant::TombstoneFinal),
    ];

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(n, _)| *n == name).map(|(_, mutant)| *mutant)
    }
}

#[cfg(feature = "mutants")]
static ACTIVE: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);

/// Makes this process a mutant.
#[cfg(feature = "mutants")]
pub fn activate(mutant: Mutant) {
    ACTIVE.store(mutant as u8, std::sync::atomic::Ordering::Relaxed);
}

/// Whether this process is that mutant.
#[cfg(feature = "mutants")]
#[inline]
pub fn active(mutant: Mutant) -> bool {
    ACTIVE.load(std::sync::atomic::Ordering::Relaxed) == mutant as u8
}

/// Whether this process is that mutant: never.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn active(_: Mutant) -> bool {
    false
}
