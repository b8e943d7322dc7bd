//! How files of a repository that are messages are framed: magic, version u32, message, xxh3_64 of all before.

use prost::Message;
use xxhash_rust::xxh3::xxh3_64;

const MAGIC_BYTES: usize = 8;
const HEAD_BYTES: usize = MAGIC_BYTES + 4;
const DIGEST_BYTES: usize = 8;
/// What has fewer was not written to its end.
pub const BYTES_MIN: usize = HEAD_BYTES + DIGEST_BYTES;

pub fn framed(magic: [u8; MAGIC_BYTES], version: u32, message: &impl Message) -> Vec<u8> {
    let mut bytes = magic.to_vec();
    bytes.extend_from_slice(&version.to_le_bytes());
    bytes.extend_from_slice(&message.encode_to_vec());
    bytes.extend_from_slice(&xxh3_64(&bytes).to_le_bytes());
    bytes
}

/// What is wrong with it, else.
pub fn unframed<M: Message + Default>(
    magic: [u8; MAGIC_BYTES],
    version: u32,
    bytes: &[u8],
) -> Result<M, String> {
    if bytes.len() < BYTES_MIN || bytes[..MAGIC_BYTES] != magic {
        return Err("is none".into());
    }
    let (body, digest) = bytes.split_at(bytes.len() - DIGEST_BYTES);
    if xxh3_64(body).to_le_bytes() != digest {
        return Err("does not have its checksum".into());
    }
    let found = u32::from_le_bytes([body[8], body[9], body[10], body[11]]);
    if found != version {
        return Err(format!("has version {found}, this program knows version {version}"));
    }
    M::decode(&body[HEAD_BYTES..]).map_err(|e| e.to_string())
}
