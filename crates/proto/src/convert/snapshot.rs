//! The snapshot of a partition: bytes <-> domain. (`log.proto`.)

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use sextant_common::error::{Error, Result};
use sextant_common::expiry::Tick;
use sextant_common::ids::{Generation, LoadId, LogPosition, PartitionId, Seq, TableId};
use sextant_common::manifest::{Manifest, TableInfo};
use sextant_common::operation::{RecordedOutcome, Told};
use sextant_common::snapshot::{Checkpoint, DroppedTables, HeldCuts, SessionMemory, Snapshot};

use super::operation::WireTold;
use crate::v1;

const FORMAT: u32 = 1;
/// Its configuration has a format above 0: what comes after it in the log may be newer than an older server knows.
const FORMAT_RAISED: u32 = 2;
/// Positions, seqs, generations and versions are counted on from those of the snapshot: none may be near its end.
const NUMBER_MAX: u64 = u64::MAX / 2;

/// Sessions as they were read, by their ids.
pub type SessionList = Vec<(u64, SessionMemory)>;

/// `sessions`: those of the snapshot, by rising id.
pub fn encode<'s, S>(
    snapshot: &Snapshot<S>,
    sessions: impl Iterator<Item = (u64, &'s SessionMemory)>,
    partition: PartitionId,
) -> Vec<u8> {
    let c = &snapshot.checkpoint;
    let generations =
        c.generations.iter().map(|(t, g)| v1::SnapshotGeneration { table: t.0, generation: g.0 });
    v1::PartitionSnapshot {
        format: if snapshot.configuration.as_ref().is_some_and(|(c, _)| c.format > 0) {
            FORMAT_RAISED
        } else {
            FORMAT
        },
        partition: partition.0,
        at: Some(c.at.into()),
        next_seq: c.next_seq,
        time_ms: c.time_ms,
        tick: c.tick.0,
        generations: generations.collect(),
        sessions: sessions.map(|(id, session)| session_to_wire(id, session)).collect(),
        membership: c.membership.clone(),
        manifest: Some((&snapshot.manifest).into()),
        next_table: snapshot.next_table,
        configuration: snapshot.configuration.as_ref().map(|(c, _)| c.into()),
        configured_at: snapshot.configuration.as_ref().map_or(0, |(_, at)| *at),
        cuts: snapshot.cuts.cuts.iter().map(|cut| (&**cut).into()).collect(),
        cuts_applied: snapshot.cuts.applied,
        loads: snapshot.loads.iter().map(|id| id.0).collect(),
        dropped: snapshot.dropped.newest.iter().map(dropped_to_wire).collect(),
        dropped_ids: snapshot.dropped.ids.iter().map(|id| id.0).collect(),
    }
    .encode_to_vec()
}

