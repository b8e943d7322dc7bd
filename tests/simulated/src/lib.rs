//! A simulated environment: what tests put in place of the real disk and the real clock.
//!
//! Owns a file system in memory that loses what was not fsynced, fails and fills on order ([`FaultyVfs`]), a file without a
//! file system ([`MemoryFile`]), and a clock that stands until it is moved ([`ManualClock`]). No release build contains it.

mod clock;
mod faulty;
mod memory;

#[cfg(test)]
mod agreement;

pub use clock::ManualClock;
pub use faulty::{CrashMode, Fault, FaultyVfs, IoCounts};
pub use memory::MemoryFile;
