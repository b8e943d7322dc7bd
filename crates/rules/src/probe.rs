//! Where a simulation looks into a server, and where it may stop one of its tasks.
//!
//! Owns the vocabulary of both. In production there is no probe, and each place costs one branch that is never taken.

use std::sync::Arc;
use std::time::Duration;

use sextant_common::ids::{Epoch, Generation, ManifestVersion, PartitionId, Serial, SstId, TableId};

/// Places between a decision and its effect, where a task may be held up for any time (a busy machine, a stopped process) and
/// nothing may go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PausePoint {
    /// p-node: the lease was checked and the filters were consulted; nobody was asked yet.
    ReadRouted,
    /// p-node: the SSTables have answered; neither cached nor believed yet.
    SstablesAnswered,
    /// p-node: a pull was answered; the view is not made yet.
    PullAnswered,
    /// Leader: the time of a lease was taken; it is not granted yet.
    LeaseTimed,
    /// Leader: the memtables were read; the leader lease was not asked yet.
    MemtablesRead,
    /// Leader: a group's bits are out; it is not proposed yet.
    BitsOut,
    /// Follower: the vote guard was asked; the vote is not given yet.
    VoteGuardAsked,
    /// Leader: a frozen memtable is sealed as an SSTable; its flush flag is not proposed yet.
    SstableSealed,
}

/// What invariants are about. Ids are those of the server that tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeEvent {
    /// A server leads.
    Led { partition: PartitionId, node: u64, term: u64 },
    /// An entry was appended and ingested. `digest`: of its payload.
    Appended { partition: PartitionId, node: u64, index: u64, term: u64, digest: u64 },
    /// A group was ingested whose writes leave these bits in the filters of memtables, each by table, generation and hash.
    BitsLeft { partition: PartitionId, index: u64, term: u64, bits: Vec<(TableId, Generation, u64)> },
    /// Everything from `first` on was truncated: so many groups and freezes.
    Truncated { partition: PartitionId, node: u64, first: u64, groups: u64, freezes: u64 },
    /// A snapshot took the place of the log; what follows it is told as appended.
    Installed { partition: PartitionId, node: u64 },
    /// Everything up to `index` is committed.
    Committed { partition: PartitionId, node: u64, index: u64 },
    /// A replica applied a change of the set of SSTables, which may have added a table. `leads`: as the leader.
    TablesChanged {
        partition: PartitionId,
        node: u64,
        leads: bool,
        flush: bool,
        added: Option<SstId>,
        /// So many of its replicas must be durable.
        required: usize,
    },
    /// A replica's manifest has a table no more.
    TableDropped { partition: PartitionId, table: TableId },
    /// A replica holds this, at a place of the log (term and index) or at a version (0 and that): every other one holds the same there.
    Held { partition: PartitionId, node: u64, what: &'static str, at: (u64, u64), digest: u64 },
    /// A leader and a holder mean different manifests by one version.
    ManifestDiffers { partition: PartitionId, version: ManifestVersion },
    /// A leader published an entry. `serial` 0: it left no bits, or they were of an epoch that is over.
    Published { partition: PartitionId, node: u64, epoch: Epoch, index: u64, serial: Serial },
    /// A leader began a new ring within its term. `over_group`: a group was proposed and not yet back from the log.
    RingRenewed { partition: PartitionId, node: u64, over_group: bool },
    /// An entry waits for a serial that its leader's ring has not reached: `newest` is the ring's last.
    WaitsForNothing { partition: PartitionId, node: u64, serial: Serial, newest: Serial },
    /// A leader holds back leases and groups for a load.
    LoadHeld { partition: PartitionId, node: u64 },
    /// A leader granted a lease.
    LeaseGranted { partition: PartitionId, node: u64, epoch: Epoch, holder: [u8; 16], serial: Serial },
    /// A p-node made a view. `lease_until_ns`: on its `Clock::holder_ns`, usable strictly before; 0: no lease.
    ViewMade {
        partition: PartitionId,
        holder: [u8; 16],
        epoch: Epoch,
        serial: Serial,
        manifest: ManifestVersion,
        lease_until_ns: u64,
        /// Memtables up to these generations are in the SSTables of that version; and how to ask the view's filters.
        flushed: Vec<(TableId, Generation)>,
        filters: Filters,
    },
}

type Contains = dyn Fn(TableId, u64) -> bool + Send + Sync;

/// The memtables' filters that a view uses: whether any of a table's may have a hash.
#[derive(Clone)]
pub struct Filters(Arc<Contains>);

impl Filters {
    pub fn new(contains: impl Fn(TableId, u64) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(contains))
    }

    pub fn contains(&self, table: TableId, hash: u64) -> bool {
        self.0(table, hash)
    }
}

impl std::fmt::Debug for Filters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Filters")
    }
}

impl PartialEq for Filters {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Filters {}

/// A simulation's eyes and hands. Everything here is called on the server's own tasks and must return at once.
pub trait Probe: Send + Sync + 'static {
    fn event(&self, event: ProbeEvent);
    /// How long the task is to stop. None: not at all.
    fn pause(&self, at: PausePoint) -> Option<Duration>;
}
