//! What a partition's log says: the payloads of its Raft entries.
//!
//! A *group* is the effect of the writes that one Raft entry commits; the other commands are rare. Every command carries
//! the term of the leader that made it: an entry whose numbers do not match what the log holds before it is ignored by every
//! replica (design, section 3).
//!
//! Bytes: version u8 = 1, kind u8, then for a group its own encoding ([`group`]), for the others a protobuf message of
//! `log.proto`, which is made and read in `proto::convert::command`.

pub mod configuration;
pub mod group;

use bytes::{BufMut, Bytes, BytesMut};
use sextant_common::error::{Error, Result};
use sextant_proto::convert::command::Logged;

pub use configuration::{Configuration, ConfigurationRules};
pub use group::{Group, OPERATION_BYTES_MAX, REQUEST_BYTES_MAX, RequestResult, TableWrites, Write};
pub use sextant_common::command::{
    Alteration, ChangeTable, Compaction, Configure, CutPoint, EndCut, EnsureTable, Flush, Freeze, Load,
    OpenCut, OpenSession, Placement, Relocation, Tick,
};

const VERSION: u8 = 1;

const KIND_GROUP: u8 = 1;
const KIND_FREEZE: u8 = 2;
const KIND_FLUSH: u8 = 3;
const KIND_COMPACTION: u8 = 4;
const KIND_ENSURE_TABLE: u8 = 5;
const KIND_OPEN_SESSION: u8 = 6;
const KIND_CONFIGURE: u8 = 7;
const KIND_TICK: u8 = 8;
/// With its tombstones: older SSTables are left out.
const KIND_COMPACTION_OF_NEWER: u8 = 9;
const KIND_PLACEMENT: u8 = 10;
/// Of a range, or with several outputs. (The other two are of all keys, and have one output at most.)
const KIND_COMPACTION_OF_RANGE: u8 = 11;
// 12 to 15: of format 1 (common, `configuration::Feature`).
/// A configuration whose format is above 0: a server that knows of no formats must not take it for another one.
const KIND_CONFIGURE_OF_FORMAT: u8 = 16;
/// The last kind that a partition of format 0 has in its log.
const KIND_OF_FORMAT_0_MAX: u8 = KIND_COMPACTION_OF_RANGE;
const KIND_OPEN_CUT: u8 = 14;
const KIND_END_CUT: u8 = 15;
const KIND_LOAD: u8 = 12;
/// Of format 2.
const KIND_CHANGE_TABLE: u8 = 17;

/// A decoded payload.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    Group(Group),
    /// Takes effect when it is appended.
    Freeze(Freeze),
    /// Takes effect when it is committed.
    Flush(Flush),
    /// Takes effect when it is committed, and only if all inputs are still in the manifest.
    Compaction(Compaction),
    /// Takes effect when it is committed, and only on the manifest that it names.
    Placement(Placement),
    /// Ends its memtable when it is appended, and is seen when it is committed.
    Load(Load),
    /// Takes effect when it is committed; idempotent.
    EnsureTable(EnsureTable),
    /// Nothing is written to a dropped table from when it is appended; otherwise it takes effect when it is committed.
    ChangeTable(ChangeTable),
    /// Takes effect when it is appended.
    OpenSession(OpenSession),
    /// Takes effect when it is committed, and only if it carries the next revision.
    Configure(Configure),
    /// Takes effect when it is appended.
    Tick(Tick),
    /// Freezes when it is appended; the cut is there when it is committed.
    OpenCut(OpenCut),
    /// Takes effect when it is committed.
    EndCut(EndCut),
}

impl Command {
    /// Whether an encoded command is a group of writes: the only kind that clients can make arbitrarily many and large ones of.
    pub fn is_group(encoded: &[u8]) -> bool {
        encoded.get(1) == Some(&KIND_GROUP)
    }

