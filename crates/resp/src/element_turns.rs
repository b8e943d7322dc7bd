//! Turns of commands that ask for elements, so that not all of them use up their deadlines together.
//!
//! Owns how many elements are asked for at a time of each owner of keys: one that does not answer holds up nobody who asks another.

use std::time::Duration;

use sextant_common::{Error, ErrorKind, Result};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Elements that are asked for at a time of one owner; further ones wait, each for those before it. (Their deadline begins when they are
/// asked for: without this a pipeline of ranges would keep itself from being answered in time.)
const ELEMENTS_AT_ONCE: usize = 2048;
/// Of them, one command has so many at most, so that a few long ones do not keep out all others.
const OF_ONE_MAX: u64 = 512;
/// Owners beyond this share turns.
const OWNERS_MAX: usize = 64;
/// Whoever has waited longer is told so.
const WAIT_MAX: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct ElementTurns(Vec<Semaphore>);

/// Those of one owner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OfOwner<'t>(&'t Semaphore);

impl Default for ElementTurns {
    fn default() -> Self {
        Self((0..OWNERS_MAX).map(|_| Semaphore::new(ELEMENTS_AT_ONCE)).collect())
    }
}

impl ElementTurns {
    pub fn of(&self, owner: u32) -> OfOwner<'_> {
        OfOwner(&self.0[owner as usize % OWNERS_MAX])
    }
}

impl<'t> OfOwner<'t> {
    /// When so many elements may be asked for, until it is dropped.
    pub async fn turn(self, elements: u64) -> Result<SemaphorePermit<'t>> {
        let elements = elements.clamp(1, OF_ONE_MAX) as u32;
        if let Ok(turn) = self.0.try_acquire_many(elements) {
            return Ok(turn);
        }
        match tokio::time::timeout(WAIT_MAX, self.0.acquire_many(elements)).await {
            Ok(turn) => turn.map_err(|_| Error::internal("no turns any more")),
            Err(_) => Err(Error::new(
                ErrorKind::Overloaded,
                "nothing took effect: it has waited too long for others who read elements",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn long_ones_leave_turns_to_others_and_no_owner_has_those_of_another() {
        let turns = ElementTurns::default();
        let mut long = Vec::new();
        for _ in 0..3 {
            long.push(turns.of(1).turn(u64::MAX).await.unwrap());
        }
        let short = turns.of(1).turn(100).now_or_never().unwrap().unwrap();
        assert!(turns.of(1).turn(u64::MAX).now_or_never().is_none(), "what is left is less than it may have");
        assert!(turns.of(2).turn(u64::MAX).now_or_never().is_some());
        drop(short);
        assert!(turns.of(1).turn(u64::MAX).now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_in_vain_is_told_so() {
        let turns = ElementTurns::default();
        let mut all = Vec::new();
        for _ in 0..4 {
            all.push(turns.of(1).turn(u64::MAX).await.unwrap());
        }
        assert_eq!(turns.of(1).turn(1).await.unwrap_err().kind, ErrorKind::Overloaded);
    }
}
