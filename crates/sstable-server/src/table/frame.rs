//! A frame: how every part of a table file but its trailer lies on disk.
//!
//! Bytes: payload, compression u8 (0 none, 1 LZ4, 2 Zstd), payload length before compression u32, checksum u32. The checksum is the
//! low half of xxh3_64 over all bytes before it, with a seed made of the table's identity and the frame's offset: bytes
//! of another table or of another place fail it too.

use bytes::Bytes;
use sextant_common::manifest::Compression;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::codec::u32_at;
use super::zstd::{Packer, Unpacker};

/// Bytes after the payload.
pub const TAIL_BYTES: usize = 9;
/// Longest payload before compression: a block with the largest record, and filters of tables with 3 billion keys.
pub const PAYLOAD_BYTES_MAX: usize = u32::MAX as usize;

const PLAIN: u8 = 0;
const LZ4: u8 = 1;
const ZSTD: u8 = 2;
/// Nothing is compressed by more: a longer claim is not worth an allocation. (LZ4 cannot.)
const EXPANSION_MAX: usize = 255;
/// A payload is stored compressed if that saves at least one part in so many: less is not worth decompressing it at
/// every read.
const WORTHWHILE_PART: usize = 8;

/// Why a frame is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    TooShort,
    Checksum { got: u32, expected: u32 },
    UnknownCompression(u8),
    Length,
}

impl std::fmt::Display for FrameError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FrameError::TooShort => f.write_str("frame is too short"),
            FrameError::Checksum { got, expected } => {
                write!(f, "checksum mismatch (got {got:#010x}, expected {expected:#010x})")
            }
            FrameError::UnknownCompression(kind) => write!(f, "unknown compression {kind}"),
            FrameError::Length => f.write_str("payload does not have the stated length"),
        }
    }
}

/// Appends the frame of `payload` to `out`; returns its length. `seed` is [`super::frame_seed`] of where it will lie.
/// (Zstd takes a [`Packer`].)
pub fn encode(payload: &[u8], compression: Compression, seed: u64, out: &mut Vec<u8>) -> usize {
    let start = out.len();
    let kind = match compression {
        Compression::Lz4 | Compression::Zstd => lz4(payload, out),
        Compression::None => None,
    };
    complete(payload, kind, start, seed, out)
}

/// As [`encode`], with Zstd if that is worth it.
pub fn encode_packed(payload: &[u8], packer: &mut Packer, seed: u64, out: &mut Vec<u8>) -> usize {
    let start = out.len();
    let kind = zstd(payload, packer, out).or_else(|| lz4(payload, out));
    complete(payload, kind, start, seed, out)
}

/// `kind`: of the compressed payload that `out` has from `start` on; none has it yet.
fn complete(payload: &[u8], kind: Option<u8>, start: usize, seed: u64, out: &mut Vec<u8>) -> usize {
    debug_assert!(payload.len() <= PAYLOAD_BYTES_MAX);
    if kind.is_none() {
        out.extend_from_slice(payload);
    }
    out.push(kind.unwrap_or(PLAIN));
    out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    let checksum = xxh3_64_with_seed(&out[start..], seed) as u32;
    out.extend_from_slice(&checksum.to_le_bytes());
    out.len() - start
}

fn lz4(payload: &[u8], out: &mut Vec<u8>) -> Option<u8> {
    let most = lz4_flex::block::get_maximum_output_size(payload.len());
    let compress = |room: &mut [u8]| lz4_flex::block::compress_into(payload, room).ok();
    compressed(payload, most, compress, out).then_some(LZ4)
}

fn zstd(payload: &[u8], packer: &mut Packer, out: &mut Vec<u8>) -> Option<u8> {
    let most = Packer::most(payload.len());
    compressed(payload, most, |room| packer.pack(payload, room), out).then_some(ZSTD)
}

/// Appends the compressed payload if that is worth it; otherwise leaves `out` as it was.
fn compressed(
    payload: &[u8],
    most: usize,
    compress: impl FnOnce(&mut [u8]) -> Option<usize>,
    out: &mut Vec<u8>,
) -> bool {
    let start = out.len();
    out.resize(start + most, 0);
    let is_worth_it = |len: &usize| {
        *len <= payload.len() - payload.len() / WORTHWHILE_PART
            && *len < payload.len()
            && payload.len() / EXPANSION_MAX <= *len
    };
    let len = compress(&mut out[start..]).filter(is_worth_it);
    out.truncate(start + len.unwrap_or(0));
    len.is_some()
}

