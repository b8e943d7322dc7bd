//! The encoding of entries and memberships, the same on disk and on the wire.
//!
//! Entry: one kind byte (0 blank, 1 normal, 2 membership), then the payload (blank: none; normal: the opaque bytes;
//! membership: as below). The position travels beside it.
//!
//! Membership, little-endian: version u8, number of configurations u16, per configuration the number of voters u16 and
//! their ids u64; number of nodes u16, per node id u64, address length u16, address (UTF-8) and, from version 2 on, incarnation u64.
//! Version 1 stands for a membership that names no incarnation (each is 0), and is written for such a one only. A stored membership
//! puts a flag byte (0: no log id, 1: term u64 and index u64 follow) before it.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{BufMut, Bytes, BytesMut};
use openraft::EntryPayload;
use sextant_common::ids::LogPosition;
use sextant_common::{Error, Result};

use crate::types::{Entry, Member, Membership, Payload, StoredMembership, log_id, log_id_at};

pub(crate) const KIND_BLANK: u8 = 0;
pub(crate) const KIND_NORMAL: u8 = 1;
pub(crate) const KIND_MEMBERSHIP: u8 = 2;

/// Without incarnations, and with them.
const MEMBERSHIP_VERSIONS: [u8; 2] = [1, 2];

/// Encodes an entry without its position. Copies the payload once.
pub fn encode_entry(entry: &Entry) -> Bytes {
    let (kind, payload) = split_entry(entry);
    let mut out = BytesMut::with_capacity(1 + payload.len());
    out.put_u8(kind);
    out.put_slice(&payload);
    out.freeze()
}

/// Decodes an entry; a normal entry's payload is a slice of `bytes`. [`sextant_common::ErrorKind::Corrupt`] if the bytes
/// are not an entry.
pub fn decode_entry(position: LogPosition, bytes: Bytes) -> Result<Entry> {
    let Some(&kind) = bytes.first() else { return Err(Error::corrupt("an entry has no kind byte")) };
    join_entry(position, kind, bytes.slice(1..))
}

/// An entry's kind byte and payload; shares the bytes of a normal entry.
pub(crate) fn split_entry(entry: &Entry) -> (u8, Bytes) {
    match &entry.payload {
        EntryPayload::Blank => (KIND_BLANK, Bytes::new()),
        EntryPayload::Normal(payload) => (KIND_NORMAL, payload.0.clone()),
        EntryPayload::Membership(membership) => {
            let mut out = BytesMut::new();
            put_membership(&mut out, membership);
            (KIND_MEMBERSHIP, out.freeze())
        }
    }
}

pub(crate) fn join_entry(position: LogPosition, kind: u8, payload: Bytes) -> Result<Entry> {
    let payload = match kind {
        KIND_BLANK if payload.is_empty() => EntryPayload::Blank,
        KIND_NORMAL => EntryPayload::Normal(Payload(payload)),
        KIND_MEMBERSHIP => {
            let mut reader = Reader(&payload);
            let membership = reader.membership()?;
            reader.end()?;
            EntryPayload::Membership(membership)
        }
        _ => return Err(Error::corrupt(format!("entry {position}: unknown kind {kind}"))),
    };
    Ok(Entry { log_id: log_id_at(position), payload })
}

/// Encodes a membership and the log id that it was stored at.
pub fn encode_membership(stored: &StoredMembership) -> Bytes {
    let mut out = BytesMut::new();
    match stored.log_id() {
        None => out.put_u8(0),
        Some(id) => {
            out.put_u8(1);
            out.put_u64_le(id.leader_id.term);
            out.put_u64_le(id.index);
        }
    }
    put_membership(&mut out, stored.membership());
    out.freeze()
}

/// The inverse of [`encode_membership`]. [`sextant_common::ErrorKind::Corrupt`] if the bytes are not one.
pub fn decode_membership(bytes: &[u8]) -> Result<StoredMembership> {
    let mut reader = Reader(bytes);
    let id = match reader.u8()? {
        0 => None,
        1 => Some(log_id(reader.u64()?, reader.u64()?)),
        flag => return Err(Error::corrupt(format!("membership: unknown flag {flag}"))),
    };
    let membership = reader.membership()?;
    reader.end()?;
    Ok(StoredMembership::new(id, membership))
}

fn put_membership(out: &mut BytesMut, membership: &Membership) {
    let [without, with] = MEMBERSHIP_VERSIONS;
    let version = if membership.nodes().all(|(_, node)| node.incarnation == 0) { without } else { with };
    out.put_u8(version);
    let configs = membership.get_joint_config();
    out.put_u16_le(configs.len() as u16);
    for config in configs {
        out.put_u16_le(config.len() as u16);
        for id in config {
            out.put_u64_le(*id);
        }
    }
    out.put_u16_le(membership.nodes().count() as u16);
    for (id, node) in membership.nodes() {
        out.put_u64_le(*id);
        // An address is `host:port`, far below 64 KiB; what is longer could not be connected to either.
        let addr = &node.addr.as_bytes()[..node.addr.len().min(usize::from(u16::MAX))];
        out.put_u16_le(addr.len() as u16);
        out.put_slice(addr);
        if version == with {
            out.put_u64_le(node.incarnation);
        }
    }
}

/// Reads fields off untrusted bytes.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let (head, rest) =
            self.0.split_at_checked(len).ok_or_else(|| Error::corrupt("membership: too short"))?;
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| Error::corrupt("membership: too short"))
    }

    fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn end(&self) -> Result<()> {
        if self.0.is_empty() { Ok(()) } else { Err(Error::corrupt("membership: bytes left over")) }
    }

    fn membership(&mut self) -> Result<Membership> {
        let version = self.u8()?;
        if !MEMBERSHIP_VERSIONS.contains(&version) {
            return Err(Error::corrupt(format!("membership: unknown version {version}")));
        }
        let mut configs = Vec::new();
        for _ in 0..self.u16()? {
            let mut config = BTreeSet::new();
            for _ in 0..self.u16()? {
                config.insert(self.u64()?);
            }
            configs.push(config);
        }
        let mut nodes = BTreeMap::new();
        for _ in 0..self.u16()? {
            let id = self.u64()?;
            let len = self.u16()?;
            let addr = std::str::from_utf8(self.take(usize::from(len))?)
                .map_err(|_| Error::corrupt("membership: an address is not UTF-8"))?;
            let incarnation = if version == MEMBERSHIP_VERSIONS[1] { self.u64()? } else { 0 };
            nodes.insert(id, Member::new(addr, incarnation));
        }
        if configs.is_empty() && nodes.is_empty() {
            return Ok(Membership::default());
        }
        Membership::new(configs, nodes).map_err(|e| Error::corrupt(format!("membership: {e}")))
    }
}
