//! A group: the writes that one Raft entry commits, grouped by table, with consecutive seqs.
//!
//! Bytes (integers little-endian): term u64, first seq u64, time ms u64, tables u32, requests u32; then per table: id u32,
//! generation u64, section length u32, writes u32, and the section: per write ordinal u32, flags u8 (1: tombstone, 2:
//! leaves a bf-log entry, 4: marked, 8: leaves one for its prefix), key length u32, value length u32, with flag 4 its marks (u64:
//! `common::marks`), with flag 8 the hash of the prefix (u64: `common::key::prefix_hash`), key, value; then per
//! request: session u64, number u64, acked
//! below u64, results u32, and per result flags u8 (1: applied, 2: existed, 4: it failed the request, 8: it tells more), seq u64,
//! and with flag 8 what it tells: kind u8 (1: a value, 2: a length, 3: a forgotten value, 4 to 9: a misfit), length u32, bytes.
//!
//! A group may hold no writes: then it only records requests that changed nothing (a failed condition, operations that were
//! all skipped), so that no copy of them can take effect after their answer was given.

use bytes::{BufMut, Bytes, BytesMut};
use sextant_common::error::{Error, Result};
use sextant_common::ids::{Generation, Seq, TableId};
use sextant_common::key::filter_hash;
use sextant_common::marks::Marks;
use sextant_common::operation::{Misfit, RecordedOutcome, RequestId, Told};

const FLAG_TOMBSTONE: u8 = 1;
const FLAG_LEAVES_BIT: u8 = 2;
const FLAG_MARKED: u8 = 4;
const FLAG_LEAVES_PREFIX: u8 = 8;
const FLAGS_OF_WRITES: u8 = FLAG_TOMBSTONE | FLAG_LEAVES_BIT | FLAG_MARKED | FLAG_LEAVES_PREFIX;
const FLAG_APPLIED: u8 = 1;
const FLAG_EXISTED: u8 = 2;
const FLAG_FAILED: u8 = 4;
const FLAG_TOLD: u8 = 8;
const TOLD_VALUE: u8 = 1;
const TOLD_LENGTH: u8 = 2;
const TOLD_FORGOTTEN: u8 = 3;
/// And those after it: of which kind.
const TOLD_MISFIT: [(u8, Misfit); 6] = [
    (4, Misfit::NotAnInteger),
    (5, Misfit::NotANumber),
    (6, Misfit::Overflow),
    (7, Misfit::TooLong),
    (8, Misfit::WrongKind),
    (9, Misfit::OtherObject),
];

/// A group's own header, and the payload's version and kind.
const HEADER_BYTES: usize = 34;
const TABLE_HEADER_BYTES: usize = 20;
const WRITE_HEADER_BYTES: usize = 13;
const REQUEST_HEADER_BYTES: usize = 28;
const RESULT_HEADER_BYTES: usize = 9;
/// What a result tells beside bytes: kind, length, a length that is told.
const TOLD_HEADER_BYTES: usize = 13;
/// The most that the log says of an operation, beside its key, its value, and the value that it tells: all its headers, marks, the
/// hash of its prefix.
pub const OPERATION_BYTES_MAX: usize =
    TABLE_HEADER_BYTES + WRITE_HEADER_BYTES + 2 * size_of::<u64>() + RESULT_HEADER_BYTES + TOLD_HEADER_BYTES;