/// How long the payload says it is that a frame, or its tail, ends; not checked.
pub fn stated_bytes(frame: &[u8]) -> Option<usize> {
    u32_at(frame, frame.len().checked_sub(TAIL_BYTES)? + 1).map(|stated| stated as usize)
}

/// The payload of a frame that was read from disk. An uncompressed one is a slice of `frame`.
pub fn decode(frame: &Bytes, seed: u64, unpacker: &Unpacker) -> Result<Bytes, FrameError> {
    let Some(payload_len) = frame.len().checked_sub(TAIL_BYTES) else { return Err(FrameError::TooShort) };
    let expected = u32_at(frame, frame.len() - 4).ok_or(FrameError::TooShort)?;
    let got = xxh3_64_with_seed(&frame[..frame.len() - 4], seed) as u32;
    if got != expected {
        return Err(FrameError::Checksum { got, expected });
    }
    let stated = u32_at(frame, payload_len + 1).ok_or(FrameError::TooShort)? as usize;
    let kind = frame[payload_len];
    if kind == PLAIN {
        return if stated == payload_len { Ok(frame.slice(..payload_len)) } else { Err(FrameError::Length) };
    }
    if stated / EXPANSION_MAX > payload_len {
        return Err(FrameError::Length);
    }
    let (packed, mut payload) = (&frame[..payload_len], vec![0; stated]);
    let len = match kind {
        LZ4 => lz4_flex::block::decompress_into(packed, &mut payload).ok(),
        ZSTD => unpacker.unpack(packed, &mut payload),
        other => return Err(FrameError::UnknownCompression(other)),
    };
    if len == Some(stated) { Ok(payload.into()) } else { Err(FrameError::Length) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decode(frame: &Bytes, seed: u64) -> Result<Bytes, FrameError> {
        super::decode(frame, seed, &Unpacker::default())
    }

    proptest! {
        #[test]
        fn frames_round_trip_and_notice_every_flipped_bit(
            payload in prop::collection::vec(0u8..4, 0..600), codec in 0u8..3, seed in any::<u64>(), bit in any::<prop::sample::Index>(),
        ) {
            let mut out = vec![7];
            let len = match codec {
                0 => encode(&payload, Compression::None, seed, &mut out),
                1 => encode(&payload, Compression::Lz4, seed, &mut out),
                _ => encode_packed(&payload, &mut Packer::new(None).unwrap(), seed, &mut out),
            };
            prop_assert_eq!(len + 1, out.len());
            let frame = Bytes::copy_from_slice(&out[1..]);
            prop_assert_eq!(decode(&frame, seed), Ok(Bytes::from(payload)));
            prop_assert!(decode(&frame, seed ^ 1).is_err());
            let bit = bit.index(frame.len() * 8);
            let mut flipped = frame.to_vec();
            flipped[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(decode(&flipped.into(), seed).is_err());
        }

        #[test]
        fn no_bytes_make_it_panic_even_under_a_right_checksum(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let mut frame = bytes;
            let checksum = xxh3_64_with_seed(&frame, 3) as u32;
            frame.extend_from_slice(&checksum.to_le_bytes());
            let _ = decode(&frame.into(), 3);
        }
    }

    #[test]
    fn what_does_not_shrink_is_stored_plain() {
        let noise: Vec<u8> =
            (0..4096u64).map(|i| sextant_common::key::filter_hash(&i.to_le_bytes()) as u8).collect();
        let mut out = Vec::new();
        encode(&noise, Compression::Lz4, 0, &mut out);
        assert_eq!(out.len(), noise.len() + TAIL_BYTES);
        assert_eq!(out[noise.len()], PLAIN);
        out.clear();
        encode(&[0; 4096], Compression::Lz4, 0, &mut out);
        assert!(out.len() < 100);
        assert_eq!(out[out.len() - TAIL_BYTES], LZ4);
    }

    #[test]
    fn nothing_expands_by_more_than_a_reader_believes() {
        let mut packer = Packer::new(None).unwrap();
        for (payload, kind) in [(vec![0; 1 << 20], LZ4), (b"one two three ".repeat(50), ZSTD)] {
            let mut out = Vec::new();
            encode_packed(&payload, &mut packer, 0, &mut out);
            assert_eq!(out[out.len() - TAIL_BYTES], kind);
            assert_eq!(decode(&out.into(), 0), Ok(payload.into()));
        }
    }
}
