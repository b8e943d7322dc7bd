//! The rarer commands of a partition's Raft log: bytes <-> domain. (`log.proto`; groups of writes have an encoding of
//! their own.)

use bytes::BytesMut;
use prost::Message;
use sextant_common::command::{
    Alteration, ChangeTable, Compaction, Configure, CutPoint, EndCut, EnsureTable, Flush, Freeze, Load,
    OpenCut, OpenSession, Placement, Relocation, Tick,
};
use sextant_common::error::{Error, Result};
use sextant_common::expiry;
use sextant_common::ids::{Generation, LoadId, ManifestVersion, NodeId, TableId};

use super::manifest::range_from_wire;
use super::{sst_id_from_wire, sst_id_to_wire};
use crate::v1;

/// Numbers go on behind those of a load: none may be near its end.
const LOADED_MAX: u64 = u64::MAX / 2;

/// A command whose bytes in the log are a protobuf message.
pub trait Logged: Sized {
    /// Appends its bytes.
    fn encode(&self, out: &mut BytesMut);

    fn decode(body: &[u8]) -> Result<Self>;
}

fn put(message: &impl Message, out: &mut BytesMut) {
    // A BytesMut grows, so encoding into it cannot run out of space.
    let _ = message.encode(out);
}

fn message<M: Message + Default>(body: &[u8]) -> Result<M> {
    M::decode(body).map_err(|e| Error::corrupt(format!("log entry: {e}")))
}

impl Logged for Freeze {
    fn encode(&self, out: &mut BytesMut) {
        let (table, generation) = (self.table.0, self.generation.0);
        put(&v1::LogFreeze { term: self.term, table, generation }, out);
    }

    fn decode(body: &[u8]) -> Result<Self> {
        let m: v1::LogFreeze = message(body)?;
        Ok(Self { term: m.term, table: TableId(m.table), generation: Generation(m.generation) })
    }
}

impl Logged for Flush {
    fn encode(&self, out: &mut BytesMut) {
        let m = v1::LogFlush {
            term: self.term,
            table: self.table.0,
            generation: self.generation.0,
            freeze: Some(self.freeze.into()),
            sst: self.sst.as_ref().map(Into::into),
        };
        put(&m, out);
    }

    fn decode(body: &[u8]) -> Result<Self> {
        let m: v1::LogFlush = message(body)?;
        Ok(Self {
            term: m.term,
            table: TableId(m.table),
            generation: Generation(m.generation),
            freeze: m.freeze.unwrap_or_default().into(),
            sst: m.sst.map(TryInto::try_into).transpose()?,
        })
    }
}

impl Logged for Compaction {
    /// (The kind of the entry says which fields count, so that an older server does not take what it cannot understand.)
    fn encode(&self, out: &mut BytesMut) {
        let mut outputs = self.outputs.iter().map(v1::SstMeta::from);
        let m = v1::LogCompaction {
            term: self.term,
            table: self.table.0,
            inputs: self.inputs.iter().map(|id| sst_id_to_wire(*id)).collect(),
            output: outputs.next(),
            more_outputs: outputs.collect(),
            range_start: self.range.start.clone(),
            range_end: self.range.end.clone(),
            tombstones_dropped: self.tombstones_dropped,
        };
        put(&m, out);
    }

    fn decode(body: &[u8]) -> Result<Self> {
        let m: v1::LogCompaction = message(body)?;
        let outputs = m.output.into_iter().chain(m.more_outputs);
        Ok(Self {
            term: m.term,
            table: TableId(m.table),
            inputs: m.inputs.iter().map(|id| sst_id_from_wire(id)).collect::<Result<_>>()?,
            range: range_from_wire(m.range_start, m.range_end)?,
            outputs: outputs.map(TryInto::try_into).collect::<Result<_>>()?,
            tombstones_dropped: m.tombstones_dropped,
        })
    }
}

impl Logged for Load {
    fn encode(&self, out: &mut BytesMut) {
        let m = v1::LogLoad {
            term: self.term,
            table: self.table.0,
            id: self.id.0,
            generation: self.generation.0,
            next_seq: self.next_seq,
            seq: self.seq,
            flushed: self.flushed.0,
            ssts: self.ssts.iter().map(Into::into).collect(),
        };
        put(&m, out);
    }

    fn decode(body: &[u8]) -> Result<Self> {
        let m: v1::LogLoad = message(body)?;
        let goes_back = m.flushed < m.generation || m.seq < m.next_seq;
        if goes_back || m.flushed > LOADED_MAX || m.seq > LOADED_MAX {
            return Err(Error::corrupt("log entry: a load with numbers that none has"));
        }
        Ok(Self {
            term: m.term,
            table: TableId(m.table),
            id: LoadId(m.id),
            generation: Generation(m.generation),
            next_seq: m.next_seq,
            seq: m.seq,
            flushed: Generation(m.flushed),
            ssts: m.ssts.into_iter().map(TryInto::try_into).collect::<Result<_>>()?,
        })
    }
}

