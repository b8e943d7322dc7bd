//! Backups that were never of a cluster.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use sextant_common::archive::{LogGroup, LogTable, LogWrites};
use sextant_common::cut::{Cut, CutTable};
use sextant_common::ids::{Epoch, LogPosition, PartitionId, Seq, SstId, TableId};
use sextant_common::manifest::SstMeta;
use sextant_common::sstable::RecordVersion;
use sextant_environment::Env;
use sextant_environment::vfs::VfsFile;
use sextant_sstable_server::table::{Content, TableWriter};

use crate::archive::reached::Mark;
use crate::archive::segment::{History, Name, Segment, encode};
use crate::manifest::{Backup, File};
use crate::records::{file_of, nameless};
use crate::repository::Repository;

pub fn sst(counter: u32) -> SstMeta {
    let id =
        SstId { partition: PartitionId(0), plan: LogPosition::default(), epoch: Epoch::default(), counter };
    SstMeta {
        id,
        table: TableId(1),
        records: 1,
        tombstones: 0,
        min_key: "a".into(),
        max_key: "b".into(),
        min_seq: 1,
        max_seq: 1,
        file_bytes: 3,
        checksum: 7,
        generations: Default::default(),
        range: Default::default(),
        expiring: Default::default(),
        replicas: Vec::new(),
    }
}

/// Of one table, with these SSTables.
pub fn cut(ssts: impl Iterator<Item = SstMeta>) -> Cut {
    let table = CutTable {
        table: TableId(1),
        name: "t".into(),
        options: Default::default(),
        generation: Default::default(),
        ssts: Some(ssts.collect()),
    };
    Cut {
        id: 1,
        at: 1,
        seq: Default::default(),
        tick: Default::default(),
        opened_ms: 1,
        lease_ms: 1,
        tables: vec![table],
        term: 1,
        lineage: 1,
    }
}

pub async fn backup(repository: &Repository, name: &str, created_ms: u64, ssts: &[u32]) {
    of_another_cluster(repository, name, created_ms, 1, ssts).await;
}

/// Of the one with this lineage. (That of the others is 1.)
pub async fn of_another_cluster(
    repository: &Repository,
    name: &str,
    created_ms: u64,
    lineage: u64,
    ssts: &[u32],
) {
    let cut = Cut { lineage, ..cut(ssts.iter().map(|counter| sst(*counter))) };
    let cuts = BTreeMap::from([(PartitionId(0), cut)]);
    let backup = Backup { name: name.into(), created_ms, cuts, is_part: false };
    for File { id, checksum, bytes } in backup.files() {
        let mut to = repository.write_table(&File { id, checksum, bytes });
        to.write(b"sst").await.unwrap();
        to.finish().await.unwrap();
    }
    repository.commit(&backup).await.unwrap();
}

/// A file with these keys, and whether each is a tombstone.
pub fn table_file(dir: &Path, counter: u32, keys: &[(String, bool)]) -> (Arc<dyn VfsFile>, SstMeta) {
    let file = nameless(&Env::real(), dir, &file_of(&sst(counter))).unwrap();
    let mut writer = TableWriter::new(file.clone(), sst(counter).id, TableId(1), Default::default());
    for (key, is_dead) in keys {
        let value = (!is_dead).then_some(b"v".as_slice());
        writer.add(key.as_bytes(), 1, Content::new(value, Default::default())).unwrap();
    }
    (file, writer.finish().unwrap())
}

/// The same, in a repository.
pub async fn stored(repository: &Repository, dir: &Path, counter: u32, keys: &[(String, bool)]) -> SstMeta {
    let (file, meta) = table_file(dir, counter, keys);
    let mut bytes = vec![0; meta.file_bytes as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let mut to = repository.write_table(&file_of(&meta));
    to.write(&bytes).await.unwrap();
    to.finish().await.unwrap();
    meta
}

/// Of this table only.
pub async fn partial(repository: &Repository, name: &str, created_ms: u64, table: &str) {
    let mut cut = cut([sst(1)].into_iter());
    cut.tables[0].name = table.into();
    let cuts = BTreeMap::from([(PartitionId(0), cut)]);
    repository.commit(&Backup { name: name.into(), created_ms, cuts, is_part: true }).await.unwrap();
}

/// A bit of its manifest is another one.
pub async fn damage(repository: &Repository, name: &str) {
    let at = object_store::path::Path::from(format!("backups/{name}/manifest"));
    let mut bytes = repository.read_if_there(&at).await.unwrap().unwrap().to_vec();
    bytes[20] ^= 1;
    repository.replace(&at, bytes.into()).await.unwrap();
}

/// An entry that wrote: keys, and values or tombstones.
pub fn group(index: u64, time_ms: u64, records: &[(&'static str, Option<&'static str>)]) -> LogGroup {
    let record = |(at, (key, value)): (usize, &(&'static str, Option<&'static str>))| RecordVersion {
        key: (*key).into(),
        seq: Seq(index * 100 + at as u64),
        value: value.map(Into::into),
        marks: Default::default(),
    };
    let records = records.iter().enumerate().map(record).collect();
    LogGroup { index, time_ms, writes: vec![LogWrites { table: TableId(1), records }] }
}

/// The table that they write.
pub fn log_table() -> LogTable {
    LogTable { id: TableId(1), name: "t".into(), options: Default::default() }
}

/// Of one group, which is the last entry.
pub fn segment(history: History, after: u64, to: u64) -> Segment {
    let at = |index| LogPosition { term: 1, index };
    let (after, from_ms, until_ms) = (at(after), to * 10, to * 10 + 5);
    let name = Name { history, after, to: at(to), from_ms, until_ms, ends_by_load: false };
    Segment { name, groups: vec![group(to, from_ms, &[("k", Some("v"))])], tables: vec![log_table()] }
}

/// What a follower leaves in a repository: two segments, and how far it is.
pub async fn archived(repository: &Repository, history: History) -> [Segment; 2] {
    let segments = [segment(history, 1, 5), segment(history, 5, 9)];
    for segment in &segments {
        repository.write_segment(&segment.name, encode(segment.clone()).into()).await.unwrap();
    }
    let mark = BTreeMap::from([(segments[1].name.to, 200)]);
    let name = format!("{:016x}", history.lineage);
    repository.write_marks(&name, &BTreeMap::from([(history, mark)])).await.unwrap();
    segments
}

/// What was left there is there.
pub async fn assert_archived(repository: &Repository, segments: &[Segment]) {
    let archive = repository.archive().await.unwrap();
    let history = segments[0].name.history;
    let names: Vec<Name> = segments.iter().map(|segment| segment.name).collect();
    assert_eq!(archive.segments_of(&history), names);
    assert_eq!(archive.marks_of(&history), [Mark { archived: names[names.len() - 1].to, until_ms: 200 }]);
    for segment in segments {
        assert_eq!(&repository.segment(&segment.name).await.unwrap(), segment);
    }
}
