//! Cuts.

use prost::Message;
use sextant_common::cut::{Cut, CutTable};
use sextant_common::error::{Error, Result};
use sextant_common::expiry::Tick;
use sextant_common::ids::{Generation, Seq, TableId};

use crate::v1;

impl From<&Cut> for v1::Cut {
    fn from(cut: &Cut) -> Self {
        v1::Cut {
            id: cut.id,
            at: cut.at,
            seq: cut.seq.0,
            tick: cut.tick.0,
            opened_ms: cut.opened_ms,
            lease_ms: cut.lease_ms,
            tables: cut.tables.iter().map(Into::into).collect(),
            term: cut.term,
            lineage: cut.lineage,
        }
    }
}

impl TryFrom<v1::Cut> for Cut {
    type Error = Error;

    fn try_from(m: v1::Cut) -> Result<Self> {
        Ok(Cut {
            id: m.id,
            at: m.at,
            seq: Seq(m.seq),
            tick: Tick(m.tick),
            opened_ms: m.opened_ms,
            lease_ms: m.lease_ms,
            tables: m.tables.into_iter().map(TryInto::try_into).collect::<Result<_>>()?,
            term: m.term,
            lineage: m.lineage,
        })
    }
}

impl From<&CutTable> for v1::CutTable {
    fn from(t: &CutTable) -> Self {
        v1::CutTable {
            table: t.table.0,
            name: t.name.clone(),
            options: Some((&t.options).into()),
            generation: t.generation.0,
            complete: t.ssts.is_some(),
            ssts: t.ssts.iter().flatten().map(Into::into).collect(),
        }
    }
}

impl TryFrom<v1::CutTable> for CutTable {
    type Error = Error;

    fn try_from(m: v1::CutTable) -> Result<Self> {
        let ssts = m.ssts.into_iter().map(TryInto::try_into).collect::<Result<Vec<_>>>()?;
        Ok(CutTable {
            table: TableId(m.table),
            name: m.name,
            options: m.options.unwrap_or_default().try_into()?,
            generation: Generation(m.generation),
            ssts: m.complete.then(|| ssts.into()),
        })
    }
}

/// Equal cuts have equal bytes.
pub fn encode(cut: &Cut) -> Vec<u8> {
    v1::Cut::from(cut).encode_to_vec()
}