impl Logged for Placement {
    fn encode(&self, out: &mut BytesMut) {
        let node = |node: Option<NodeId>| node.map_or(0, |node| node.0);
        let relocation = |r: &Relocation| v1::LogRelocation {
            id: sst_id_to_wire(r.id),
            add: node(r.add),
            remove: node(r.remove),
        };
        let relocations = self.relocations.iter().map(relocation).collect();
        put(&v1::LogPlacement { term: self.term, version: self.version.0, relocations }, out);
    }

    fn decode(body: &[u8]) -> Result<Self> {
        let m: v1::LogPlacement = message(body)?;
        let node = |node: u64| (node != 0).then_some(NodeId(node));
        let relocation = |r: v1::LogRelocation| {
            Ok(Relocation { id: sst_id_from_wire(&r.id)?, add: node(r.add), remove: node(r.remove) })
        };
        Ok(Self {
            term: m.term,
            version: ManifestVersion(m.version),
            relocations: m.relocations.into_iter().map(relocation).collect::<Result<_>>()?,
        })
    }
}

impl Logged for EnsureTable {
    fn encode(&self, out: &mut BytesMut) {
        let m = v1::LogEnsureTable {
            term: self.term,
            name: self.name.clone(),
            options: Some((&self.options).into()),
            id: self.id.map_or(0, |id| id.0),
        };
        put(&m, out);
    }

    fn decode(body: &[u8]) -> Result<Self> {
        let m: v1::LogEnsureTable = message(body)?;
        Ok(Self {
            term: m.term,
            name: m.name,
            options: m.options.unwrap_or_default().try_into()?,
            id: (m.id != 0).then_some(TableId(m.id)),
        })
    }
}

impl Logged for ChangeTable {
    fn encode(&self, out: &mut BytesMut) {
        let options = match &self.alteration {
            Alteration::Drop => None,
            Alteration::Options(options) => Some(options.into()),
        };
        let (term, table, next_seq) = (self.term, self.table.0, self.next_seq);
        put(&v1::LogChangeTable { term, table, next_seq, generation: self.generation.0, options }, out);
    }

    fn decode(body: &[u8]) -> Result<Self> {
        let m: v1::LogChangeTable = message(body)?;
        Ok(Self {
            term: m.term,
            table: TableId(m.table),
            next_seq: m.next_seq,
            generation: Generation(m.generation),
            alteration: match m.options {
                None => Alteration::Drop,
                Some(options) => Alteration::Options(options.try_into()?),
            },
        })
    }
}

impl Logged for OpenSession {
    fn encode(&self, out: &mut BytesMut) {
        let Self { term, session, time_ms } = *self;
        put(&v1::LogOpenSession { term, session, time_ms }, out);
    }

    fn decode(body: &[u8]) -> Result<Self> {
        let v1::LogOpenSession { term, session, time_ms } = message(body)?;
        Ok(Self { term, session, time_ms })
    }
}

impl Logged for Tick {
    fn encode(&self, out: &mut BytesMut) {
        put(&v1::LogTick { term: self.term, at: self.at.0 }, out);
    }

    fn decode(body: &[u8]) -> Result<Self> {
        let m: v1::LogTick = message(body)?;
        Ok(Self { term: m.term, at: expiry::Tick(m.at) })
    }
}

impl Logged for Configure {
    fn encode(&self, out: &mut BytesMut) {
        put(&v1::LogConfigure { term: self.term, configuration: Some((&self.configuration).into()) }, out);
    }

    fn decode(body: &[u8]) -> Result<Self> {
        let m: v1::LogConfigure = message(body)?;
        Ok(Self { term: m.term, configuration: m.configuration.unwrap_or_default().try_into()? })
    }
}

impl Logged for OpenCut {
    fn encode(&self, out: &mut BytesMut) {
        let point = |p: &CutPoint| v1::LogCutPoint {
            table: p.table.0,
            generation: p.generation.0,
            freezes: p.freezes,
        };
        let m = v1::LogOpenCut {
            term: self.term,
            id: self.id,
            next_seq: self.next_seq,
            tick: self.tick.0,
            opened_ms: self.opened_ms,
            lease_ms: self.lease_ms,
            tables: self.tables.iter().map(point).collect(),
        };
        put(&m, out);
    }

    fn decode(body: &[u8]) -> Result<Self> {
        let m: v1::LogOpenCut = message(body)?;
        let point = |p: v1::LogCutPoint| CutPoint {
            table: TableId(p.table),
            generation: Generation(p.generation),
            freezes: p.freezes,
        };
        Ok(Self {
            term: m.term,
            id: m.id,
            next_seq: m.next_seq,
            tick: expiry::Tick(m.tick),
            opened_ms: m.opened_ms,
            lease_ms: m.lease_ms,
            tables: m.tables.into_iter().map(point).collect(),
        })
    }
}

impl Logged for EndCut {
    fn encode(&self, out: &mut BytesMut) {
        put(&v1::LogEndCut { term: self.term, id: self.id }, out);
    }

    fn decode(body: &[u8]) -> Result<Self> {
        let v1::LogEndCut { term, id } = message(body)?;
        Ok(Self { term, id })
    }
}
