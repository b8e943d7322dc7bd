//! A partition's snapshot: the newest manifest, and, **as of the global persistence point**, seqs, generations, sessions and
//! membership (taken "as of now" they would make replayed groups mismatch and vanish). No memtable is ever dumped.
//!
//! The global persistence point is the newest checkpoint (a freeze) before which everything of every table is durable as
//! SSTables (PASV's global epoch); each table's own flush flag lets replay skip what it covers (partial recovery).

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use sextant_common::error::{Error, Result};
use sextant_common::ids::{Generation, LogPosition, PartitionId, TableId};
use sextant_common::manifest::Manifest;
use sextant_proto::v1;

use super::sessions::{Session, Sessions};
use super::table::TableState;
use super::{Checkpoint, Partition};
use crate::command::Configuration;
use crate::command::group::OpResult;

const FORMAT: u32 = 1;
/// Positions, seqs, generations and versions are counted on from those of the snapshot: none may be near its end.
const NUMBER_MAX: u64 = u64::MAX / 2;

/// A decoded snapshot.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub checkpoint: Checkpoint,
    pub manifest: Manifest,
    pub next_table: u32,
    /// The newest, and the index of its entry.
    pub configuration: Option<(Configuration, u64)>,
}

impl Partition {
    /// The newest checkpoint from which replay can start.
    fn persistence_point(&self) -> Option<&Checkpoint> {
        let first =
            self.tables.values().filter_map(TableState::first_unflushed_index).min().unwrap_or(u64::MAX);
        self.checkpoints.iter().rev().find(|c| c.at.index < first && c.at.index <= self.committed_index)
    }

    /// The snapshot to be taken now; forgets checkpoints that are older than it. None: nothing was flushed yet.
    pub fn snapshot(&mut self) -> Option<Snapshot> {
        let checkpoint = self.persistence_point()?.clone();
        self.checkpoints.retain(|c| c.at.index >= checkpoint.at.index);
        Some(Snapshot {
            checkpoint,
            manifest: (*self.manifest).clone(),
            next_table: self.next_table,
            configuration: self.configuration.clone(),
        })
    }

    /// A partition that starts from a snapshot: memtables empty, to be filled from the log after it.
    pub fn restore(id: PartitionId, snapshot: &Snapshot) -> Self {
        let Snapshot { checkpoint, manifest, next_table, configuration } = snapshot;
        let mut partition = Partition::new(id);
        partition.last = checkpoint.at;
        partition.next_index = checkpoint.at.index + 1;
        partition.committed_index = checkpoint.at.index;
        partition.next_seq = checkpoint.next_seq;
        partition.time_ms = checkpoint.time_ms;
        partition.sessions = checkpoint.sessions.clone();
        partition.membership = checkpoint.membership.clone();
        partition.checkpoints.push_back(checkpoint.clone());
        partition.next_table = *next_table;
        partition.configuration = configuration.clone();
        for table in &manifest.tables {
            let generation = checkpoint.generations.get(&table.table).copied().unwrap_or(Generation(1));
            let mut state = TableState::new(generation);
            state.flushed_generation = table.flushed_generation;
            state.dropped_version = table.last_flush_version;
            partition.tables.insert(table.table, state);
        }
        partition.manifest = Arc::new(manifest.clone());
        partition
    }

    /// Log position up to which nothing is needed from the log any more.
    pub fn persisted(&self) -> LogPosition {
        self.persistence_point().map_or(LogPosition::default(), |c| c.at)
    }
}

impl Snapshot {
    pub fn encode(&self, partition: PartitionId) -> Vec<u8> {
        let c = &self.checkpoint;
        let sessions = c.sessions.iter().map(|(id, s)| v1::SnapshotSession {
            id,
            last_used_ms: s.last_used_ms,
            floor: s.floor,
            results: s
                .results
                .iter()
                .map(|(number, ops)| v1::SnapshotResult {
                    number: *number,
                    ops: ops
                        .iter()
                        .map(|r| v1::SnapshotOpResult {
                            applied: r.applied,
                            existed: r.existed,
                            seq: r.seq,
                            failed: r.failed,
                        })
                        .collect(),
                })
                .collect(),
        });
        v1::PartitionSnapshot {
            format: FORMAT,
            partition: partition.0,
            at: Some(c.at.into()),
            next_seq: c.next_seq,
            time_ms: c.time_ms,
            generations: c
                .generations
                .iter()
                .map(|(t, g)| v1::SnapshotGeneration { table: t.0, generation: g.0 })
                .collect(),
            sessions: sessions.collect(),
            membership: c.membership.clone(),
            manifest: Some((&self.manifest).into()),
            next_table: self.next_table,
            configuration: self.configuration.as_ref().map(|(c, _)| c.into()),
            configured_at: self.configuration.as_ref().map_or(0, |(_, at)| *at),
        }
        .encode_to_vec()
    }

