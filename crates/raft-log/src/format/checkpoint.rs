//! Checkpoints: the state of all partitions at one lsn, so that older segments can go.
//!
//! ```text
//!  0 version u32 = 1   4 number of partitions u32   8 floor u64
//! 16 per partition, 80 bytes: id u32, flags u32 (1 vote, 2 vote is committed, 4 committed, 8 purged, 16 entries),
//!    vote term u64 and node u64, committed term u64 and index u64, purged term u64 and index u64,
//!    first index u64, last term u64, last index u64
//! ```
//!
//! `floor`: no record with a smaller lsn matters any more. The lsn of a checkpoint is the one before its batch's `first_lsn`.

use super::fields::{u32_at, u64_at};
use super::record::RecordKind;

const CHECKPOINT_VERSION: u32 = 1;
const HEAD_BYTES: usize = 16;
const PARTITION_BYTES: usize = 80;

/// A term and an index.
pub(crate) type Position = (u64, u64);

/// What the records of a partition add up to, without the entries themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogMeta {
    /// Term, node, committed.
    pub vote: Option<(u64, u64, bool)>,
    pub committed: Option<Position>,
    pub purged: Option<Position>,
    /// First index, and the last entry's term and index.
    pub entries: Option<(u64, Position)>,
}

impl LogMeta {
    /// Takes the next record of the partition into account.
    pub fn apply(&mut self, kind: RecordKind, detail: u8, term: u64, index: u64) {
        match kind {
            RecordKind::Entry => {
                let first = self.entries.map_or(index, |(first, _)| first);
                self.entries = Some((first, (term, index)));
            }
            RecordKind::Vote => self.vote = Some((term, index, detail == 1)),
            RecordKind::Committed => self.committed = (detail == 1).then_some((term, index)),
            RecordKind::Truncate => {
                let first = self.entries.map(|(first, _)| first);
                self.entries =
                    first.filter(|first| detail == 1 && *first <= index).map(|f| (f, (term, index)));
            }
            RecordKind::Purge => {
                self.purged = Some((term, index));
                self.entries = self
                    .entries
                    .filter(|(_, last)| last.1 > index)
                    .map(|(first, last)| (first.max(index + 1), last));
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    pub floor: u64,
    pub partitions: Vec<(u32, LogMeta)>,
}

impl Checkpoint {
    pub fn encoded_len(partitions: usize) -> usize {
        HEAD_BYTES + partitions * PARTITION_BYTES
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::encoded_len(self.partitions.len()));
        out.extend_from_slice(&CHECKPOINT_VERSION.to_le_bytes());
        out.extend_from_slice(&(self.partitions.len() as u32).to_le_bytes());
        out.extend_from_slice(&self.floor.to_le_bytes());
        for (id, meta) in &self.partitions {
            let (vote_term, vote_node, vote_committed) = meta.vote.unwrap_or_default();
            let flags = u32::from(meta.vote.is_some())
                | u32::from(vote_committed) << 1
                | u32::from(meta.committed.is_some()) << 2
                | u32::from(meta.purged.is_some()) << 3
                | u32::from(meta.entries.is_some()) << 4;
            out.extend_from_slice(&id.to_le_bytes());
            out.extend_from_slice(&flags.to_le_bytes());
            let (committed, purged) = (meta.committed.unwrap_or_default(), meta.purged.unwrap_or_default());
            let (first, last) = meta.entries.unwrap_or_default();
            for field in
                [vote_term, vote_node, committed.0, committed.1, purged.0, purged.1, first, last.0, last.1]
            {
                out.extend_from_slice(&field.to_le_bytes());
            }
        }
        out
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < HEAD_BYTES || u32_at(bytes, 0) != CHECKPOINT_VERSION {
            return None;
        }
        let count = u32_at(bytes, 4) as usize;
        if bytes.len() != Self::encoded_len(count) {
            return None;
        }
        let partitions = bytes[HEAD_BYTES..].chunks_exact(PARTITION_BYTES).map(|part| {
            let flags = u32_at(part, 4);
            let field = |n: usize| u64_at(part, 8 + 8 * n);
            let meta = LogMeta {
                vote: (flags & 1 != 0).then(|| (field(0), field(1), flags & 2 != 0)),
                committed: (flags & 4 != 0).then(|| (field(2), field(3))),
                purged: (flags & 8 != 0).then(|| (field(4), field(5))),
                entries: (flags & 16 != 0).then(|| (field(6), (field(7), field(8)))),
            };
            (u32_at(part, 0), meta)
        });
        Some(Self { floor: u64_at(bytes, 8), partitions: partitions.collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_round_trips() {
        let full = LogMeta {
            vote: Some((1, 2, true)),
            committed: Some((3, 4)),
            purged: Some((5, 6)),
            entries: Some((7, (8, 9))),
        };
        let checkpoint = Checkpoint {
            floor: 10,
            partitions: vec![
                (0, LogMeta::default()),
                (7, full),
                (9, LogMeta { vote: Some((0, 0, false)), ..Default::default() }),
            ],
        };
        let bytes = checkpoint.encode();
        assert_eq!(bytes.len(), Checkpoint::encoded_len(3));
        assert_eq!(Checkpoint::decode(&bytes), Some(checkpoint));
        assert_eq!(Checkpoint::decode(&bytes[..bytes.len() - 1]), None);
        assert_eq!(Checkpoint::decode(&[]), None);
    }

    #[test]
    fn records_add_up() {
        use RecordKind::*;
        let mut meta = LogMeta::default();
        for (kind, detail, term, index) in [(Entry, 1, 1, 5), (Entry, 1, 1, 6), (Entry, 1, 2, 7)] {
            meta.apply(kind, detail, term, index);
        }
        assert_eq!(meta.entries, Some((5, (2, 7))));
        meta.apply(Truncate, 1, 1, 6);
        assert_eq!(meta.entries, Some((5, (1, 6))));
        meta.apply(Purge, 1, 1, 5);
        assert_eq!((meta.purged, meta.entries), (Some((1, 5)), Some((6, (1, 6)))));
        meta.apply(Purge, 1, 3, 20);
        assert_eq!((meta.purged, meta.entries), (Some((3, 20)), None));
        meta.apply(Entry, 0, 3, 21);
        meta.apply(Truncate, 0, 0, 0);
        assert_eq!(meta.entries, None);
        meta.apply(Vote, 1, 4, 2);
        meta.apply(Committed, 1, 3, 20);
        assert_eq!((meta.vote, meta.committed), (Some((4, 2, true)), Some((3, 20))));
    }
}
