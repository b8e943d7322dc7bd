//! Wire <-> domain. What comes from the wire is validated here; an `Err` names the field.
//!
//! By what is converted: ids ([here](self)), the [`manifest`] and [changes](manifest_change) of it, [`cut`]s, pages of an [`archive`], [`operation`]s and what is
//! answered, [`configuration`]s,
//! orders about [`sstable`]s, recoveries. What is stored is made of bytes and into bytes: [`command`]s of the log, the
//! [`snapshot`] of a partition, so that nobody else knows that they are protobuf.

pub mod archive;
pub mod command;
pub mod configuration;
pub mod cut;
pub mod manifest;
pub mod manifest_change;
pub mod operation;
mod recovery;
pub mod snapshot;
mod sstable;

use bytes::Bytes;
use sextant_common::error::{Error, Result};
use sextant_common::ids::{Epoch, LogPosition, SstId};

use crate::v1;

impl From<Epoch> for v1::Epoch {
    fn from(e: Epoch) -> Self {
        v1::Epoch { term: e.term, incarnation: e.incarnation }
    }
}

impl From<v1::Epoch> for Epoch {
    fn from(e: v1::Epoch) -> Self {
        Epoch { term: e.term, incarnation: e.incarnation }
    }
}

impl From<LogPosition> for v1::LogPosition {
    fn from(p: LogPosition) -> Self {
        v1::LogPosition { term: p.term, index: p.index }
    }
}

impl From<v1::LogPosition> for LogPosition {
    fn from(p: v1::LogPosition) -> Self {
        LogPosition { term: p.term, index: p.index }
    }
}

/// An SSTable id as it travels: 36 bytes.
pub fn sst_id_to_wire(id: SstId) -> Bytes {
    Bytes::copy_from_slice(&id.to_bytes())
}

pub fn sst_id_from_wire(bytes: &[u8]) -> Result<SstId> {
    SstId::from_bytes(bytes).ok_or_else(|| Error::invalid("bad SSTable id"))
}