    pub fn decode(bytes: &[u8], partition: PartitionId) -> Result<Self> {
        let bad = |what: String| Error::corrupt(format!("snapshot of partition {partition}: {what}"));
        let m = v1::PartitionSnapshot::decode(bytes).map_err(|e| bad(e.to_string()))?;
        if m.format != FORMAT {
            return Err(bad(format!("unknown format {}", m.format)));
        }
        if m.partition != partition.0 {
            return Err(bad(format!("is of partition {}", m.partition)));
        }
        let mut sessions = Sessions::default();
        for s in m.sessions {
            let results = s.results.into_iter().map(|r| {
                let ops: Arc<[OpResult]> = r
                    .ops
                    .into_iter()
                    .map(|o| OpResult {
                        applied: o.applied,
                        existed: o.existed,
                        failed: o.failed,
                        seq: o.seq,
                    })
                    .collect();
                (r.number, ops)
            });
            let results: BTreeMap<u64, Arc<[OpResult]>> = results.collect();
            sessions.restore(
                s.id,
                Session {
                    last_used_ms: s.last_used_ms,
                    floor: s.floor,
                    ops: results.values().map(|r| r.len()).sum(),
                    results,
                },
            );
        }
        let manifest: Manifest = m.manifest.unwrap_or_default().try_into()?;
        let at: LogPosition = m.at.unwrap_or_default().into();
        let flushed = manifest.tables.iter().map(|t| t.flushed_generation.0);
        let generations = m.generations.iter().map(|g| g.generation).chain(flushed);
        if generations.chain([at.index, m.next_seq, manifest.version.0]).any(|number| number > NUMBER_MAX) {
            return Err(bad("a number that no log reaches".into()));
        }
        if manifest.partition != partition {
            return Err(bad("its manifest is of another partition".into()));
        }
        Ok(Snapshot {
            checkpoint: Checkpoint {
                at,
                next_seq: m.next_seq.max(1),
                time_ms: m.time_ms,
                generations: m
                    .generations
                    .into_iter()
                    .map(|g| (TableId(g.table), Generation(g.generation)))
                    .collect(),
                sessions,
                membership: Bytes::from(m.membership.to_vec()),
            },
            manifest,
            next_table: m.next_table.max(1),
            configuration: match m.configuration {
                Some(c) => Some((c.try_into()?, m.configured_at)),
                None => None,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_from_which_a_partition_could_not_go_on_are_refused() {
        let id = PartitionId(3);
        let good = || v1::PartitionSnapshot {
            format: FORMAT,
            partition: id.0,
            at: Some(v1::LogPosition { term: 2, index: 7 }),
            next_seq: 5,
            generations: vec![v1::SnapshotGeneration { table: 1, generation: 4 }],
            manifest: Some(v1::Manifest { partition: id.0, ..Default::default() }),
            ..Default::default()
        };
        let decode = |m: v1::PartitionSnapshot| Snapshot::decode(&m.encode_to_vec(), id);
        decode(good()).unwrap();
        let mistakes: [fn(&mut v1::PartitionSnapshot); 4] = [
            |m| m.at = Some(v1::LogPosition { term: 2, index: u64::MAX }),
            |m| m.next_seq = u64::MAX,
            |m| m.generations[0].generation = u64::MAX,
            |m| m.manifest.as_mut().unwrap().version = u64::MAX,
        ];
        for mistake in mistakes {
            let mut bad = good();
            mistake(&mut bad);
            assert!(decode(bad).unwrap_err().message.contains("no log reaches"));
        }
    }
}
