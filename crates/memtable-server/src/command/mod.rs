//! What a partition's log says: the payloads of its Raft entries.
//!
//! A *group* is the effect of the writes that one Raft entry commits; the other commands are rare. Every command carries
//! the term of the leader that made it: an entry whose numbers do not match what the log holds before it is ignored by every
//! replica (design, section 3).
//!
//! Bytes: version u8 = 1, kind u8, then for a group its own encoding ([`group`]), for the others a protobuf message of
//! `log.proto`.

pub mod configuration;
pub mod group;

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use sextant_common::error::{Error, Result};
use sextant_common::ids::{Generation, LogPosition, SstId, TableId};
use sextant_common::manifest::{SstMeta, TableOptions};
use sextant_proto::convert::{sst_id_from_wire, sst_id_to_wire};
use sextant_proto::v1;

pub use configuration::Configuration;
pub use group::{Group, RequestResult, TableWrites, Write};

const VERSION: u8 = 1;

const KIND_GROUP: u8 = 1;
const KIND_FREEZE: u8 = 2;
const KIND_FLUSH: u8 = 3;
const KIND_COMPACTION: u8 = 4;
const KIND_ENSURE_TABLE: u8 = 5;
const KIND_OPEN_SESSION: u8 = 6;
const KIND_CONFIGURE: u8 = 7;

/// A decoded payload.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    Group(Group),
    /// Ends a memtable (the paper's compaction log entry).
    Freeze {
        term: u64,
        table: TableId,
        generation: Generation,
    },
    /// The flush flag. Takes effect when it is committed.
    Flush {
        term: u64,
        table: TableId,
        generation: Generation,
        freeze: LogPosition,
        sst: Option<SstMeta>,
    },
    /// Takes effect when it is committed, and only if all inputs are still in the manifest.
    Compaction {
        term: u64,
        table: TableId,
        inputs: Vec<SstId>,
        output: Option<SstMeta>,
    },
    /// Takes effect when it is committed; idempotent.
    EnsureTable {
        term: u64,
        name: String,
        options: TableOptions,
        id: Option<TableId>,
    },
    OpenSession {
        term: u64,
        session: u64,
        time_ms: u64,
    },
    /// Takes effect when it is committed, and only if it carries the next revision.
    Configure {
        term: u64,
        configuration: Configuration,
    },
}