    /// The format that a partition must have before an encoded command may be proposed. (What raises it says itself what all
    /// members can read.)
    pub fn format_needed(encoded: &[u8]) -> u32 {
        match encoded.get(1) {
            Some(&KIND_CONFIGURE_OF_FORMAT) => 0,
            Some(&KIND_CHANGE_TABLE) => 2,
            Some(kind) if *kind > KIND_OF_FORMAT_0_MAX => 1,
            _ => 0,
        }
    }

    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(VERSION);
        match self {
            Command::Group(group) => {
                out.put_u8(KIND_GROUP);
                group.encode(&mut out);
            }
            Command::Freeze(freeze) => put(KIND_FREEZE, freeze, &mut out),
            Command::Flush(flush) => put(KIND_FLUSH, flush, &mut out),
            Command::Compaction(compaction) if !compaction.range.is_all() || compaction.outputs.len() > 1 => {
                put(KIND_COMPACTION_OF_RANGE, compaction, &mut out);
            }
            Command::Compaction(compaction) if compaction.tombstones_dropped => {
                put(KIND_COMPACTION, compaction, &mut out);
            }
            Command::Compaction(compaction) => put(KIND_COMPACTION_OF_NEWER, compaction, &mut out),
            Command::Placement(placement) => put(KIND_PLACEMENT, placement, &mut out),
            Command::Load(load) => put(KIND_LOAD, load, &mut out),
            Command::EnsureTable(table) => put(KIND_ENSURE_TABLE, table, &mut out),
            Command::ChangeTable(change) => put(KIND_CHANGE_TABLE, change, &mut out),
            Command::OpenSession(session) => put(KIND_OPEN_SESSION, session, &mut out),
            Command::Configure(configure) if configure.configuration.format > 0 => {
                put(KIND_CONFIGURE_OF_FORMAT, configure, &mut out);
            }
            Command::Configure(configure) => put(KIND_CONFIGURE, configure, &mut out),
            Command::Tick(tick) => put(KIND_TICK, tick, &mut out),
            Command::OpenCut(cut) => put(KIND_OPEN_CUT, cut, &mut out),
            Command::EndCut(cut) => put(KIND_END_CUT, cut, &mut out),
        }
        out.freeze()
    }

    /// Decodes a payload. A group's keys and values are slices of one copy per table, so that a slow table pins no other
    /// table's memory (and none pins the network's or the log's buffers).
    pub fn decode(bytes: &Bytes) -> Result<Self> {
        let [version, kind, body @ ..] = bytes.as_ref() else {
            return Err(Error::corrupt("log entry: too short"));
        };
        if *version != VERSION {
            return Err(Error::corrupt(format!("log entry: unknown version {version}")));
        }
        Ok(match *kind {
            KIND_GROUP => Command::Group(Group::decode(body)?),
            KIND_FREEZE => Command::Freeze(Logged::decode(body)?),
            KIND_FLUSH => Command::Flush(Logged::decode(body)?),
            KIND_COMPACTION => {
                Command::Compaction(Compaction { tombstones_dropped: true, ..Logged::decode(body)? })
            }
            KIND_COMPACTION_OF_NEWER => {
                Command::Compaction(Compaction { tombstones_dropped: false, ..Logged::decode(body)? })
            }
            KIND_PLACEMENT => Command::Placement(Logged::decode(body)?),
            KIND_COMPACTION_OF_RANGE => Command::Compaction(Logged::decode(body)?),
            KIND_LOAD => Command::Load(Logged::decode(body)?),
            KIND_ENSURE_TABLE => Command::EnsureTable(Logged::decode(body)?),
            KIND_CHANGE_TABLE => Command::ChangeTable(Logged::decode(body)?),
            KIND_OPEN_SESSION => Command::OpenSession(Logged::decode(body)?),
            KIND_CONFIGURE | KIND_CONFIGURE_OF_FORMAT => {
                let configure: Configure = Logged::decode(body)?;
                configure.configuration.check()?;
                Command::Configure(configure)
            }
            KIND_TICK => Command::Tick(Logged::decode(body)?),
            KIND_OPEN_CUT => Command::OpenCut(Logged::decode(body)?),
            KIND_END_CUT => Command::EndCut(Logged::decode(body)?),
            other => return Err(Error::corrupt(format!("log entry: unknown kind {other}"))),
        })
    }

    /// Of the leader that made it.
    pub fn term(&self) -> u64 {
        match self {
            Command::Group(Group { term, .. })
            | Command::Freeze(Freeze { term, .. })
            | Command::Flush(Flush { term, .. })
            | Command::Compaction(Compaction { term, .. })
            | Command::Placement(Placement { term, .. })
            | Command::Load(Load { term, .. })
            | Command::EnsureTable(EnsureTable { term, .. })
            | Command::ChangeTable(ChangeTable { term, .. })
            | Command::OpenSession(OpenSession { term, .. })
            | Command::Configure(Configure { term, .. })
            | Command::Tick(Tick { term, .. })
            | Command::OpenCut(OpenCut { term, .. })
            | Command::EndCut(EndCut { term, .. }) => *term,
        }
    }

    pub fn term_mut(&mut self) -> &mut u64 {
        match self {
            Command::Group(Group { term, .. })
            | Command::Freeze(Freeze { term, .. })
            | Command::Flush(Flush { term, .. })
            | Command::Compaction(Compaction { term, .. })
            | Command::Placement(Placement { term, .. })
            | Command::Load(Load { term, .. })
            | Command::EnsureTable(EnsureTable { term, .. })
            | Command::ChangeTable(ChangeTable { term, .. })
            | Command::OpenSession(OpenSession { term, .. })
            | Command::Configure(Configure { term, .. })
            | Command::Tick(Tick { term, .. })
            | Command::OpenCut(OpenCut { term, .. })
            | Command::EndCut(EndCut { term, .. }) => term,
        }
    }
}

