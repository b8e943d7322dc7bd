//! Whether a server that began with an empty directory has what it is to have. Pure.
//!
//! One that has lost its disk serves at once, and lacks all its tables until the leaders have had them copied. Until then it does not
//! call itself ready: whoever replaces servers one after the other waits, and does not take the next copy away.
//!
//! A leader says with each question for what is here how many tables of its partition lacked copies in its round before. What counts is
//! what it says after it has had an answer of ours: a round before may have heard the server that was here before.

use parking_lot::Mutex;
use sextant_common::ids::PartitionId;

/// What a leader says that has not compared in its term yet.
pub const NOT_COMPARED: u32 = u32::MAX;
/// Leaders of older versions say nothing, and are not waited for any longer than this many questions.
const SILENT_MAX: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Partition {
    /// So many questions were answered, and this many tables lacked copies at the last one.
    Asked { questions: u32, said: Option<u32> },
    /// Once: later losses are the tier's, not those of a new server.
    Settled,
}

#[derive(Debug)]
pub struct Settling {
    partitions: Mutex<Vec<Partition>>,
}

impl Settling {
    pub fn new(partitions: u32, is_new: bool) -> Self {
        let state = if is_new { Partition::Asked { questions: 0, said: None } } else { Partition::Settled };
        Self { partitions: Mutex::new(vec![state; partitions as usize]) }
    }

    /// A leader has asked what is here of its partition, and said how many tables lacked copies.
    pub fn asked(&self, partition: PartitionId, lacking: Option<u32>) {
        let mut partitions = self.partitions.lock();
        let Some(state) = partitions.get_mut(partition.0 as usize) else { return };
        let Partition::Asked { questions, said } = *state else { return };
        *state = match lacking {
            Some(0) if questions > 0 => Partition::Settled,
            None if said.is_none() && questions + 1 >= SILENT_MAX => Partition::Settled,
            Some(_) => Partition::Asked { questions: questions + 1, said: lacking },
            None => Partition::Asked { questions: questions + 1, said },
        };
    }

    /// Why the server is not ready.
    pub fn waits_for(&self) -> Option<String> {
        let partitions = self.partitions.lock();
        let waiting = partitions.iter().enumerate().find_map(|(at, state)| match state {
            Partition::Asked { said, .. } => Some((at, *said)),
            Partition::Settled => None,
        });
        waiting.map(|(partition, said)| match said {
            None | Some(0 | NOT_COMPARED) => format!(
                "partition {partition}: its leader has not compared yet what is in this new directory with what is to be"
            ),
            Some(tables) => format!("partition {partition}: {tables} tables lack copies"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P0: PartitionId = PartitionId(0);
    const P1: PartitionId = PartitionId(1);

    #[test]
    fn a_server_with_data_is_ready_at_once_and_an_empty_one_when_no_partition_lacks_copies() {
        assert_eq!(Settling::new(2, false).waits_for(), None);
        let settling = Settling::new(2, true);
        assert!(settling.waits_for().unwrap().starts_with("partition 0: its leader has not compared yet"));
        settling.asked(P0, Some(0));
        assert!(settling.waits_for().is_some(), "that may be of the server before");
        settling.asked(P0, Some(7));
        assert_eq!(settling.waits_for().unwrap(), "partition 0: 7 tables lack copies");
        settling.asked(P0, Some(0));
        assert!(settling.waits_for().unwrap().starts_with("partition 1: "));
        settling.asked(P1, Some(NOT_COMPARED));
        assert!(settling.waits_for().unwrap().starts_with("partition 1: its leader has not compared yet"));
        settling.asked(P1, Some(0));
        assert_eq!(settling.waits_for(), None);
        // What is lost later is another matter.
        settling.asked(P0, Some(3));
        settling.asked(PartitionId(9), Some(3));
        assert_eq!(settling.waits_for(), None);
    }

    #[test]
    fn a_leader_that_never_says_is_not_waited_for() {
        let settling = Settling::new(1, true);
        settling.asked(P0, None);
        settling.asked(P0, None);
        assert!(settling.waits_for().is_some());
        settling.asked(P0, None);
        assert_eq!(settling.waits_for(), None);
        // One that has just become leader says that it does not know, however often leaders change.
        for said in [2, NOT_COMPARED] {
            let settling = Settling::new(1, true);
            settling.asked(P0, Some(said));
            (0..9).for_each(|_| settling.asked(P0, None));
            (0..9).for_each(|_| settling.asked(P0, Some(NOT_COMPARED)));
            assert!(settling.waits_for().is_some());
        }
    }
}
