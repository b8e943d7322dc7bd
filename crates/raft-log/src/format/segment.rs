//! Segment headers.
//!
//! ```text
//!   0 magic [8] "SXRFTLOG"      8 version u32        12 zero u32
//!  16 generation u64           rises on its device with every use of a file; never given twice
//!  24 previous_generation u64  the segment before it on the device; 0: none
//!  32 previous_end u32         where that one's batches end      36 device index u16   38 number of devices u16
//!  40 previous_last_lsn u64    highest lsn of that one, and of all before it
//!  48 first_lsn u64            no record of the segment has a smaller lsn
//!  56 node u64                 64 fingerprint u64 (for people; not enforced)
//!  72 cluster length u16       74 cluster (UTF-8, up to 64 bytes)
//! 252 crc u32 of bytes 0..252; zeros up to 4096
//! ```

use std::path::Path;

use super::fields::{put, u16_at, u32_at, u64_at};
use super::identity::{Identity, cluster_at};
use super::{FORMAT_VERSION, NUMBER_MAX};

pub(crate) const SEGMENT_MAGIC: &[u8; 8] = b"SXRFTLOG";
/// A page of its own, so that no later write touches it.
pub(crate) const SEGMENT_HEADER_BYTES: u64 = 4096;
const CHECKED_BYTES: usize = 252;

/// What a segment is called in its directory.
pub(crate) fn file_name(number: u64) -> String {
    format!("segment-{number:06}.log")
}

/// The number in a segment file's name.
pub(crate) fn file_number(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.strip_prefix("segment-")?.strip_suffix(".log")?.parse().ok()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub generation: u64,
    pub previous_generation: u64,
    pub previous_end: u32,
    pub previous_last_lsn: u64,
    pub first_lsn: u64,
    pub fingerprint: u64,
    pub identity: Identity,
}

/// What stands at the start of a file.
pub(crate) enum FoundHeader {
    /// Zeros: prepared, not used yet.
    Unused,
    Valid(SegmentHeader),
    /// Whole, but of a format that this program does not know.
    OtherVersion(u32),
    Unreadable,
}

impl SegmentHeader {
    /// The whole header page.
    pub fn encode(&self, salt: u32) -> Vec<u8> {
        let mut out = vec![0; SEGMENT_HEADER_BYTES as usize];
        put(&mut out, 0, SEGMENT_MAGIC);
        put(&mut out, 8, &FORMAT_VERSION.to_le_bytes());
        put(&mut out, 16, &self.generation.to_le_bytes());
        put(&mut out, 24, &self.previous_generation.to_le_bytes());
        put(&mut out, 32, &self.previous_end.to_le_bytes());
        put(&mut out, 36, &self.identity.device.to_le_bytes());
        put(&mut out, 38, &self.identity.devices.to_le_bytes());
        put(&mut out, 40, &self.previous_last_lsn.to_le_bytes());
        put(&mut out, 48, &self.first_lsn.to_le_bytes());
        put(&mut out, 56, &self.identity.node.to_le_bytes());
        put(&mut out, 64, &self.fingerprint.to_le_bytes());
        let cluster = self.identity.cluster.as_bytes();
        put(&mut out, 72, &(cluster.len() as u16).to_le_bytes());
        put(&mut out, 74, cluster);
        let crc = crc32c::crc32c_append(salt, &out[..CHECKED_BYTES]);
        put(&mut out, CHECKED_BYTES, &crc.to_le_bytes());
        out
    }

    pub fn decode(bytes: &[u8], salt: u32) -> FoundHeader {
        let checked = &bytes[..bytes.len().min(CHECKED_BYTES + 4)];
        if checked.iter().all(|b| *b == 0) {
            return FoundHeader::Unused;
        }
        if checked.len() < CHECKED_BYTES + 4
            || &checked[..8] != SEGMENT_MAGIC
            || u32_at(checked, CHECKED_BYTES) != crc32c::crc32c_append(salt, &checked[..CHECKED_BYTES])
        {
            return FoundHeader::Unreadable;
        }
        let version = u32_at(checked, 8);
        if version != FORMAT_VERSION {
            return FoundHeader::OtherVersion(version);
        }
        let (generation, first_lsn) = (u64_at(checked, 16), u64_at(checked, 48));
        let previous_generation = u64_at(checked, 24);
        // A segment before itself would be a chain without an end.
        let sound = previous_generation < generation && generation.max(first_lsn) <= NUMBER_MAX;
        let Some(cluster) = cluster_at(checked, 72).filter(|_| sound) else { return FoundHeader::Unreadable };
        let identity = Identity {
            cluster,
            node: u64_at(checked, 56),
            device: u16_at(checked, 36),
            devices: u16_at(checked, 38),
            salt,
        };
        FoundHeader::Valid(Self {
            generation,
            previous_generation,
            previous_end: u32_at(checked, 32),
            previous_last_lsn: u64_at(checked, 40),
            first_lsn,
            fingerprint: u64_at(checked, 64),
            identity,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_of_segments_has_an_end() {
        let identity = Identity { cluster: "c".into(), node: 1, device: 0, devices: 1, salt: 4 };
        let header = |generation, previous_generation| SegmentHeader {
            generation,
            previous_generation,
            previous_end: 4096,
            previous_last_lsn: 0,
            first_lsn: 1,
            fingerprint: 0,
            identity: identity.clone(),
        };
        let decoded = |header: SegmentHeader| SegmentHeader::decode(&header.encode(4), 4);
        assert!(matches!(decoded(header(1, 0)), FoundHeader::Valid(_)));
        for (generation, previous) in [(0, 0), (3, 3), (3, 4), (u64::MAX, 1)] {
            assert!(matches!(decoded(header(generation, previous)), FoundHeader::Unreadable), "{generation}");
        }
    }

    #[test]
    fn a_header_round_trips_and_its_bytes_are_checked() {
        let header = SegmentHeader {
            generation: 9,
            previous_generation: 8,
            previous_end: 640,
            previous_last_lsn: 11,
            first_lsn: 12,
            fingerprint: 13,
            identity: Identity { cluster: "c".repeat(64), node: 1, device: 1, devices: 2, salt: 4 },
        };
        let bytes = header.encode(4);
        assert!(matches!(SegmentHeader::decode(&bytes, 4), FoundHeader::Valid(found) if found == header));
        assert!(matches!(SegmentHeader::decode(&bytes, 5), FoundHeader::Unreadable));
        assert!(matches!(SegmentHeader::decode(&bytes[..100], 4), FoundHeader::Unreadable));
        assert!(matches!(SegmentHeader::decode(&[0; 4096], 4), FoundHeader::Unused));
        assert!(matches!(SegmentHeader::decode(&[], 4), FoundHeader::Unused));
        for at in 0..256 {
            let mut bad = bytes.clone();
            bad[at] ^= 2;
            assert!(matches!(SegmentHeader::decode(&bad, 4), FoundHeader::Unreadable), "byte {at}");
        }
    }
}