/// Whether the lengths of its configuration make sense is for whoever counts with them to say.
pub fn decode(bytes: &[u8], partition: PartitionId) -> Result<Snapshot<SessionList>> {
    let bad = |what: String| Error::corrupt(format!("snapshot of partition {partition}: {what}"));
    let m = v1::PartitionSnapshot::decode(bytes).map_err(|e| bad(e.to_string()))?;
    if !(FORMAT..=FORMAT_RAISED).contains(&m.format) {
        return Err(bad(format!("unknown format {}", m.format)));
    }
    if m.partition != partition.0 {
        return Err(bad(format!("is of partition {}", m.partition)));
    }
    let sessions = m.sessions.into_iter().map(session_from_wire).collect();
    let manifest: Manifest = m.manifest.unwrap_or_default().try_into()?;
    let at: LogPosition = m.at.unwrap_or_default().into();
    let flushed = manifest.tables.iter().map(|t| t.flushed_generation.0);
    let generations = m.generations.iter().map(|g| g.generation).chain(flushed);
    if generations
        .chain([at.index, m.next_seq, manifest.version.0, m.cuts_applied])
        .any(|number| number > NUMBER_MAX)
    {
        return Err(bad("a number that no log reaches".into()));
    }
    if manifest.partition != partition {
        return Err(bad("its manifest is of another partition".into()));
    }
    let generations = m.generations.into_iter().map(|g| (TableId(g.table), Generation(g.generation)));
    let cuts = m.cuts.into_iter().map(|cut| Ok(Arc::new(cut.try_into()?)));
    let cuts = HeldCuts { applied: m.cuts_applied, cuts: cuts.collect::<Result<_>>()? };
    Ok(Snapshot {
        checkpoint: Checkpoint {
            at,
            next_seq: m.next_seq.max(1),
            time_ms: m.time_ms,
            tick: Tick(m.tick),
            generations: generations.collect(),
            sessions,
            membership: Bytes::from(m.membership.to_vec()),
        },
        manifest,
        next_table: m.next_table.max(1),
        configuration: match m.configuration {
            Some(c) => Some((c.try_into()?, m.configured_at)),
            None => None,
        },
        cuts,
        loads: m.loads.into_iter().map(LoadId).collect(),
        dropped: DroppedTables {
            ids: m.dropped_ids.into_iter().map(TableId).collect(),
            newest: m.dropped.into_iter().map(dropped_from_wire).collect::<Result<_>>()?,
        },
    })
}

fn dropped_to_wire(table: &TableInfo) -> v1::DroppedTable {
    v1::DroppedTable { id: table.id.0, name: table.name.clone(), options: Some((&table.options).into()) }
}

fn dropped_from_wire(table: v1::DroppedTable) -> Result<TableInfo> {
    let v1::DroppedTable { id, name, options } = table;
    Ok(TableInfo { id: TableId(id), name, options: options.unwrap_or_default().try_into()? })
}

fn session_to_wire(id: u64, session: &SessionMemory) -> v1::SnapshotSession {
    let op = |r: &RecordedOutcome| {
        let WireTold { value, length, value_forgotten, misfit } =
            r.told.as_deref().map_or_else(WireTold::default, Into::into);
        v1::SnapshotOpResult {
            applied: r.applied,
            existed: r.existed,
            seq: r.seq.0,
            failed: r.failed,
            value,
            length,
            value_forgotten,
            misfit,
        }
    };
    let answer = |(number, outcomes): (&u64, &Arc<[RecordedOutcome]>)| v1::SnapshotResult {
        number: *number,
        ops: outcomes.iter().map(op).collect(),
    };
    v1::SnapshotSession {
        id,
        last_used_ms: session.last_used_ms,
        floor: session.floor,
        results: session.answers.iter().map(answer).collect(),
    }
}

fn session_from_wire(s: v1::SnapshotSession) -> (u64, SessionMemory) {
    let op = |o: v1::SnapshotOpResult| {
        let v1::SnapshotOpResult { applied, existed, seq, failed, value, length, value_forgotten, misfit } =
            o;
        let told = match (WireTold { value, length, value_forgotten, misfit }).into() {
            Told::Nothing => None,
            told => Some(Box::new(told)),
        };
        RecordedOutcome { applied, existed, failed, seq: Seq(seq), told }
    };
    let answers = s.results.into_iter().map(|r| (r.number, r.ops.into_iter().map(op).collect()));
    let answers: BTreeMap<u64, Arc<[RecordedOutcome]>> = answers.collect();
    (s.id, SessionMemory::new(s.last_used_ms, s.floor, answers))
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
        let decode = |m: v1::PartitionSnapshot| decode(&m.encode_to_vec(), id);
        decode(good()).unwrap();
        let mistakes: [fn(&mut v1::PartitionSnapshot); 5] = [
            |m| m.at = Some(v1::LogPosition { term: 2, index: u64::MAX }),
            |m| m.next_seq = u64::MAX,
            |m| m.cuts_applied = u64::MAX,
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