impl Command {
    /// Whether an encoded command is a group of writes: the only kind that clients can make arbitrarily many and large ones of.
    pub fn is_group(encoded: &[u8]) -> bool {
        encoded.get(1) == Some(&KIND_GROUP)
    }

    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(VERSION);
        match self {
            Command::Group(group) => {
                out.put_u8(KIND_GROUP);
                group.encode(&mut out);
            }
            Command::Freeze { term, table, generation } => {
                let message = v1::LogFreeze { term: *term, table: table.0, generation: generation.0 };
                put(&mut out, KIND_FREEZE, &message);
            }
            Command::Flush { term, table, generation, freeze, sst } => {
                let message = v1::LogFlush {
                    term: *term,
                    table: table.0,
                    generation: generation.0,
                    freeze: Some((*freeze).into()),
                    sst: sst.as_ref().map(Into::into),
                };
                put(&mut out, KIND_FLUSH, &message);
            }
            Command::Compaction { term, table, inputs, output } => {
                let message = v1::LogCompaction {
                    term: *term,
                    table: table.0,
                    inputs: inputs.iter().map(|id| sst_id_to_wire(*id)).collect(),
                    output: output.as_ref().map(Into::into),
                };
                put(&mut out, KIND_COMPACTION, &message);
            }
            Command::EnsureTable { term, name, options, id } => {
                let message = v1::LogEnsureTable {
                    term: *term,
                    name: name.clone(),
                    options: Some(options.into()),
                    id: id.map_or(0, |id| id.0),
                };
                put(&mut out, KIND_ENSURE_TABLE, &message);
            }
            Command::OpenSession { term, session, time_ms } => {
                let message = v1::LogOpenSession { term: *term, session: *session, time_ms: *time_ms };
                put(&mut out, KIND_OPEN_SESSION, &message);
            }
            Command::Configure { term, configuration } => {
                let message = v1::LogConfigure { term: *term, configuration: Some(configuration.into()) };
                put(&mut out, KIND_CONFIGURE, &message);
            }
        }
        out.freeze()
    }

    /// Decodes a payload. A group's keys and values are slices of one copy per table, so that a slow table pins no other
    /// table's memory (and none pins the network's or the log's buffers).
    pub fn decode(bytes: &Bytes) -> Result<Self> {
        let bad = |e: prost::DecodeError| Error::corrupt(format!("log entry: {e}"));
        let [version, kind, body @ ..] = bytes.as_ref() else {
            return Err(Error::corrupt("log entry: too short"));
        };
        if *version != VERSION {
            return Err(Error::corrupt(format!("log entry: unknown version {version}")));
        }
        match *kind {
            KIND_GROUP => Ok(Command::Group(Group::decode(body)?)),
            KIND_FREEZE => {
                let m = v1::LogFreeze::decode(body).map_err(bad)?;
                Ok(Command::Freeze {
                    term: m.term,
                    table: TableId(m.table),
                    generation: Generation(m.generation),
                })
            }
            KIND_FLUSH => {
                let m = v1::LogFlush::decode(body).map_err(bad)?;
                Ok(Command::Flush {
                    term: m.term,
                    table: TableId(m.table),
                    generation: Generation(m.generation),
                    freeze: m.freeze.unwrap_or_default().into(),
                    sst: m.sst.map(TryInto::try_into).transpose()?,
                })
            }
            KIND_COMPACTION => {
                let m = v1::LogCompaction::decode(body).map_err(bad)?;
                Ok(Command::Compaction {
                    term: m.term,
                    table: TableId(m.table),
                    inputs: m.inputs.iter().map(|id| sst_id_from_wire(id)).collect::<Result<_>>()?,
                    output: m.output.map(TryInto::try_into).transpose()?,
                })
            }
            KIND_ENSURE_TABLE => {
                let m = v1::LogEnsureTable::decode(body).map_err(bad)?;
                Ok(Command::EnsureTable {
                    term: m.term,
                    name: m.name,
                    options: m.options.unwrap_or_default().try_into()?,
                    id: (m.id != 0).then_some(TableId(m.id)),
                })
            }
            KIND_OPEN_SESSION => {
                let m = v1::LogOpenSession::decode(body).map_err(bad)?;
                Ok(Command::OpenSession { term: m.term, session: m.session, time_ms: m.time_ms })
            }
            KIND_CONFIGURE => {
                let m = v1::LogConfigure::decode(body).map_err(bad)?;
                let configuration = m.configuration.unwrap_or_default().try_into()?;
                Ok(Command::Configure { term: m.term, configuration })
            }
            other => Err(Error::corrupt(format!("log entry: unknown kind {other}"))),
        }
    }

    pub fn term(&self) -> u64 {
        match self {
            Command::Group(group) => group.term,
            Command::Freeze { term, .. }
            | Command::Flush { term, .. }
            | Command::Compaction { term, .. }
            | Command::EnsureTable { term, .. }
            | Command::OpenSession { term, .. }
            | Command::Configure { term, .. } => *term,
        }
    }
}

fn put(out: &mut BytesMut, kind: u8, message: &impl Message) {
    out.put_u8(kind);
    // A BytesMut grows, so encoding into it cannot run out of space.
    let _ = message.encode(out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn commands_round_trip() {
        let commands = [
            Command::Freeze { term: 3, table: TableId(1), generation: Generation(7) },
            Command::Flush {
                term: 3,
                table: TableId(1),
                generation: Generation(7),
                freeze: LogPosition { term: 2, index: 99 },
                sst: None,
            },
            Command::EnsureTable {
                term: 1,
                name: "t".into(),
                options: TableOptions { filter_inserts: true, ..TableOptions::default() },
                id: Some(TableId(4)),
            },
            Command::OpenSession { term: 5, session: 77, time_ms: 1234 },
            Command::Configure {
                term: 5,
                configuration: Configuration::founding(
                    &sextant_environment::config::LeaseConfig::default(),
                    1 << 20,
                ),
            },
        ];
        for command in commands {
            assert_eq!(Command::decode(&command.encode()).unwrap(), command);
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_decoding_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), kind in 0u8..9) {
            let mut framed = vec![VERSION, kind];
            framed.extend(bytes);
            let _ = Command::decode(&Bytes::from(framed));
        }
    }
}
