//! The manifest and what it names.

use bytes::Bytes;
use prost::Message;
use sextant_common::error::{Error, Result};
use sextant_common::expiry::Tick;
use sextant_common::ids::{Generation, ManifestVersion, NodeId, PartitionId, TableId};
use sextant_common::key_range::KeyRange;
use sextant_common::limits;
use sextant_common::manifest::{
    Compression, Expiring, FlushRecord, Generations, Manifest, OptionsChange, Origin, SstList, SstMeta,
    TableInfo, TableManifest, TableOptions,
};

use super::{sst_id_from_wire, sst_id_to_wire};
use crate::v1;

fn compression_to_wire(compression: Compression) -> u32 {
    match compression {
        Compression::None => 0,
        Compression::Lz4 => 1,
        Compression::Zstd => 2,
    }
}

fn compression_from_wire(compression: u32) -> Result<Compression> {
    match compression {
        0 => Ok(Compression::None),
        1 => Ok(Compression::Lz4),
        2 => Ok(Compression::Zstd),
        other => Err(Error::invalid(format!("unknown compression {other}"))),
    }
}

impl From<&TableOptions> for v1::TableOptions {
    fn from(o: &TableOptions) -> Self {
        v1::TableOptions {
            filter_inserts: o.filter_inserts,
            partition_prefix: o.partition_prefix,
            compression: compression_to_wire(o.compression),
            filter_prefix: o.filter_prefix,
        }
    }
}

impl From<&OptionsChange> for v1::AlterTable {
    fn from(change: &OptionsChange) -> Self {
        let compression = change.compression.map(compression_to_wire);
        Self { filter_inserts: change.filter_inserts, compression, filter_prefix: change.filter_prefix }
    }
}

impl TryFrom<v1::AlterTable> for OptionsChange {
    type Error = Error;

    fn try_from(m: v1::AlterTable) -> Result<Self> {
        let compression = m.compression.map(compression_from_wire).transpose()?;
        Ok(Self { filter_inserts: m.filter_inserts, compression, filter_prefix: m.filter_prefix })
    }
}

impl v1::KvAlterTableRequest {
    pub fn of(name: &str, change: &OptionsChange) -> Self {
        let compression = change.compression.map(compression_to_wire);
        let OptionsChange { filter_inserts, filter_prefix, .. } = *change;
        Self { name: name.to_owned(), filter_inserts, compression, filter_prefix }
    }
}

impl TryFrom<v1::KvAlterTableRequest> for OptionsChange {
    type Error = Error;

    fn try_from(r: v1::KvAlterTableRequest) -> Result<Self> {
        let compression = r.compression.map(compression_from_wire).transpose()?;
        Ok(Self { filter_inserts: r.filter_inserts, compression, filter_prefix: r.filter_prefix })
    }
}

impl TryFrom<v1::TableOptions> for TableOptions {
    type Error = Error;

    fn try_from(o: v1::TableOptions) -> Result<Self> {
        Ok(TableOptions {
            filter_inserts: o.filter_inserts,
            partition_prefix: o.partition_prefix,
            compression: compression_from_wire(o.compression)?,
            filter_prefix: o.filter_prefix,
        })
    }
}

/// What an SSTable answers for: never nothing.
pub(super) fn range_from_wire(start: Bytes, end: Bytes) -> Result<KeyRange> {
    let range = KeyRange { start, end };
    if range.is_empty() || range.start.len().max(range.end.len()) > limits::KEY_BYTES_MAX + 1 {
        return Err(Error::invalid("the range of an SSTable has keys, between two keys"));
    }
    Ok(range)
}

impl From<&SstMeta> for v1::SstMeta {
    fn from(m: &SstMeta) -> Self {
        v1::SstMeta {
            id: sst_id_to_wire(m.id),
            table: m.table.0,
            records: m.records,
            tombstones: m.tombstones,
            min_key: m.min_key.clone(),
            max_key: m.max_key.clone(),
            min_seq: m.min_seq,
            max_seq: m.max_seq,
            file_bytes: m.file_bytes,
            checksum: m.checksum,
            replicas: m.replicas.iter().map(|n| n.0).collect(),
            first_generation: m.generations.first.0,
            last_generation: m.generations.last.0,
            expiring_records: m.expiring.records,
            first_expiry: m.expiring.first.0,
            last_expiry: m.expiring.last.0,
            range_start: m.range.start.clone(),
            range_end: m.range.end.clone(),
        }
    }
}

impl TryFrom<v1::SstMeta> for SstMeta {
    type Error = Error;

    fn try_from(m: v1::SstMeta) -> Result<Self> {
        Ok(SstMeta {
            id: sst_id_from_wire(&m.id)?,
            table: TableId(m.table),
            records: m.records,
            tombstones: m.tombstones,
            min_key: m.min_key,
            max_key: m.max_key,
            min_seq: m.min_seq,
            max_seq: m.max_seq,
            file_bytes: m.file_bytes,
            checksum: m.checksum,
            replicas: m.replicas.into_iter().map(NodeId).collect(),
            generations: Generations::new(m.first_generation, m.last_generation),
            expiring: Expiring {
                records: m.expiring_records,
                first: Tick(m.first_expiry),
                last: Tick(m.last_expiry),
            },
            range: range_from_wire(m.range_start, m.range_end)?,
        })
    }
}

