//! What is queued: records, and who waits for them.

use std::io;

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::format::record::{RECORD_HEADER_BYTES, RecordKind};
use crate::types::IoFlushed;

/// A record that waits for a device.
pub(crate) struct Item {
    pub payload: Bytes,
    pub term: u64,
    pub index: u64,
    /// Slot of the partition, not its id.
    pub slot: u32,
    pub kind: RecordKind,
    pub detail: u8,
}

impl Item {
    /// A record without a payload.
    pub fn control(slot: u32, kind: RecordKind, detail: bool, (term, index): (u64, u64)) -> Self {
        Self { payload: Bytes::new(), term, index, slot, kind, detail: detail.into() }
    }

    pub fn bytes(&self) -> u64 {
        (RECORD_HEADER_BYTES + self.payload.len()) as u64
    }
}

/// Who waits until a record is durable.
pub(crate) enum Completion {
    Flushed(IoFlushed),
    Signal(oneshot::Sender<io::Result<()>>),
}

impl Completion {
    pub fn complete(self, result: io::Result<()>) {
        match self {
            Self::Flushed(callback) => callback.io_completed(result),
            Self::Signal(waiter) => {
                let _ = waiter.send(result);
            }
        }
    }
}
