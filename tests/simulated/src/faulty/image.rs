//! One file's contents, as seen by processes and as they stand on the disk.
//!
//! Invariant: `current` is `durable` with all of `unsynced` applied in order, except for changes whose sync failed: those stay
//! visible (the page cache has them) and never become durable (the kernel took them for written).

use std::io;

use super::crash::CrashMode;

/// Disks write sectors whole; nothing larger.
const SECTOR: u64 = 512;
/// The files live in memory: a wild offset must not take it all.
const FILE_BYTES_MAX: u64 = 4 << 30;

#[derive(Debug)]
enum Change {
    Write { offset: u64, bytes: Box<[u8]> },
    SetLen(u64),
}

#[derive(Debug, Default)]
pub(super) struct Image {
    current: Vec<u8>,
    durable: Vec<u8>,
    unsynced: Vec<Change>,
}

impl Image {
    pub(super) fn len(&self) -> u64 {
        self.current.len() as u64
    }

    /// Whether the disk holds what processes see.
    pub(super) fn is_durable(&self) -> bool {
        self.unsynced.is_empty() && self.durable == self.current
    }

    /// How far a write would make the file grow, in bytes.
    pub(super) fn growth(&self, offset: u64, len: u64) -> u64 {
        offset.saturating_add(len).saturating_sub(self.len())
    }

    pub(super) fn read(&self, buf: &mut [u8], offset: u64) -> usize {
        let Some(rest) = usize::try_from(offset).ok().and_then(|offset| self.current.get(offset..)) else {
            return 0;
        };
        let n = buf.len().min(rest.len());
        buf[..n].copy_from_slice(&rest[..n]);
        n
    }

    pub(super) fn write(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > FILE_BYTES_MAX) {
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        }
        if !bytes.is_empty() {
            write_into(&mut self.current, bytes, offset);
            self.unsynced.push(Change::Write { offset, bytes: bytes.into() });
        }
        Ok(())
    }

    pub(super) fn set_len(&mut self, len: u64) -> io::Result<()> {
        if len > FILE_BYTES_MAX {
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        }
        self.current.resize(len as usize, 0);
        self.unsynced.push(Change::SetLen(len));
        Ok(())
    }

    /// A sync that worked.
    pub(super) fn sync(&mut self) {
        for change in self.unsynced.drain(..) {
            match change {
                Change::Write { offset, bytes } => write_into(&mut self.durable, &bytes, offset),
                Change::SetLen(len) => self.durable.resize(len as usize, 0),
            }
        }
    }

    /// A sync that failed: some of the changes reached the disk, the others never will.
    pub(super) fn fail_sync(&mut self, mode: CrashMode, rng: &mut fastrand::Rng) {
        for change in self.unsynced.drain(..) {
            if mode != CrashMode::LoseAll {
                survive(&mut self.durable, change, rng);
            }
        }
    }

    /// Power fails.
    pub(super) fn crash(&mut self, mode: CrashMode, rng: &mut fastrand::Rng) {
        self.fail_sync(mode, rng);
        self.current = self.durable.clone();
    }

    /// Bit rot: the bit is wrong from now on, until it is written again.
    pub(super) fn flip_bit(&mut self, offset: u64, bit: u8) -> bool {
        let mask = 1 << (bit % 8);
        let flip = |bytes: &mut [u8], at: u64| {
            let byte = usize::try_from(at).ok().and_then(|at| bytes.get_mut(at));
            byte.map(|byte| *byte ^= mask).is_some()
        };
        let found = flip(&mut self.current, offset);
        flip(&mut self.durable, offset);
        for change in &mut self.unsynced {
            if let Change::Write { offset: start, bytes } = change
                && let Some(at) = offset.checked_sub(*start)
            {
                flip(bytes, at);
            }
        }
        found
    }
}

fn write_into(contents: &mut Vec<u8>, bytes: &[u8], offset: u64) {
    let start = offset as usize;
    let end = start + bytes.len();
    if contents.len() < end {
        contents.resize(end, 0);
    }
    contents[start..end].copy_from_slice(bytes);
}

/// Applies an unsynced change wholly, partly or not at all.
fn survive(durable: &mut Vec<u8>, change: Change, rng: &mut fastrand::Rng) {
    match (change, rng.u8(0..3)) {
        (_, 0) => {}
        (Change::SetLen(len), _) => durable.resize(len as usize, 0),
        (Change::Write { offset, bytes }, 1) => write_into(durable, &bytes, offset),
        (Change::Write { offset, bytes }, _) => {
            // Torn at a boundary between sectors, if there is one inside; either side may be the one that made it.
            let first = offset / SECTOR + 1;
            let last = (offset + bytes.len() as u64 - 1) / SECTOR;
            if first > last {
                return;
            }
            let boundary = rng.u64(first..=last) * SECTOR;
            let (before, after) = bytes.split_at((boundary - offset) as usize);
            if rng.bool() {
                write_into(durable, before, offset);
            } else {
                write_into(durable, after, boundary);
            }
        }
    }
}