fn put(kind: u8, command: &impl Logged, out: &mut BytesMut) {
    out.put_u8(kind);
    command.encode(out);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sextant_common::ids::{Generation, LoadId, LogPosition, ManifestVersion, NodeId, TableId};
    use sextant_common::key_range::KeyRange;
    use sextant_common::manifest::{SstMeta, TableOptions};

    use super::*;
    use crate::partition::testing::sst;

    /// Entries of older versions: what they did not say was so.
    #[test]
    fn a_compaction_of_an_older_log_is_of_all_keys_and_has_one_output() {
        let message = |dropped: bool| sextant_proto::v1::LogCompaction {
            term: 3,
            table: 1,
            inputs: vec![Bytes::copy_from_slice(&sst(1).id.to_bytes())],
            output: Some((&sst(2)).into()),
            tombstones_dropped: dropped,
            ..Default::default()
        };
        for (kind, tombstones_dropped) in [(KIND_COMPACTION, true), (KIND_COMPACTION_OF_NEWER, false)] {
            let mut old = vec![VERSION, kind];
            old.extend(prost::Message::encode_to_vec(&message(false)));
            let (range, outputs) = (KeyRange::all(), vec![sst(2)]);
            let compaction = Compaction {
                term: 3,
                table: TableId(1),
                inputs: vec![sst(1).id],
                range,
                outputs,
                tombstones_dropped,
            };
            assert_eq!(Command::decode(&old.into()).unwrap(), Command::Compaction(compaction.clone()));
            assert_eq!(Command::Compaction(compaction).encode()[1], kind, "as an older server reads it");
        }
    }

    #[test]
    fn a_configuration_with_a_format_is_of_a_kind_that_no_server_without_formats_takes() {
        let founding = Configuration::founding(&sextant_environment::config::LeaseConfig::default(), 1 << 20);
        for (format, kind) in [(0, KIND_CONFIGURE), (1, 16)] {
            let configuration = Configuration { format, format_open: format == 0, ..founding.clone() };
            let command = Command::Configure(Configure { term: 5, configuration });
            let encoded = command.encode();
            assert_eq!((encoded[1], Command::format_needed(&encoded)), (kind, 0));
            assert_eq!(Command::decode(&encoded).unwrap(), command);
        }
    }

    #[test]
    fn newer_kinds_need_a_format() {
        let needed = |kind: u8| Command::format_needed(&[VERSION, kind]);
        assert!((1..=11).all(|kind| needed(kind) == 0) && (12..=15).all(|kind| needed(kind) == 1));
        assert_eq!(needed(KIND_CHANGE_TABLE), 2);
    }

    #[test]
    fn commands_round_trip() {
        let compaction = |range: KeyRange, outputs: Vec<SstMeta>, tombstones_dropped| {
            let (term, table, inputs) = (3, TableId(1), vec![sst(1).id]);
            Command::Compaction(Compaction { term, table, inputs, range, outputs, tombstones_dropped })
        };
        let changed = |alteration| {
            let (table, generation) = (TableId(4), Generation(7));
            Command::ChangeTable(ChangeTable { term: 3, table, next_seq: 9, generation, alteration })
        };
        let all = KeyRange::all;
        let part = |start: &'static str, end: &'static str| KeyRange::new(start, end);
        let output = |range| SstMeta { range, ..sst(2) };
        let commands = [
            Command::Freeze(Freeze { term: 3, table: TableId(1), generation: Generation(7) }),
            Command::Flush(Flush {
                term: 3,
                table: TableId(1),
                generation: Generation(7),
                freeze: LogPosition { term: 2, index: 99 },
                sst: None,
            }),
            Command::EnsureTable(EnsureTable {
                term: 1,
                name: "t".into(),
                options: TableOptions { filter_inserts: true, ..TableOptions::default() },
                id: Some(TableId(4)),
            }),
            changed(Alteration::Drop),
            changed(Alteration::Options(TableOptions { filter_inserts: true, ..TableOptions::default() })),
            Command::OpenSession(OpenSession { term: 5, session: 77, time_ms: 1234 }),
            Command::OpenCut(OpenCut {
                term: 5,
                id: u64::MAX,
                next_seq: 8,
                tick: sextant_common::expiry::Tick(9),
                opened_ms: 10,
                lease_ms: 11,
                tables: vec![CutPoint { table: TableId(1), generation: Generation(7), freezes: true }],
            }),
            Command::EndCut(EndCut { term: 5, id: 3 }),
            Command::Placement(Placement {
                term: 3,
                version: ManifestVersion(9),
                relocations: vec![Relocation { id: sst(4).id, add: Some(NodeId(4)), remove: None }],
            }),
            Command::Load(Load {
                term: 3,
                table: TableId(1),
                id: LoadId(77),
                generation: Generation(7),
                next_seq: 12,
                seq: 1 << 40,
                flushed: Generation(900),
                ssts: vec![output(part("m", "")), output(part("", "m"))],
            }),
            compaction(all(), vec![], true),
            compaction(all(), vec![sst(2)], true),
            compaction(all(), vec![sst(2)], false),
            compaction(all(), vec![output(part("", "m")), output(part("m", ""))], true),
            compaction(all(), vec![output(part("", "m")), output(part("m", ""))], false),
            compaction(part("c", "m"), vec![output(part("c", "m"))], false),
            compaction(part("c", "m"), vec![], true),
            Command::Configure(Configure {
                term: 5,
                configuration: Configuration::founding(
                    &sextant_environment::config::LeaseConfig::default(),
                    1 << 20,
                ),
            }),
        ];
        for command in commands {
            assert_eq!(Command::decode(&command.encode()).unwrap(), command);
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_decoding_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), kind in 0u8..19) {
            let mut framed = vec![VERSION, kind];
            framed.extend(bytes);
            let _ = Command::decode(&Bytes::from(framed));
        }
    }
}