/// And of a request that is alone in its group, beside its operations.
pub const REQUEST_BYTES_MAX: usize = HEADER_BYTES + REQUEST_HEADER_BYTES;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    pub term: u64,
    /// Write i of the group (its ordinal) has seq `first_seq + i`.
    pub first_seq: u64,
    /// The leader's wall clock when the group was formed; never falls within a log. Sessions expire by it.
    pub time_ms: u64,
    pub tables: Vec<TableWrites>,
    /// Requests that carried a session, with their results, for the duplicate table.
    pub requests: Vec<RequestResult>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct TableWrites {
    pub table: TableId,
    /// Of the memtable that the writes were evaluated against.
    pub generation: Generation,
    pub writes: Vec<Write>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    pub ordinal: u32,
    pub key: Bytes,
    /// None: a tombstone.
    pub value: Option<Bytes>,
    pub marks: Marks,
    /// Did it leave a bf-log entry? Replay reproduces filters by this flag.
    pub leaves_bit: bool,
    /// The hash of its prefix, if it left an entry for that too. (Whoever replays this need not know the table's option of that time.)
    pub prefix: Option<u64>,
}

impl Write {
    /// The hashes of its bf-log entries.
    pub fn bits(&self) -> impl Iterator<Item = u64> {
        self.leaves_bit.then(|| filter_hash(&self.key)).into_iter().chain(self.prefix)
    }
}

/// What a request with a session was answered, for the duplicate table.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestResult {
    pub id: RequestId,
    /// One for each operation, in their order.
    pub results: Vec<RecordedOutcome>,
}

impl Group {
    /// Number of writes: the seqs that the group takes.
    pub fn seqs(&self) -> u64 {
        self.tables.iter().map(|t| t.writes.len() as u64).sum()
    }

    /// Keys and values with their headers, and what requests were answered, in bytes.
    pub fn written_bytes(&self) -> usize {
        let word = |is_there: bool| if is_there { size_of::<u64>() } else { 0 };
        let words = |w: &Write| word(!w.marks.is_none()) + word(w.prefix.is_some());
        let bytes =
            |w: &Write| w.key.len() + w.value.as_ref().map_or(0, Bytes::len) + words(w) + WRITE_HEADER_BYTES;
        let told = |r: &RecordedOutcome| {
            r.told.as_ref().map_or(0, |told| told.bytes() + TOLD_HEADER_BYTES) + RESULT_HEADER_BYTES
        };
        let answer =
            |request: &RequestResult| request.results.iter().map(told).sum::<usize>() + REQUEST_HEADER_BYTES;
        let answers: usize = self.requests.iter().map(answer).sum();
        self.tables.iter().flat_map(|t| &t.writes).map(bytes).sum::<usize>() + answers
    }

    /// At most so long is its entry's payload.
    pub fn entry_bytes(&self) -> usize {
        HEADER_BYTES + self.tables.len() * TABLE_HEADER_BYTES + self.written_bytes()
    }

    pub fn encode(&self, out: &mut BytesMut) {
        out.reserve(self.entry_bytes());
        out.put_u64_le(self.term);
        out.put_u64_le(self.first_seq);
        out.put_u64_le(self.time_ms);
        out.put_u32_le(self.tables.len() as u32);
        out.put_u32_le(self.requests.len() as u32);
        for table in &self.tables {
            out.put_u32_le(table.table.0);
            out.put_u64_le(table.generation.0);
            let length_at = out.len();
            out.put_u32_le(0);
            out.put_u32_le(table.writes.len() as u32);
            let start = out.len();
            for write in &table.writes {
                let tombstone = if write.value.is_none() { FLAG_TOMBSTONE } else { 0 };
                let bit = if write.leaves_bit { FLAG_LEAVES_BIT } else { 0 };
                let value = write.value.as_deref().unwrap_or_default();
                out.put_u32_le(write.ordinal);
                let marked = if write.marks.is_none() { 0 } else { FLAG_MARKED };
                let prefix = if write.prefix.is_some() { FLAG_LEAVES_PREFIX } else { 0 };
                out.put_u8(tombstone | bit | marked | prefix);
                out.put_u32_le(write.key.len() as u32);
                out.put_u32_le(value.len() as u32);
                if !write.marks.is_none() {
                    out.put_u64_le(write.marks.word());
                }
                if let Some(hash) = write.prefix {
                    out.put_u64_le(hash);
                }
                out.put_slice(&write.key);
                out.put_slice(value);
            }
            let length = (out.len() - start) as u32;
            out[length_at..length_at + 4].copy_from_slice(&length.to_le_bytes());
        }
        for request in &self.requests {
            out.put_u64_le(request.id.session);
            out.put_u64_le(request.id.number);
            out.put_u64_le(request.id.acked_below);
            out.put_u32_le(request.results.len() as u32);
            for result in &request.results {
                let applied = if result.applied { FLAG_APPLIED } else { 0 };
                let existed = if result.existed { FLAG_EXISTED } else { 0 };
                let failed = if result.failed { FLAG_FAILED } else { 0 };
                let tells = if result.told.is_some() { FLAG_TOLD } else { 0 };
                out.put_u8(applied | existed | failed | tells);
                out.put_u64_le(result.seq.0);
                if let Some(told) = &result.told {
                    encode_told(told, out);
                }
            }
        }
    }

