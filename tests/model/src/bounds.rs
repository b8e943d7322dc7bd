//! How much may happen: what makes the state space finite, and which parts of the protocol take part.

use crate::Mutant;
use crate::state::{Cell, GENERATIONS, KEYS, LOADED, PNODES, PRELOADED, TICKS, WRITES, WriteKind};

/// A beginning: every key has a value in an SSTable.
pub const VALUES: Cell = Cell::value(PRELOADED);
/// Every key was deleted, and an SSTable says so.
pub const TOMBSTONES: Cell = Cell::tombstone(PRELOADED);

/// What is explored.
#[derive(Clone, Debug)]
pub struct Bounds {
    pub pnodes: usize,
    pub keys: usize,
    /// Writes of clients in all; of every kind in `kinds`, each begun at any time.
    pub writes: usize,
    pub kinds: Vec<WriteKind>,
    /// A blind put may write both keys: two bf-log entries, one group.
    pub batches: bool,
    /// Two requests may share a group.
    pub shared_groups: bool,
    pub freezes: u8,
    pub compactions: u8,
    pub failovers: u8,
    /// Groups that Raft refuses after their bits are out.
    pub refusals: u8,
    /// Changes of the leases' mode (acknowledged, timed, and back), each with a new ring.
    pub mode_changes: u8,
    /// Copies of a request that are sent although one may have been executed.
    pub retries: u8,
    /// Requests belong to sessions: duplicates and failed conditions are remembered in the log.
    pub sessions: bool,
    /// Sessions that expire; each request is of a session of its own.
    pub session_expiries: u8,
    /// The record cache is on.
    pub cache: bool,
    /// Flushed memtables are kept for a while.
    pub grace: bool,
    /// A memtable read loads the published seq and the set of memtables at different moments.
    pub split_reads: bool,
    /// A freeze may come between a group's evaluation and its append (the group is then ignored).
    pub slips: bool,
    /// Table option: every write of a new key leaves a bit.
    pub filter_inserts: bool,
    /// All keys begin alike, and filters know that prefix, in the place of the first key. What reads is scans of it, under leases.
    pub scans: bool,
    /// A reply of an old leader may be on its way besides one of the new.
    pub two_replies: bool,
    /// Memtable reads may be registered, and kept.
    pub registered: bool,
    /// All keys are of one slot.
    pub shared_slot: bool,
    /// Only what the memtables said to a registered read is kept.
    pub sstables_not_kept: bool,
    /// A p-node that lags may be given whole filters within an epoch.
    pub overflows: bool,
    /// Loads (or, without `loaded`, drops) of the table.
    pub loads: u8,
    /// The newest tick that there may be; each is one of 1 to this.
    pub ticks: u8,
    /// When what a write writes expires, in ticks; 0: never. Each is a write of its own.
    pub expiries: Vec<u8>,
    /// When the preloaded values expire; 0: never.
    pub preloaded_expiry: u8,
    /// A flush writes what has expired as a tombstone.
    pub buries: bool,
    /// The load is of the servers' kind: on top of what was flushed, while no lease lives (and nothing is announced).
    pub adopted: bool,
    /// What a load brings of every key.
    pub loaded: Cell,
    /// What an SSTable has of every key at the beginning; nothing: there is no SSTable. Each is a beginning of its own.
    pub preloaded: Vec<Cell>,
    pub mutant: Option<Mutant>,
}

impl Bounds {
    /// One p-node, one key, nothing but writes: to be extended.
    pub fn small() -> Self {
        Self {
            pnodes: 1,
            keys: 1,
            writes: 2,
            kinds: vec![WriteKind::Update, WriteKind::Insert, WriteKind::Delete],
            batches: false,
            shared_groups: false,
            freezes: 0,
            compactions: 0,
            failovers: 0,
            refusals: 0,
            mode_changes: 0,
            retries: 0,
            sessions: false,
            session_expiries: 0,
            cache: false,
            grace: false,
            split_reads: false,
            slips: false,
            filter_inserts: false,
            scans: false,
            two_replies: false,
            registered: false,
            shared_slot: false,
            sstables_not_kept: false,
            overflows: false,
            loads: 0,
            adopted: false,
            ticks: 0,
            expiries: vec![0],
            preloaded_expiry: 0,
            buries: false,
            loaded: Cell::value(LOADED),
            preloaded: vec![VALUES, TOMBSTONES, Cell::NOTHING],
            mutant: None,
        }
    }

    pub fn with(mut self, mutant: Mutant) -> Self {
        self.mutant = Some(mutant);
        self
    }

    pub fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    fn last_expiry(&self) -> u8 {
        self.expiries.iter().copied().fold(self.preloaded_expiry, u8::max)
    }

    /// Whether the model has room for so much.
    pub fn check(&self) -> Result<(), String> {
        let limits = [
            ("p-nodes", self.pnodes, PNODES),
            ("keys", self.keys, KEYS),
            ("writes", self.writes, WRITES),
            ("freezes and loads", usize::from(self.freezes + self.loads), GENERATIONS - 1),
            ("loads (with registered reads)", usize::from(self.loads), usize::from(self.registered)),
            ("compactions", usize::from(self.compactions), 2),
            ("failovers", usize::from(self.failovers), 3),
            ("refusals", usize::from(self.refusals), 2),
            ("changes of the mode", usize::from(self.mode_changes), 2),
            ("expiries of sessions", usize::from(self.session_expiries), self.writes),
            ("ticks", usize::from(self.ticks), usize::from(TICKS)),
            ("loads (with ticks)", usize::from(self.loads), if self.ticks == 0 { GENERATIONS } else { 0 }),
            ("ticks (with scans)", usize::from(self.ticks), if self.scans { 0 } else { usize::from(TICKS) }),
            ("ticks until something expires", usize::from(self.last_expiry()), usize::from(TICKS)),
        ];
        for (what, n, max) in limits {
            if n > max {
                return Err(format!("at most {max} {what}"));
            }
        }
        Ok(())
    }
}
