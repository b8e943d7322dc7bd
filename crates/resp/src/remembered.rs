//! Replies to reads of objects, remembered for as long as the objects are as they were.
//!
//! Owns the replies, encoded, each with the header that its object had. Every write to an object writes its header: whoever finds
//! the same version under the key, just now, and that nothing was loaded since, may give the same reply. Does not own how that is found.

use std::hash::{BuildHasherDefault, Hash, Hasher};

use bytes::{Bytes, BytesMut};
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};
use sextant_common::database::Database;
use sextant_common::hashed::AlreadyHashed;
use sextant_common::ids::Seq;
use sextant_common::operation::Record;
use sextant_rules::mutant::{self, Mutant};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::command_table::Id;
use crate::frame::{Command, Protocol, Reply};
use crate::replies::SHORT_BYTES;

/// Longer questions are not remembered, in bytes.
const ASKED_BYTES_MAX: usize = 512;
/// What an entry takes beside its bytes.
const ENTRY_BYTES: usize = 192;
/// Parts of the map, each with a lock of its own.
const SHARD_BYTES_MIN: usize = 16 * SHORT_BYTES;
const SHARDS_MAX: usize = 16;
/// For the first size of the map.
const TYPICAL_ENTRY_BYTES: usize = 1024;

/// A command with all that its reply depends on, but for the object: how it is told apart from others.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Of the bytes.
    hash: u64,
    bytes: Box<[u8]>,
}

impl Asked {
    /// None: it is long. `seed`: so that clients cannot aim at collisions.
    pub fn new(
        database: Database,
        id: Id,
        command: &Command<'_>,
        protocol: Protocol,
        seed: u64,
    ) -> Option<Self> {
        let args = || (1..command.len()).map(|at| command.arg(at));
        let len = args().map(|arg| arg.len() + size_of::<u32>()).sum::<usize>();
        if len > ASKED_BYTES_MAX {
            return None;
        }
        let mut bytes = Vec::with_capacity(len + 4);
        bytes.extend_from_slice(&(id as u16).to_le_bytes());
        bytes.extend_from_slice(&[database.number(), protocol as u8]);
        for arg in args() {
            bytes.extend_from_slice(&(arg.len() as u32).to_le_bytes());
            bytes.extend_from_slice(arg);
        }
        Some(Self { hash: xxh3_64_with_seed(&bytes, seed), bytes: bytes.into() })
    }

    fn protocol(&self) -> Protocol {
        if self.bytes[3] == Protocol::Resp3 as u8 { Protocol::Resp3 } else { Protocol::Resp2 }
    }
}

impl Hash for Asked {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

#[derive(Clone)]
struct Answer {
    seq: Seq,
    header: Bytes,
    loaded: u64,
    reply: Bytes,
}

impl Answer {
    fn is_of(&self, header: &Record, loaded: u64) -> bool {
        self.seq == header.seq && self.header == header.value && self.loaded == loaded
    }
}

#[derive(Clone)]
struct Weight;

impl Weighter<Asked, Answer> for Weight {
    fn weight(&self, asked: &Asked, answer: &Answer) -> u64 {
        (ENTRY_BYTES + asked.bytes.len() + answer.header.len() + answer.reply.len()) as u64
    }
}

/// Of all connections.
pub(crate) struct Remembered {
    /// None: there is no room for any.
    answers: Option<Cache<Asked, Answer, Weight, BuildHasherDefault<AlreadyHashed>>>,
}

impl Remembered {
    pub fn new(bytes_max: usize) -> Self {
        let mut options = OptionsBuilder::new();
        options.estimated_items_capacity(bytes_max / TYPICAL_ENTRY_BYTES);
        options.weight_capacity(bytes_max as u64);
        // (Each has room for several of the longest.)
        options.shards((bytes_max / SHARD_BYTES_MIN).clamp(1, SHARDS_MAX));
        let cache = |options| {
            Cache::with_options(options, Weight, BuildHasherDefault::default(), DefaultLifecycle::default())
        };
        let options = options.build().ok().filter(|_| bytes_max > 0);
        Self { answers: options.map(cache) }
    }

    pub fn remembers_any(&self) -> bool {
        self.answers.is_some()
    }

    /// The reply, if there was one of the same header, and nothing was loaded since ([`Store::loaded`](crate::Store::loaded)). That is
    /// looked up, in this order, only if there was one at all: so it cannot be older than the reply.
    pub fn find(
        &self,
        asked: &Asked,
        header: impl FnOnce() -> Option<Record>,
        loaded: impl FnOnce() -> u64,
    ) -> Option<Reply> {
        let answer = self.answers.as_ref()?.get(asked)?;
        let header = header()?;
        let holds = answer.is_of(&header, loaded()) || mutant::active(Mutant::RemembersWithoutVersion);
        holds.then_some(Reply::Encoded(answer.reply))
    }

    /// This was the reply while the object had this header, and no other, and nothing was loaded.
    pub fn note(&self, asked: Asked, header: &Record, loaded: u64, reply: &Reply) {
        let Some(answers) = &self.answers else { return };
        if reply.is_error() || reply.size() > SHORT_BYTES {
            return;
        }
        let mut encoded = BytesMut::with_capacity(reply.size());
        reply.encode(asked.protocol(), &mut encoded);
        // Copies: what they are slices of may be much longer.
        let answer = Answer {
            seq: header.seq,
            header: Bytes::copy_from_slice(&header.value),
            loaded,
            reply: Bytes::copy_from_slice(&encoded),
        };
        answers.insert(asked, answer);
    }
}