    pub fn decode(body: &[u8]) -> Result<Self> {
        let mut from = Reader(body);
        let mut group =
            Group { term: from.u64()?, first_seq: from.u64()?, time_ms: from.u64()?, ..Group::default() };
        let (tables, requests) = (from.u32()?, from.u32()?);
        for _ in 0..tables {
            let table = TableId(from.u32()?);
            let generation = Generation(from.u64()?);
            let (length, count) = (from.u32()? as usize, from.u32()?);
            // The one copy: keys and values are slices of it.
            let section = Bytes::copy_from_slice(from.take(length)?);
            let mut writes = Vec::with_capacity((count as usize).min(length / 13 + 1));
            let mut at = Reader(&section);
            for _ in 0..count {
                let ordinal = at.u32()?;
                let flags = at.u8()?;
                if flags & !FLAGS_OF_WRITES != 0 {
                    return Err(Error::corrupt(format!("group: unknown flags of a write: {flags:#x}")));
                }
                let (key_len, value_len) = (at.u32()? as usize, at.u32()? as usize);
                let marks = if flags & FLAG_MARKED == 0 { 0 } else { at.u64()? };
                let prefix = if flags & FLAG_LEAVES_PREFIX == 0 { None } else { Some(at.u64()?) };
                let key = section.slice_ref(at.take(key_len)?);
                let value = section.slice_ref(at.take(value_len)?);
                writes.push(Write {
                    ordinal,
                    key,
                    value: (flags & FLAG_TOMBSTONE == 0).then_some(value),
                    marks: Marks::from_word(marks),
                    leaves_bit: flags & FLAG_LEAVES_BIT != 0,
                    prefix,
                });
            }
            at.end()?;
            group.tables.push(TableWrites { table, generation, writes });
        }
        for _ in 0..requests {
            let id = RequestId { session: from.u64()?, number: from.u64()?, acked_below: from.u64()? };
            let count = from.u32()?;
            let mut results = Vec::with_capacity((count as usize).min(from.0.len() / 9 + 1));
            for _ in 0..count {
                let flags = from.u8()?;
                let seq = Seq(from.u64()?);
                let told =
                    if flags & FLAG_TOLD == 0 { None } else { Some(Box::new(decode_told(&mut from)?)) };
                results.push(RecordedOutcome {
                    applied: flags & FLAG_APPLIED != 0,
                    existed: flags & FLAG_EXISTED != 0,
                    failed: flags & FLAG_FAILED != 0,
                    seq,
                    told,
                });
            }
            group.requests.push(RequestResult { id, results });
        }
        from.end()?;
        Ok(group)
    }
}

fn encode_told(told: &Told, out: &mut BytesMut) {
    let mut put = |kind: u8, bytes: &[u8]| {
        out.put_u8(kind);
        out.put_u32_le(bytes.len() as u32);
        out.put_slice(bytes);
    };
    match told {
        // (A kind that nobody writes: what says nothing is not told.)
        Told::Nothing => put(0, &[]),
        Told::Value(value) => put(TOLD_VALUE, value),
        Told::Length(length) => put(TOLD_LENGTH, &length.to_le_bytes()),
        Told::Forgotten => put(TOLD_FORGOTTEN, &[]),
        Told::Misfit(misfit) => {
            let kind = TOLD_MISFIT.iter().find(|(_, known)| known == misfit).map_or(0, |(kind, _)| *kind);
            put(kind, &[]);
        }
    }
}