impl From<&Origin> for v1::TableOrigin {
    fn from(o: &Origin) -> Self {
        v1::TableOrigin {
            lineage: o.lineage,
            name: o.name.clone(),
            first_generation: o.generations.first.0,
            last_generation: o.generations.last.0,
            range_start: o.range.start.clone(),
            range_end: o.range.end.clone(),
        }
    }
}

impl TryFrom<v1::TableOrigin> for Origin {
    type Error = Error;

    fn try_from(o: v1::TableOrigin) -> Result<Self> {
        limits::check_table_name(&o.name)?;
        let generations = Generations::new(o.first_generation, o.last_generation);
        if !generations.are_known() {
            return Err(Error::invalid("an SSTable holds at least one memtable"));
        }
        let range = range_from_wire(o.range_start, o.range_end)?;
        Ok(Origin { lineage: o.lineage, name: o.name, generations, range })
    }
}

impl From<&Manifest> for v1::Manifest {
    fn from(m: &Manifest) -> Self {
        v1::Manifest {
            partition: m.partition.0,
            version: m.version.0,
            tables: m
                .tables
                .iter()
                .map(|t| v1::TableManifest {
                    table: t.table.0,
                    name: t.name.clone(),
                    options: Some((&t.options).into()),
                    flushed_generation: t.flushed_generation.0,
                    last_flush_version: t.last_flush_version.0,
                    persisted: Some(t.persisted.into()),
                    ssts: t.ssts.iter().map(Into::into).collect(),
                })
                .collect(),
            recent_flushes: m.recent_flushes.iter().map(Into::into).collect(),
            flushes_known_after: m.flushes_known_after.0,
        }
    }
}

impl TryFrom<v1::Manifest> for Manifest {
    type Error = Error;

    fn try_from(m: v1::Manifest) -> Result<Self> {
        let mut tables = m.tables.into_iter().map(table_from_wire).collect::<Result<Vec<_>>>()?;
        tables.sort_by_key(|t| t.table);
        if tables.windows(2).any(|w| w[0].table == w[1].table) {
            return Err(Error::invalid("manifest names a table twice"));
        }
        let recent_flushes =
            m.recent_flushes.into_iter().map(FlushRecord::try_from).collect::<Result<_>>()?;
        Ok(Manifest {
            partition: PartitionId(m.partition),
            version: ManifestVersion(m.version),
            tables,
            recent_flushes,
            flushes_known_after: ManifestVersion(m.flushes_known_after),
        })
    }
}

impl From<&FlushRecord> for v1::FlushRecord {
    fn from(f: &FlushRecord) -> Self {
        let id = f.id.map(sst_id_to_wire).unwrap_or_default();
        v1::FlushRecord { version: f.version.0, table: f.table.0, id }
    }
}

impl TryFrom<v1::FlushRecord> for FlushRecord {
    type Error = Error;

    fn try_from(f: v1::FlushRecord) -> Result<Self> {
        Ok(FlushRecord {
            version: ManifestVersion(f.version),
            table: TableId(f.table),
            id: if f.id.is_empty() { None } else { Some(sst_id_from_wire(&f.id)?) },
        })
    }
}

fn table_from_wire(t: v1::TableManifest) -> Result<TableManifest> {
    Ok(TableManifest {
        table: TableId(t.table),
        name: t.name,
        options: t.options.unwrap_or_default().try_into()?,
        flushed_generation: Generation(t.flushed_generation),
        last_flush_version: ManifestVersion(t.last_flush_version),
        persisted: t.persisted.unwrap_or_default().into(),
        ssts: t.ssts.into_iter().map(TryInto::try_into).collect::<Result<SstList>>()?,
    })
}

/// As it is stored, and travels in pieces: two manifests with the same bytes are the same.
pub fn encode(manifest: &Manifest) -> Vec<u8> {
    v1::Manifest::from(manifest).encode_to_vec()
}

pub fn decode(bytes: impl bytes::Buf) -> Result<Manifest> {
    let wire = v1::Manifest::decode(bytes).map_err(|e| Error::invalid(format!("no manifest: {e}")))?;
    wire.try_into()
}

impl From<TableInfo> for v1::KvTable {
    fn from(t: TableInfo) -> Self {
        v1::KvTable { id: t.id.0, options: Some((&t.options).into()), name: t.name }
    }
}

impl TryFrom<v1::KvTable> for TableInfo {
    type Error = Error;

    fn try_from(t: v1::KvTable) -> Result<Self> {
        Ok(TableInfo { id: TableId(t.id), name: t.name, options: t.options.unwrap_or_default().try_into()? })
    }
}
