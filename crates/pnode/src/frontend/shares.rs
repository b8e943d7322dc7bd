//! What each partition may have of the commands that are under way.
//!
//! Commands whose partition has no leader wait for their deadline. They must not take all the turns that there are: beyond its share
//! they are refused at once, while everybody else's are executed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sextant_common::ids::PartitionId;
use sextant_common::{Error, ErrorKind, Result};

pub(super) struct Shares {
    under_way: Vec<Arc<AtomicUsize>>,
    most: usize,
}

/// A command under way.
#[derive(Debug)]
pub(super) struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Shares {
    /// A partition without a leader may have half of all commands.
    pub fn new(partitions: u32, commands_max: usize) -> Self {
        let under_way = (0..partitions).map(|_| Arc::default()).collect();
        Self { under_way, most: (commands_max / 2).max(1) }
    }

    pub fn enter(&self, partition: PartitionId, has_leader: bool) -> Result<Place> {
        let count = &self.under_way[partition.0 as usize];
        let place = Place(count.clone());
        if count.fetch_add(1, Ordering::Relaxed) >= self.most && !has_leader {
            drop(place);
            let why = format!("partition {partition} has no leader, and many commands wait for one already");
            return Err(Error::new(ErrorKind::Overloaded, why));
        }
        Ok(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_without_a_leader_does_not_take_all_turns() {
        let shares = Shares::new(2, 4);
        let (led, unled) = (PartitionId(0), PartitionId(1));
        let _led: Vec<_> = (0..9).map(|_| shares.enter(led, true).unwrap()).collect();
        let waiting: Vec<_> = (0..2).map(|_| shares.enter(unled, false).unwrap()).collect();
        assert_eq!(shares.enter(unled, false).unwrap_err().kind, ErrorKind::Overloaded);
        shares.enter(unled, true).unwrap();
        drop(waiting);
        shares.enter(unled, false).unwrap();
    }
}