fn decode_told(from: &mut Reader<'_>) -> Result<Told> {
    let kind = from.u8()?;
    let length = from.u32()? as usize;
    let bytes = from.take(length)?;
    let misfit = TOLD_MISFIT.iter().find(|(known, _)| *known == kind);
    Ok(match kind {
        TOLD_VALUE => Told::Value(Bytes::copy_from_slice(bytes)),
        TOLD_LENGTH => Told::Length(Reader(bytes).u64()?),
        TOLD_FORGOTTEN => Told::Forgotten,
        _ => match misfit {
            Some((_, misfit)) => Told::Misfit(*misfit),
            None => return Err(Error::corrupt(format!("group: a result tells something of kind {kind}"))),
        },
    })
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n).ok_or_else(|| Error::corrupt("group: truncated"))?;
        self.0 = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| Error::corrupt("group: truncated"))
    }

    fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn end(&self) -> Result<()> {
        if self.0.is_empty() { Ok(()) } else { Err(Error::corrupt("group: trailing bytes")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes() -> impl Strategy<Value = Bytes> {
        prop::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from)
    }

    fn groups() -> impl Strategy<Value = Group> {
        let marks = any::<u64>().prop_map(Marks::from_word);
        let bits = (any::<bool>(), prop::option::of(any::<u64>()));
        let write = (any::<u32>(), bytes(), prop::option::of(bytes()), marks, bits).prop_map(
            |(ordinal, key, value, marks, (leaves_bit, prefix))| Write {
                ordinal,
                key,
                value,
                marks,
                leaves_bit,
                prefix,
            },
        );
        let table = (any::<u32>(), any::<u64>(), prop::collection::vec(write, 0..8))
            .prop_map(|(t, g, writes)| TableWrites { table: TableId(t), generation: Generation(g), writes });
        let told = prop_oneof![
            bytes().prop_map(Told::Value),
            any::<u64>().prop_map(Told::Length),
            Just(Told::Forgotten),
            prop::sample::select(&TOLD_MISFIT[..]).prop_map(|(_, misfit)| Told::Misfit(misfit)),
        ];
        let told = prop::option::of(told.prop_map(Box::new));
        let result = (any::<bool>(), any::<bool>(), any::<bool>(), any::<u64>(), told).prop_map(
            |(applied, existed, failed, seq, told)| RecordedOutcome {
                applied,
                existed,
                failed,
                seq: Seq(seq),
                told,
            },
        );
        let request = (any::<u64>(), any::<u64>(), any::<u64>(), prop::collection::vec(result, 0..4))
            .prop_map(|(session, number, acked_below, results)| RequestResult {
                id: RequestId { session, number, acked_below },
                results,
            });
        (
            any::<u64>(),
            any::<u64>(),
            any::<u64>(),
            prop::collection::vec(table, 0..4),
            prop::collection::vec(request, 0..4),
        )
            .prop_map(|(term, first_seq, time_ms, tables, requests)| Group {
                term,
                first_seq,
                time_ms,
                tables,
                requests,
            })
    }

    proptest! {
        #[test]
        fn groups_round_trip_and_every_truncation_is_an_error(group in groups()) {
            let mut out = BytesMut::new();
            group.encode(&mut out);
            prop_assert_eq!(&Group::decode(&out).unwrap(), &group);
            prop_assert!(crate::command::Command::Group(group.clone()).encode().len() <= group.entry_bytes());
            for cut in 0..out.len() {
                prop_assert!(Group::decode(&out[..cut]).is_err());
            }
        }
    }
}
