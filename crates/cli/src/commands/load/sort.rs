//! Records in the order of partitions and keys, however many there are: as many as fit into memory are sorted and written to a file of
//! their own, and the files are merged. Of records with one key the last line counts.
//!
//! Files are nameless: they are gone when the process is.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use sextant_client::{Error, Result};
use sextant_common::expiry::Tick;
use sextant_common::ids::PartitionId;

/// Files that are merged at once: each is open, with a buffer.
const MERGED_MAX: usize = 64;
/// What a record takes in memory beside its bytes.
const RECORD_BYTES: usize = 96;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Where it stands in the input.
    pub line: u64,
    pub key: Vec<u8>,
    pub value: Vec<u8>,
    pub expires_at: Option<Tick>,
}

impl Record {
    fn bytes(&self) -> usize {
        self.key.len() + self.value.len() + RECORD_BYTES
    }
}

/// A record and its partition, in the order of both; of one key the last line first.
#[derive(PartialEq, Eq)]
struct Placed(PartitionId, Record);

impl Placed {
    fn order(&self) -> (PartitionId, &[u8], Reverse<u64>) {
        (self.0, &self.1.key, Reverse(self.1.line))
    }
}

impl PartialOrd for Placed {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Placed {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order().cmp(&other.order())
    }
}

pub struct Sorter {
    dir: PathBuf,
    memory: usize,
    refuses_duplicates: bool,
    records: Vec<Placed>,
    bytes: usize,
    runs: Vec<Sorted>,
}

/// What a partition has of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub partition: PartitionId,
    pub records: u64,
    offset: u64,
}

/// A file of sorted records, each key once.
pub struct Sorted {
    file: File,
    parts: Vec<Part>,
}

impl Sorter {
    pub fn new(dir: &Path, memory: usize, refuses_duplicates: bool) -> Self {
        Self {
            dir: dir.to_owned(),
            memory,
            refuses_duplicates,
            records: Vec::new(),
            bytes: 0,
            runs: Vec::new(),
        }
    }

    pub fn push(&mut self, partition: PartitionId, record: Record) -> Result<()> {
        self.bytes += record.bytes();
        self.records.push(Placed(partition, record));
        if self.bytes >= self.memory { self.spill() } else { Ok(()) }
    }

    fn spill(&mut self) -> Result<()> {
        let mut records = std::mem::take(&mut self.records);
        self.bytes = 0;
        records.sort_unstable();
        let run = self.write(records.into_iter().map(Ok))?;
        self.runs.push(run);
        if self.runs.len() >= MERGED_MAX {
            let merged = self.merge()?;
            self.runs.push(merged);
        }
        Ok(())
    }

    fn merge(&mut self) -> Result<Sorted> {
        let runs = std::mem::take(&mut self.runs);
        let runs = runs.into_iter().map(Run::open).collect::<Result<Vec<_>>>()?;
        self.write(Merge::of(runs)?)
    }

    pub fn finish(mut self) -> Result<Sorted> {
        self.spill()?;
        match self.runs.pop() {
            Some(only) if self.runs.is_empty() => Ok(only),
            last => {
                self.runs.extend(last);
                self.merge()
            }
        }
    }

    /// Sorted records, of one key the last line first: that one is written.
    fn write(&self, records: impl Iterator<Item = Result<Placed>>) -> Result<Sorted> {
        let file = tempfile::tempfile_in(&self.dir).map_err(|e| self.failed(&e))?;
        let mut out = BufWriter::with_capacity(1 << 20, &file);
        let (mut parts, mut offset): (Vec<Part>, u64) = (Vec::new(), 0);
        let mut last: Option<(PartitionId, Record)> = None;
        for record in records {
            let Placed(partition, record) = record?;
            if let Some((of, before)) = &last
                && *of == partition
                && before.key == record.key
            {
                if self.refuses_duplicates {
                    return Err(Error::invalid(format!(
                        "lines {} and {} have the same key",
                        record.line, before.line
                    )));
                }
                continue;
            }
            if parts.last().is_none_or(|part| part.partition != partition) {
                parts.push(Part { partition, records: 0, offset });
            }
            if let Some(part) = parts.last_mut() {
                part.records += 1;
            }
            offset += put(&mut out, &record).map_err(|e| self.failed(&e))?;
            last = Some((partition, Record { value: Vec::new(), ..record }));
        }
        out.flush().map_err(|e| self.failed(&e))?;
        drop(out);
        Ok(Sorted { file, parts })
    }

    fn failed(&self, e: &std::io::Error) -> Error {
        Error::unavailable(format!("{}: {e} (--tmp names another directory)", self.dir.display()))
    }
}

/// Line, expiry (0: none), lengths, key, value; how many bytes.
fn put(out: &mut impl Write, record: &Record) -> std::io::Result<u64> {
    let Record { line, key, value, expires_at } = record;
    for number in [*line, expires_at.map_or(0, |at| at.0), key.len() as u64, value.len() as u64] {
        out.write_all(&number.to_le_bytes())?;
    }
    out.write_all(key)?;
    out.write_all(value)?;
    Ok((32 + key.len() + value.len()) as u64)
}

