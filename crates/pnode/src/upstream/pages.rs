//! Pages of scans, of memtables and of SSTables.

use bytes::Bytes;
use sextant_common::expiry::Tick;
use sextant_common::ids::Seq;
use sextant_common::sstable::RecordVersion;
use sextant_proto::v1;

/// What to scan, and how much of it at once.
#[derive(Clone, Debug)]
pub(crate) struct PageRequest {
    pub start: Bytes,
    pub end: Bytes,
    pub reverse: bool,
    pub records_max: u32,
    pub bytes_max: u32,
    /// A longer first record is not sent, but its length; 0: any is.
    pub first_bytes_max: u32,
}

/// What a source has of a range: all of it, or up to (and with) its last record.
#[derive(Clone, Debug, Default)]
pub(crate) struct Page {
    /// In the direction of the scan; tombstones included.
    pub records: Vec<RecordVersion>,
    pub complete: bool,
}

/// What a leader said when it was asked for a page of its memtables.
#[derive(Clone, Debug)]
pub(crate) enum MemtablePageSays {
    /// The memtables as of this seq; what has expired by the tick is absent, in SSTables too.
    Page(Seq, Tick, Page),
    /// The page begins with a record of so many bytes, which has to be asked for alone.
    Large(usize),
    /// A flush was applied after the version that was named. If it came along, what is current has been installed.
    Stale {
        installed: bool,
    },
    NotLeader,
    NotReady,
    UnknownTable,
}

/// What an sstable server said when it was asked for a page.
#[derive(Clone, Debug)]
pub(crate) enum SstPageSays {
    Page(Page),
    Large(usize),
    Damaged(String),
    /// A table is gone, or cannot be read.
    Unable(String),
}

/// The records of a message.
pub(super) fn page(records: Vec<v1::ScanRecord>, complete: bool) -> Page {
    Page { records: records.into_iter().map(RecordVersion::from).collect(), complete }
}
