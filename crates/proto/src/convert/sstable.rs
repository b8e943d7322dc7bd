//! Records of scans and ingests; what leaders and sstable servers say to each other about SSTables.

use sextant_common::error::{Error, Result};
use sextant_common::expiry::Tick;
use sextant_common::ids::{Seq, TableId};
use sextant_common::marks::Marks;
use sextant_common::sstable::{
    CompactionOrder, Contents, CopyOrder, Holding, IngestOrder, OrderNumber, RecordVersion,
};

use super::{sst_id_from_wire, sst_id_to_wire};
use crate::v1;

impl From<RecordVersion> for v1::ScanRecord {
    fn from(record: RecordVersion) -> Self {
        Self {
            key: record.key,
            tombstone: record.value.is_none(),
            value: record.value.unwrap_or_default(),
            seq: record.seq.0,
            expires_at: record.marks.word(),
        }
    }
}

impl From<v1::ScanRecord> for RecordVersion {
    fn from(r: v1::ScanRecord) -> Self {
        Self {
            key: r.key,
            seq: Seq(r.seq),
            value: (!r.tombstone).then_some(r.value),
            marks: if r.tombstone { Marks::NONE } else { Marks::from_word(r.expires_at) },
        }
    }
}

impl From<OrderNumber> for v1::Order {
    fn from(OrderNumber { lineage, term, number }: OrderNumber) -> Self {
        Self { lineage, term, number }
    }
}

impl From<v1::Order> for OrderNumber {
    fn from(v1::Order { lineage, term, number }: v1::Order) -> Self {
        Self { lineage, term, number }
    }
}

impl From<Holding> for v1::Holding {
    fn from(holding: Holding) -> Self {
        let contents = holding.contents.as_ref();
        Self {
            id: sst_id_to_wire(holding.id),
            damaged: holding.damaged,
            meta: contents.map(|c| (&c.meta).into()),
            options: contents.map(|c| (&c.options).into()),
            origin: contents.and_then(|c| c.origin.as_ref()).map(Into::into),
        }
    }
}

impl TryFrom<v1::Holding> for Holding {
    type Error = Error;

    fn try_from(m: v1::Holding) -> Result<Self> {
        let contents = match m.meta {
            None => None,
            Some(meta) => Some(Contents {
                meta: meta.try_into()?,
                options: m.options.unwrap_or_default().try_into()?,
                origin: m.origin.map(TryInto::try_into).transpose()?,
            }),
        };
        Ok(Holding { id: sst_id_from_wire(&m.id)?, damaged: m.damaged, contents })
    }
}

impl From<&CompactionOrder> for v1::CompactRequest {
    fn from(order: &CompactionOrder) -> Self {
        Self {
            inputs: order.inputs.iter().map(|id| sst_id_to_wire(*id)).collect(),
            gather: order.gather.iter().cloned().map(Into::into).collect(),
            output: order.outputs.first().map(|id| sst_id_to_wire(*id)).unwrap_or_default(),
            more_outputs: order.outputs.iter().skip(1).map(|id| sst_id_to_wire(*id)).collect(),
            cuts: order.cuts.clone(),
            output_bytes: order.output_bytes,
            table: order.table.0,
            options: Some((&order.options).into()),
            drop_tombstones: order.drop_tombstones,
            expired_by: order.expired_by.0,
            origin: order.origin.as_ref().map(Into::into),
        }
    }
}

impl TryFrom<v1::CompactRequest> for CompactionOrder {
    type Error = Error;

    fn try_from(m: v1::CompactRequest) -> Result<Self> {
        Ok(Self {
            outputs: std::iter::once(&m.output)
                .chain(&m.more_outputs)
                .map(|id| sst_id_from_wire(id))
                .collect::<Result<_>>()?,
            gather: m.gather.into_iter().map(TryInto::try_into).collect::<Result<_>>()?,
            cuts: m.cuts,
            output_bytes: m.output_bytes,
            table: TableId(m.table),
            options: m.options.unwrap_or_default().try_into()?,
            drop_tombstones: m.drop_tombstones,
            expired_by: Tick(m.expired_by),
            origin: m.origin.map(TryInto::try_into).transpose()?,
            inputs: m.inputs.iter().map(|id| sst_id_from_wire(id)).collect::<Result<_>>()?,
        })
    }
}

impl From<CopyOrder> for v1::CopyRequest {
    fn from(order: CopyOrder) -> Self {
        let CopyOrder { id, checksum, file_bytes, sources, order } = order;
        Self { id: sst_id_to_wire(id), checksum, file_bytes, sources, order: order.map(Into::into) }
    }
}

impl TryFrom<v1::CopyRequest> for CopyOrder {
    type Error = Error;

    fn try_from(m: v1::CopyRequest) -> Result<Self> {
        let v1::CopyRequest { id, checksum, file_bytes, sources, order } = m;
        Ok(Self { id: sst_id_from_wire(&id)?, checksum, file_bytes, sources, order: order.map(Into::into) })
    }
}

impl From<&IngestOrder> for v1::IngestHeader {
    fn from(order: &IngestOrder) -> Self {
        Self {
            id: sst_id_to_wire(order.id),
            table: order.table.0,
            options: Some((&order.options).into()),
            origin: order.origin.as_ref().map(Into::into),
        }
    }
}

impl TryFrom<v1::IngestHeader> for IngestOrder {
    type Error = Error;

    fn try_from(m: v1::IngestHeader) -> Result<Self> {
        Ok(Self {
            id: sst_id_from_wire(&m.id)?,
            table: TableId(m.table),
            options: m.options.unwrap_or_default().try_into()?,
            origin: m.origin.map(TryInto::try_into).transpose()?,
        })
    }
}
