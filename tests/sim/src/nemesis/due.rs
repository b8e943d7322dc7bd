//! What is to happen at a later time: the ends of faults, and the steps of scenes. Data; [`super::Nemesis`] carries it out.

use sextant_rules::probe::PausePoint;

use super::network::NetFault;
use crate::world::Wanted;

/// Nanoseconds in a millisecond.
pub(super) const MS: u64 = 1_000_000;

/// What ends a fault, or follows from it.
pub(super) enum Due {
    EndNet(u64),
    Start(String),
    Resume(String),
    DiskWell(String),
    /// For so many milliseconds.
    BeginNet(NetFault, u64),
    /// For so many milliseconds.
    Pause(String, u64),
    /// They lose power, for about so many milliseconds.
    Kill(Vec<String>, u64),
    Want(Wanted),
    /// Loads that are written are committed.
    CommitLoads,
    /// From the moment on that a leader holds back leases for a load, if that is within so many milliseconds; for so many.
    BeginNetAtLoad(NetFault, u64, u64),
    /// The same: after so many loads, until a time.
    AwaitLoad {
        fault: NetFault,
        ms: u64,
        after: u64,
        until_ns: u64,
    },
    /// Its fsyncs hang for so many milliseconds.
    HangSyncs(String, u64),
    /// Its tasks stop at a point for so many milliseconds.
    HoldAt(String, PausePoint, u64),
    /// Its tasks stop at a point within so many milliseconds, each time for so many.
    SlowAt(String, PausePoint, u64, u64),
    /// It has room for so many bytes more.
    FillDisk(String, u64),
    /// It loses its memory, and starts again after about so many milliseconds.
    Wipe(String, u64),
}
