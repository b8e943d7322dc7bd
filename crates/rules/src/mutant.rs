//! Deliberate bugs, for showing that the tests would notice them.
//!
//! Owns which mutant is active in this process; which there are is said in the [`catalogue`](crate::catalogue). Without the
//! feature `mutants` none ever is active, the question is a constant, and the compiler removes it together with its answer. The
//! feature never gets into a release build.

use crate::catalogue::Way;

#[cfg(all(feature = "mutants", not(debug_assertions)))]
compile_error!("the feature `mutants` is for tests: it must not be in a release build");

/// Makes [`Mutant`] of the catalogue's entries.
macro_rules! mutants {
    ($($variant:ident = $name:literal, $does:literal, $ways:expr;)+) => {
        /// A build that breaks a rule, in the model, in the simulation, or in both.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Mutant {
            $(#[doc = $does] $variant,)+
        }

        impl Mutant {
            /// All of them, in the catalogue's order.
            pub const ALL: &[Mutant] = &[$(Mutant::$variant,)+];

            /// As command lines name it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Mutant::$variant => $name,)+
                }
            }

            /// What it does, in one sentence.
            pub const fn does(self) -> &'static str {
                match self {
                    $(Mutant::$variant => $does,)+
                }
            }

            /// Where it breaks its rule.
            pub const fn ways(self) -> &'static [Way] {
                match self {
                    $(Mutant::$variant => $ways,)+
                }
            }
        }
    };
}

pub(crate) use mutants;

pub use crate::catalogue::Mutant;

impl Mutant {
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|mutant| mutant.name() == name)
    }

    /// Those that break their rule in this way.
    pub fn all_in(way: Way) -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(move |mutant| mutant.ways().contains(&way))
    }

    /// Those that the simulation runs.
    pub fn all_simulated() -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(|mutant| mutant.is_simulated())
    }

    pub fn is_simulated(self) -> bool {
        self.ways().iter().any(|way| way.is_of_the_simulation())
    }

    /// The patch without which the servers' code knows nothing of it.
    pub fn patch(self) -> Option<&'static str> {
        self.ways().iter().find_map(|way| match way {
            Way::Patch(name) => Some(*name),
            _ => None,
        })
    }
}

#[cfg(feature = "mutants")]
static ACTIVE: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(u8::MAX);

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