fn take(from: &mut impl Read) -> std::io::Result<Record> {
    let mut numbers = [0u64; 4];
    for number in &mut numbers {
        let mut bytes = [0; 8];
        from.read_exact(&mut bytes)?;
        *number = u64::from_le_bytes(bytes);
    }
    let [line, expires_at, key, value] = numbers;
    let (mut key, mut value) = (vec![0; key as usize], vec![0; value as usize]);
    from.read_exact(&mut key)?;
    from.read_exact(&mut value)?;
    Ok(Record { line, key, value, expires_at: (expires_at > 0).then_some(Tick(expires_at)) })
}

impl Sorted {
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    pub fn records(&self) -> u64 {
        self.parts.iter().map(|part| part.records).sum()
    }

    /// The records of a part, by their keys. (The file has one position: it is read at offsets, so that parts can be read at a time.)
    pub fn read(&self, part: Part) -> Result<impl Iterator<Item = Result<Record>> + Send + use<>> {
        let mut from =
            BufReader::with_capacity(1 << 20, At { file: self.file.try_clone()?, offset: part.offset });
        let mut left = part.records;
        Ok(std::iter::from_fn(move || {
            left = left.checked_sub(1)?;
            Some(take(&mut from).map_err(Into::into))
        }))
    }
}

/// A file, read from an offset on, whatever others read.
struct At {
    file: File,
    offset: u64,
}

impl Read for At {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        let read = std::os::unix::fs::FileExt::read_at(&self.file, to, self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}

/// A sorted file that is merged with others.
struct Run {
    from: BufReader<File>,
    parts: std::vec::IntoIter<Part>,
    left: Option<Part>,
}

impl Run {
    fn open(sorted: Sorted) -> Result<Self> {
        let Sorted { mut file, parts } = sorted;
        file.seek(SeekFrom::Start(0))?;
        Ok(Self { from: BufReader::with_capacity(256 << 10, file), parts: parts.into_iter(), left: None })
    }

    fn next(&mut self) -> Result<Option<Placed>> {
        while self.left.is_none_or(|part| part.records == 0) {
            match self.parts.next() {
                Some(part) => self.left = Some(part),
                None => return Ok(None),
            }
        }
        let Some(part) = &mut self.left else { return Ok(None) };
        part.records -= 1;
        Ok(Some(Placed(part.partition, take(&mut self.from)?)))
    }
}

struct Merge {
    runs: Vec<Run>,
    next: BinaryHeap<Reverse<(Placed, usize)>>,
}

impl Merge {
    fn of(mut runs: Vec<Run>) -> Result<Self> {
        let mut next = BinaryHeap::new();
        for (at, run) in runs.iter_mut().enumerate() {
            next.extend(run.next()?.map(|record| Reverse((record, at))));
        }
        Ok(Self { runs, next })
    }
}

impl Iterator for Merge {
    type Item = Result<Placed>;

    fn next(&mut self) -> Option<Self::Item> {
        let Reverse((record, at)) = self.next.pop()?;
        match self.runs[at].next() {
            Ok(next) => self.next.extend(next.map(|record| Reverse((record, at)))),
            Err(e) => return Some(Err(e)),
        }
        Some(Ok(record))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn record(line: u64, key: &str, value: &str) -> Record {
        Record { line, key: key.into(), value: value.into(), expires_at: None }
    }

    fn sorter(memory: usize, refuses_duplicates: bool) -> Sorter {
        Sorter::new(&std::env::temp_dir(), memory, refuses_duplicates)
    }

    #[test]
    fn duplicates_are_refused_with_both_lines_wherever_they_are() {
        for memory in [1, 1 << 20] {
            let mut sorter = sorter(memory, true);
            for (line, key) in [(1, "a"), (2, "b"), (3, "a")] {
                sorter.push(PartitionId(0), record(line, key, "x")).unwrap();
            }
            let error = sorter.finish().map(|_| ()).unwrap_err();
            assert!(error.message.contains("lines 1 and 3"), "{error}");
        }
    }

    #[test]
    fn a_directory_that_is_not_there_is_named() {
        let mut sorter = Sorter::new(Path::new("/nowhere/at/all"), 1, false);
        let error = sorter.push(PartitionId(0), record(1, "a", "x")).unwrap_err();
        assert!(error.message.contains("/nowhere/at/all") && error.message.contains("--tmp"), "{error}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn whatever_fits_into_memory_each_key_comes_once_in_order_with_its_last_line(
            keys in prop::collection::vec((0u32..3, "[a-d]{1,3}", prop::option::of(1u64..9)), 0..200),
            memory in prop::sample::select(vec![1usize, 300, 1000, 1 << 20]),
        ) {
            let mut sorter = sorter(memory, false);
            let mut expected = BTreeMap::new();
            for (line, (partition, key, expires)) in keys.iter().enumerate() {
                let value = line.to_string();
                let record = Record { expires_at: expires.map(Tick), ..record(line as u64, key, &value) };
                sorter.push(PartitionId(*partition), record.clone()).unwrap();
                expected.insert((*partition, key.clone()), record);
            }
            let sorted = sorter.finish().unwrap();
            let mut found = Vec::new();
            for part in sorted.parts() {
                for record in sorted.read(*part).unwrap() {
                    found.push((part.partition.0, record.unwrap()));
                }
            }
            let expected: Vec<_> = expected.into_iter().map(|((partition, _), record)| (partition, record)).collect();
            prop_assert_eq!(sorted.records(), found.len() as u64);
            prop_assert_eq!(found, expected);
        }
    }
}
