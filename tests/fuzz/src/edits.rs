//! Damage to files, as an input describes it.
//!
//! An edit is 8 bytes: kind u8, file u8, offset u32, length u8, value u8 (little-endian). So a mutator that knows nothing of the
//! format moves, widens and combines damage.

use crate::input::Input;

/// More edits than that make a file unlike any that was damaged by accident, and runs slow.
const EDITS_MAX: usize = 24;

/// How far behind the last byte that is not zero edits still go.
const SLACK_BYTES: usize = 64;

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Turns the bits of `value` over.
    Flip,
    Set,
    /// Zeros up to 64 times the length: sectors that were never written.
    Zero,
    /// Cuts the file.
    Cut,
    /// Copies bytes from `value` sectors further on.
    Copy,
    /// Adds to a little-endian u32: lengths and counts.
    Add,
}

#[derive(Clone, Copy, Debug)]
pub struct Edit {
    kind: Kind,
    file: u8,
    offset: u32,
    length: u8,
    value: u8,
}

/// The edits that an input describes.
pub fn read(input: &mut Input<'_>) -> Vec<Edit> {
    let mut edits = Vec::new();
    while !input.is_empty() && edits.len() < EDITS_MAX {
        let kind = match input.u8() % 6 {
            0 => Kind::Flip,
            1 => Kind::Set,
            2 => Kind::Zero,
            3 => Kind::Cut,
            4 => Kind::Copy,
            _ => Kind::Add,
        };
        let (file, offset) = (input.u8(), input.u32());
        edits.push(Edit { kind, file, offset, length: input.u8(), value: input.u8() });
    }
    edits
}

/// An input that turns over one bit.
pub fn flip(file: u8, offset: usize, mask: u8) -> Vec<u8> {
    let mut out = vec![0, file];
    out.extend_from_slice(&(offset as u32).to_le_bytes());
    out.extend_from_slice(&[1, mask]);
    out
}

/// An input that cuts a file.
pub fn cut(file: u8, offset: usize) -> Vec<u8> {
    let mut out = flip(file, offset, 0);
    out[0] = 3;
    out
}

impl Edit {
    pub fn apply(&self, files: &mut [Vec<u8>]) {
        if files.is_empty() {
            return;
        }
        let which = usize::from(self.file) % files.len();
        let bytes = &mut files[which];
        if bytes.is_empty() {
            return;
        }
        // Files of the log end in zeros that mean nothing: damage there is no damage.
        let used = bytes.iter().rposition(|b| *b != 0).map_or(1, |last| last + 1);
        let at = self.offset as usize % (used + SLACK_BYTES).min(bytes.len());
        let length = usize::from(self.length).max(1);
        let end = (at + length).min(bytes.len());
        match self.kind {
            Kind::Flip => bytes[at..end].iter_mut().for_each(|b| *b ^= self.value),
            Kind::Set => bytes[at..end].fill(self.value),
            Kind::Zero => {
                let end = (at + 64 * length).min(bytes.len());
                bytes[at..end].fill(0);
            }
            Kind::Cut => bytes.truncate(at),
            Kind::Copy => {
                let from = (at + 64 * usize::from(self.value)) % bytes.len();
                let length = (16 * length).min(bytes.len() - at.max(from));
                bytes.copy_within(from..from + length, at);
            }
            Kind::Add => {
                if let Some(field) = bytes.get_mut(at..at + 4) {
                    let value = u32::from_le_bytes(field.try_into().unwrap_or_default());
                    let change = (i32::from(self.value as i8)) << (self.length % 25);
                    field.copy_from_slice(&value.wrapping_add_signed(change).to_le_bytes());
                }
            }
        }
    }
}
