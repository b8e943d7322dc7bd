//! The IDENTITY file of a device directory: whose log it is, and the salt of all its checksums. Written once, durably,
//! before the first segment.
//!
//! ```text
//!  0 magic [8] "SXRFTLID"   8 version u32   12 salt u32   16 node u64   24 device u16   26 devices u16
//! 28 cluster length u16    30 cluster (UTF-8, up to 64 bytes)    96 crc u32 of bytes 0..96
//! ```

use super::FORMAT_VERSION;
use super::fields::{put, u16_at, u32_at, u64_at};

const MAGIC: &[u8; 8] = b"SXRFTLID";
const IDENTITY_BYTES: usize = 100;
/// As the cluster's configuration allows.
pub(crate) const CLUSTER_BYTES_MAX: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub cluster: String,
    pub node: u64,
    pub device: u16,
    pub devices: u16,
    /// Random, so that stored values cannot be made to look like parts of the log.
    pub salt: u32,
}

impl Identity {
    /// Whether both name the same place in the same cluster.
    pub fn is_same_place(&self, other: &Identity) -> bool {
        (&self.cluster, self.node, self.device, self.devices)
            == (&other.cluster, other.node, other.device, other.devices)
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; IDENTITY_BYTES];
        put(&mut out, 0, MAGIC);
        put(&mut out, 8, &FORMAT_VERSION.to_le_bytes());
        put(&mut out, 12, &self.salt.to_le_bytes());
        put(&mut out, 16, &self.node.to_le_bytes());
        put(&mut out, 24, &self.device.to_le_bytes());
        put(&mut out, 26, &self.devices.to_le_bytes());
        put(&mut out, 28, &(self.cluster.len() as u16).to_le_bytes());
        put(&mut out, 30, self.cluster.as_bytes());
        let crc = crc32c::crc32c(&out[..96]);
        put(&mut out, 96, &crc.to_le_bytes());
        out
    }

    /// The identity, or why it cannot be had.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() < 12 || &bytes[..8] != MAGIC {
            return Err("not the identity of a log device".into());
        }
        // Before the checksum: another version may have another length.
        let version = u32_at(bytes, 8);
        if version != FORMAT_VERSION {
            return Err(format!("format version {version}: this program knows version {FORMAT_VERSION}"));
        }
        if bytes.len() != IDENTITY_BYTES || u32_at(bytes, 96) != crc32c::crc32c(&bytes[..96]) {
            return Err("the checksum does not match".into());
        }
        let cluster = cluster_at(bytes, 28).ok_or("the name of the cluster is not one")?;
        Ok(Self {
            cluster,
            node: u64_at(bytes, 16),
            device: u16_at(bytes, 24),
            devices: u16_at(bytes, 26),
            salt: u32_at(bytes, 12),
        })
    }
}

/// A cluster's name: its length (u16) at `at`, and its bytes.
pub(super) fn cluster_at(bytes: &[u8], at: usize) -> Option<String> {
    let length = usize::from(u16_at(bytes, at));
    let name = bytes.get(at + 2..at + 2 + length).filter(|name| name.len() <= CLUSTER_BYTES_MAX)?;
    std::str::from_utf8(name).ok().map(str::to_owned)
}

impl std::fmt::Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { cluster, node, device, devices, .. } = self;
        write!(f, "cluster {cluster:?}, node {node}, log device {} of {devices}", u32::from(*device) + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_round_trips_and_says_what_is_wrong() {
        let identity = Identity { cluster: "prod".into(), node: 3, device: 0, devices: 2, salt: 99 };
        let bytes = identity.encode();
        assert_eq!(Identity::decode(&bytes), Ok(identity.clone()));
        assert_eq!(identity.to_string(), "cluster \"prod\", node 3, log device 1 of 2");
        let last = Identity { device: u16::MAX, devices: u16::MAX, ..identity.clone() };
        assert!(last.to_string().ends_with("log device 65536 of 65535"), "shown when it is refused: {last}");
        assert!(!identity.is_same_place(&Identity { node: 4, ..identity.clone() }));
        assert!(identity.is_same_place(&Identity { salt: 1, ..identity.clone() }));
        let mut other = bytes.clone();
        other[8] = 2;
        assert!(Identity::decode(&other).unwrap_err().contains("format version 2"));
        let mut bad = bytes.clone();
        bad[40] ^= 1;
        assert!(Identity::decode(&bad).unwrap_err().contains("checksum"));
        assert!(Identity::decode(b"").is_err());
    }

    #[test]
    fn a_cluster_name_that_is_none_is_refused_even_under_a_right_checksum() {
        let bytes = Identity { cluster: "prod".into(), node: 3, device: 0, devices: 2, salt: 99 }.encode();
        for (at, value) in [(28, 65), (28, 255), (29, 1), (30, 0xff)] {
            let mut bad = bytes.clone();
            bad[at] = value;
            let crc = crc32c::crc32c(&bad[..96]);
            put(&mut bad, 96, &crc.to_le_bytes());
            assert!(Identity::decode(&bad).unwrap_err().contains("cluster"), "byte {at}");
        }
    }
}
