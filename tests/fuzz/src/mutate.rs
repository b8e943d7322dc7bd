//! A mutator that knows nothing of coverage: for stable Rust, and as a bounded part of the tests.

use fastrand::Rng;

/// Values at the edges of what fields can hold.
const EDGES: [u64; 12] =
    [0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, 1 << 32, i64::MAX as u64, u64::MAX];

/// An input made of one or two of the others by a few changes, at most `bytes_max` long.
pub fn mutated(rng: &mut Rng, inputs: &[Vec<u8>], bytes_max: usize) -> Vec<u8> {
    let mut out = if inputs.is_empty() { Vec::new() } else { inputs[rng.usize(..inputs.len())].clone() };
    for _ in 0..1 << rng.u32(0..5) {
        change(rng, &mut out, inputs);
    }
    out.truncate(bytes_max);
    out
}

fn change(rng: &mut Rng, out: &mut Vec<u8>, inputs: &[Vec<u8>]) {
    if out.is_empty() {
        out.push(rng.u8(..));
        return;
    }
    let at = rng.usize(..out.len());
    match rng.u8(..9) {
        0 => out[at] ^= 1 << rng.u8(..8),
        1 => out[at] = rng.u8(..),
        2 => out[at] = out[at].wrapping_add(rng.u8(..17)).wrapping_sub(8),
        3 => {
            // A field's edge, in either order of bytes.
            let width = 1 << rng.usize(..4);
            let value = EDGES[rng.usize(..EDGES.len())];
            let end = (at + width).min(out.len());
            let bytes = if rng.bool() {
                value.to_le_bytes()
            } else {
                value.rotate_right(8 * width as u32).to_be_bytes()
            };
            out[at..end].copy_from_slice(&bytes[..end - at]);
        }
        4 => out.truncate(at),
        5 => {
            let end = (at + rng.usize(1..=16)).min(out.len());
            out.drain(at..end);
        }
        6 => {
            let piece: Vec<u8> = out[at..(at + rng.usize(1..=32)).min(out.len())].to_vec();
            out.splice(at..at, piece);
        }
        7 => {
            let piece: Vec<u8> = (0..rng.usize(1..=8)).map(|_| rng.u8(..)).collect();
            out.splice(at..at, piece);
        }
        _ => {
            // The end of another input, from anywhere.
            let other = &inputs[rng.usize(..inputs.len())];
            if !other.is_empty() {
                let from = rng.usize(..other.len());
                out.truncate(at);
                out.extend_from_slice(&other[from..]);
            }
        }
    }
}
