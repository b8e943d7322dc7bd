//! Changes of manifests, and what a holder is told of one.

use std::sync::Arc;

use sextant_common::error::{Error, Result};
use sextant_common::ids::{Generation, ManifestVersion, PartitionId, TableId};
use sextant_common::limits;
use sextant_common::manifest::{
    FlushRecord, ListEdit, ManifestChange, ManifestDigest, News, SstMeta, TableChange, Versions,
};

use crate::v1;

/// What a message says of a partition's manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToldOfManifest {
    pub partition: PartitionId,
    /// What there is.
    pub version: ManifestVersion,
    pub digest: ManifestDigest,
    /// Oldest first. None: the whole has to be taken.
    pub changes: Vec<ManifestChange>,
}

/// What a holder of `held` is told; it says nothing of its digest if that is None. `bytes_max`: of the changes that are told, else
/// the holder takes the whole, or asks.
pub fn news(
    versions: &Versions,
    held: ManifestVersion,
    digest: Option<ManifestDigest>,
    bytes_max: usize,
) -> v1::ManifestNews {
    let changes = match versions.news(held, digest) {
        News::Changes(changes) => changes,
        News::None | News::TooOld | News::Differs => Vec::new(),
    };
    let fit = changes.iter().map(|change| change.weight()).sum::<usize>() <= bytes_max;
    v1::ManifestNews {
        partition: versions.newest.partition.0,
        version: versions.newest.version.0,
        digest: versions.digest().0,
        changes: changes.iter().filter(|_| fit).map(|change| change.as_ref().into()).collect(),
    }
}

impl TryFrom<v1::ManifestNews> for ToldOfManifest {
    type Error = Error;

    fn try_from(n: v1::ManifestNews) -> Result<Self> {
        let partition = PartitionId(n.partition);
        Ok(ToldOfManifest {
            partition,
            version: ManifestVersion(n.version),
            digest: ManifestDigest(n.digest),
            changes: n.changes.into_iter().map(|c| change_from_wire(partition, c)).collect::<Result<_>>()?,
        })
    }
}

impl From<&ManifestChange> for v1::ManifestChange {
    fn from(c: &ManifestChange) -> Self {
        v1::ManifestChange {
            from: c.from.0,
            to: c.to.0,
            digest: c.digest.0,
            tables: c.tables.iter().map(Into::into).collect(),
            flushes: c.flushes.iter().map(Into::into).collect(),
            flushes_forgotten: c.flushes_forgotten as u32,
            flushes_known_after: c.flushes_known_after.0,
        }
    }
}

/// Of a partition that the message names.
pub fn change_from_wire(partition: PartitionId, c: v1::ManifestChange) -> Result<ManifestChange> {
    Ok(ManifestChange {
        partition,
        from: ManifestVersion(c.from),
        to: ManifestVersion(c.to),
        digest: ManifestDigest(c.digest),
        tables: c.tables.into_iter().map(TryInto::try_into).collect::<Result<_>>()?,
        flushes: c.flushes.into_iter().map(FlushRecord::try_from).collect::<Result<_>>()?,
        flushes_forgotten: c.flushes_forgotten as usize,
        flushes_known_after: ManifestVersion(c.flushes_known_after),
    })
}

impl From<&TableChange> for v1::TableChange {
    fn from(c: &TableChange) -> Self {
        let (name, options) =
            c.created.as_ref().map(|(name, options)| (name.clone(), options.into())).unzip();
        v1::TableChange {
            table: c.table.0,
            name: name.unwrap_or_default(),
            options,
            flushed_generation: c.flushed_generation.0,
            last_flush_version: c.last_flush_version.0,
            persisted: Some(c.persisted.into()),
            edits: c.edits.iter().map(Into::into).collect(),
        }
    }
}

impl TryFrom<v1::TableChange> for TableChange {
    type Error = Error;

    fn try_from(c: v1::TableChange) -> Result<Self> {
        let created = match c.options {
            None => None,
            Some(options) => {
                limits::check_table_name(&c.name)?;
                Some((c.name, options.try_into()?))
            }
        };
        Ok(TableChange {
            table: TableId(c.table),
            created,
            flushed_generation: Generation(c.flushed_generation),
            last_flush_version: ManifestVersion(c.last_flush_version),
            persisted: c.persisted.unwrap_or_default().into(),
            edits: c.edits.into_iter().map(TryInto::try_into).collect::<Result<_>>()?,
        })
    }
}

impl From<&ListEdit> for v1::ListEdit {
    fn from(e: &ListEdit) -> Self {
        v1::ListEdit {
            place: e.place as u32,
            removed: e.removed as u32,
            added: e.added.iter().map(|sst| sst.as_ref().into()).collect(),
        }
    }
}

impl TryFrom<v1::ListEdit> for ListEdit {
    type Error = Error;

    fn try_from(e: v1::ListEdit) -> Result<Self> {
        let added = e.added.into_iter().map(|sst| SstMeta::try_from(sst).map(Arc::new));
        Ok(ListEdit {
            place: e.place as usize,
            removed: e.removed as usize,
            added: added.collect::<Result<_>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use prost::Message;
    use sextant_common::ids::{LogPosition, NodeId, SstId};
    use sextant_common::key_range::KeyRange;
    use sextant_common::manifest::{Expiring, Generations, Manifest, TableManifest, TableOptions};

    use super::*;

    fn sst(counter: u32) -> SstMeta {
        SstMeta {
            id: SstId {
                partition: PartitionId(3),
                plan: LogPosition { term: 1, index: 2 },
                epoch: Default::default(),
                counter,
            },
            table: TableId(1),
            records: 7,
            tombstones: 1,
            min_key: Bytes::from_static(b"a"),
            max_key: Bytes::from_static(b"y"),
            min_seq: 1,
            max_seq: 9,
            file_bytes: 1000,
            checksum: 77,
            generations: Generations::new(1, 2),
            range: KeyRange::new("a", "z"),
            expiring: Expiring::default(),
            replicas: vec![NodeId(11), NodeId(12)],
        }
    }

    fn change() -> ManifestChange {
        let before = Manifest::empty(PartitionId(3));
        let mut after = before.clone();
        after.version = ManifestVersion(1);
        let mut table = TableManifest::new(TableId(1), "t".into(), TableOptions::default());
        table.persisted = LogPosition { term: 1, index: 5 };
        table.ssts.insert(0, sst(4));
        after.tables.push(table);
        let id = Some(sst(4).id);
        after.remember_flush(FlushRecord { version: ManifestVersion(1), table: TableId(1), id });
        ManifestChange::between(&before, &after).unwrap()
    }

    #[test]
    fn a_change_travels_as_it_is() {
        let bytes = v1::ManifestChange::from(&change()).encode_to_vec();
        assert!(bytes.len() <= change().weight(), "{} bytes", bytes.len());
        let decoded = v1::ManifestChange::decode(&bytes[..]).unwrap();
        assert_eq!(change_from_wire(PartitionId(3), decoded).unwrap(), change());
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let broken = |mend: fn(&mut v1::ManifestChange)| {
            let mut wire = v1::ManifestChange::from(&change());
            mend(&mut wire);
            change_from_wire(PartitionId(3), wire).is_err()
        };
        assert!(!broken(|_| ()));
        assert!(broken(|c| c.tables[0].name.clear()), "a new table without a name");
        assert!(broken(|c| c.tables[0].edits[0].added[0].id = Bytes::from_static(b"?")));
        assert!(broken(|c| c.flushes[0].id = Bytes::from_static(b"?")));
    }
}
