//! What a partition's worker shares with the service's tasks: published state, leases, and the ways to reach the worker.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use bytes::Bytes;
use parking_lot::Mutex;
use sextant_common::Env;
use sextant_common::clock::WallInterval;
use sextant_common::error::Result;
use sextant_common::ids::{Epoch, Generation, ManifestVersion, PartitionId, Serial, SstId, TableId};
use sextant_common::manifest::{Manifest, SstMeta, TableOptions};
use sextant_common::mutant::{self, Mutant};
use sextant_proto::v1;
use sextant_raft_log::{Entry, LogId, Member};
use tokio::sync::{Notify, OwnedSemaphorePermit, mpsc, oneshot, watch};

use crate::command::{Configuration, configuration};
use crate::incarnation::Incarnation;
use crate::leadership::{LeaderLease, Strangers, VoteGuard};
use crate::lease::desk::LeaseDesk;
use crate::lease::grantor::Now;
use crate::partition::evaluate::Request;
use crate::partition::snapshot::Snapshot;
use crate::partition::view::ReadView;

/// State of a partition replica that is read from any thread.
pub struct Shared {
    pub id: PartitionId,
    pub node: u64,
    pub env: Env,
    pub published_seq: AtomicU64,
    pub view: ArcSwap<ReadView>,
    /// The term in which this node answers reads (its own first entry is published); 0: none.
    pub serving_term: AtomicU64,
    pub lease: LeaderLease,
    /// In effect; before there is one, what the configuration file says.
    pub configuration: ArcSwap<Configuration>,
    pub guard: Arc<VoteGuard>,
    /// Which life of this server its memory is of.
    pub incarnation: Arc<Incarnation>,
    /// Members that say that they are others than the membership names.
    pub strangers: Strangers,
    /// The term whose leader has named this node as its successor; 0: none has.
    pub heir_of: AtomicU64,
    pub desk: LeaseDesk,
    /// Wakes parked pulls of all partitions of this server.
    pub news: Arc<Notify>,
    /// Whom this node believes to lead: (term, node); node 0: nobody.
    pub leader: Mutex<(u64, u64)>,
    /// Rises with each change of the manifest that this replica applied.
    pub manifest_version: watch::Sender<ManifestVersion>,
    /// SSTables that this leader has asked for and that are not yet in the manifest: not orphans.
    pub pending_ssts: Mutex<Vec<SstId>>,
    /// Why the partition is not founded, if this server knows.
    pub unfounded: Mutex<Option<String>>,
    /// Numbers for /status, refreshed by the worker.
    pub numbers: Mutex<Numbers>,
    /// An acknowledgement is on its way to the worker.
    pub ack_signalled: AtomicBool,
    /// Keys and values that wait for the sequencer, in bytes.
    pub queued_bytes: Arc<AtomicUsize>,
    /// Raft has been handed a heartbeat that it has not answered.
    pub hears_heartbeat: AtomicBool,
    /// Raft has refused a heartbeat: it has stopped.
    pub raft_refuses: AtomicBool,
    /// Smoothed lower bound of the time from proposal to commit, in nanoseconds (for leases of the `timed` mode).
    pub log_write_ns: AtomicU64,
}

/// Numbers for /status and metrics.
#[derive(Clone, Debug, Default)]
pub struct Numbers {
    pub leading: bool,
    pub last_index: u64,
    pub committed_index: u64,
    pub published_index: u64,
    pub persisted_index: u64,
    /// The log begins after it. None: it has everything.
    pub purged_index: Option<u64>,
    pub unflushed_bytes: usize,
    /// Limit of `unflushed_bytes`: this partition's share of the server's memory.
    pub memory_bytes: usize,
    pub writes: Writes,
    /// Why writes are slowed or refused.
    pub writes_why: Option<String>,
    pub members: Members,
    pub tables: Vec<TableNumbers>,
    pub groups: u64,
    pub group_writes: u64,
    pub waiting_requests: usize,
    pub sessions: usize,
    pub replayed_writes: u64,
    pub replay_skipped_writes: u64,
}

/// Who is in the partition's Raft group, by the newest membership in this replica's log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// Of both sets while they change.
    pub voters: Vec<u64>,
    /// Have the log, do not vote.
    pub learners: Vec<u64>,
}

#[derive(Clone, Debug, Default)]
pub struct TableNumbers {
    pub table: u32,
    pub generation: u64,
    pub active_entries: usize,
    pub active_bytes: usize,
    pub frozen: usize,
    pub frozen_bytes: usize,
    /// Why the last flush failed, until one succeeds.
    pub flush_error: Option<String>,
}

/// What becomes of writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Writes {
    /// This replica does not lead.
    #[default]
    NotHere,
    Taken,
    Slowed,
    Refused,
}

impl Writes {
    pub fn name(self) -> &'static str {
        match self {
            Writes::NotHere => "not here",
            Writes::Taken => "taken",
            Writes::Slowed => "slowed",
            Writes::Refused => "refused",
        }
    }
}

impl Shared {
    /// The grantor's clocks now.
    pub fn now(&self) -> Now {
        let clock = &self.env.clock;
        let wall = match mutant::active(Mutant::ZeroUncertainty) {
            true => WallInterval { earliest_ns: clock.wall_guess_ns(), latest_ns: clock.wall_guess_ns() },
            false => clock.wall(),
        };
        Now { mono_ns: clock.grantor_ns(), wall }
    }

    pub fn leader_hint(&self) -> v1::LeaderHint {
        let (term, node) = *self.leader.lock();
        v1::LeaderHint { partition: self.id.0, node, term }
    }

    /// The term that this node serves, if its leader lease still holds. To be asked *after* the state was read.
    pub fn serving(&self) -> Option<u64> {
        let term = self.serving_term.load(Ordering::Acquire);
        let leased = || self.lease.is_valid(term, self.env.clock.holder_ns());
        (term != 0 && (mutant::active(Mutant::ReadWithoutLeaderLease) || leased())).then_some(term)
    }

    /// A lower bound of the time that the next group will need for its log write (precise data access, section 4.4): choosing it
    /// too small costs nothing but lease length.
    pub fn log_write_lower_bound_ns(&self) -> u64 {
        self.log_write_ns.load(Ordering::Relaxed) / 2
    }

    /// A group took so long from proposal to commit.
    pub fn observe_log_write(&self, ns: u64) {
        let before = self.log_write_ns.load(Ordering::Relaxed);
        let next = if before == 0 { ns } else { (before * 7 + ns) / 8 };
        self.log_write_ns.store(next, Ordering::Relaxed);
    }

    pub fn manifest(&self) -> Arc<Manifest> {
        self.view.load().manifest.clone()
    }
}

#[cfg(test)]
impl Shared {
    /// Of a partition that nobody works on.
    pub fn for_tests(env: &Env) -> Arc<Self> {
        let id = PartitionId(0);
        Arc::new(Self {
            id,
            node: 1,
            env: env.clone(),
            published_seq: AtomicU64::new(0),
            view: ArcSwap::from_pointee(ReadView::empty(Arc::new(Manifest::empty(id)))),
            serving_term: AtomicU64::new(0),
            lease: LeaderLease::default(),
            configuration: ArcSwap::from_pointee(Configuration::founding(&Default::default(), 1 << 20)),
            guard: Arc::new(VoteGuard::new(0, 0)),
            incarnation: Incarnation::for_tests(env, 1),
            strangers: Strangers::default(),
            heir_of: AtomicU64::new(0),
            desk: LeaseDesk::default(),
            news: Arc::default(),
            leader: Mutex::default(),
            manifest_version: watch::channel(ManifestVersion(0)).0,
            pending_ssts: Mutex::default(),
            unfounded: Mutex::default(),
            numbers: Mutex::default(),
            ack_signalled: AtomicBool::new(false),
            queued_bytes: Arc::default(),
            hears_heartbeat: AtomicBool::new(false),
            raft_refuses: AtomicBool::new(false),
            log_write_ns: AtomicU64::new(0),
        })
    }
}

/// The ways to reach a partition's worker. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    pub shared: Arc<Shared>,
    /// Raft's events and rare requests. Unbounded, because openraft's append must return at once; bounded in fact by the
    /// entries that Raft keeps in flight.
    pub events: mpsc::UnboundedSender<Event>,
    /// Writes: bounded; a full queue is "overloaded".
    pub writes: mpsc::Sender<WriteEvent>,
}

/// What a worker is told.
pub enum Event {
    Appended(Vec<Entry>),
    Truncated(Option<LogId>),
    Committed(u64),
    Install {
        snapshot: Box<Snapshot>,
        done: oneshot::Sender<Result<()>>,
    },
    /// Acknowledgements arrived that publication may wait for.
    Acknowledged,
    Filters(oneshot::Sender<Option<FilterSet>>),
    Freeze {
        table: Option<TableId>,
        done: oneshot::Sender<Result<Vec<(TableId, Generation)>>>,
    },
    EnsureTable {
        name: String,
        options: TableOptions,
        id: Option<TableId>,
        done: oneshot::Sender<Result<()>>,
    },
    OpenSession {
        session: u64,
        done: oneshot::Sender<Result<()>>,
    },
    Flushed {
        term: u64,
        table: TableId,
        generation: Generation,
        result: Result<Option<SstMeta>>,
    },
    Configure {
        change: configuration::Change,
        done: oneshot::Sender<Result<()>>,
    },
    Compact {
        table: TableId,
        done: Option<oneshot::Sender<Result<()>>>,
    },
    Compacted {
        term: u64,
        table: TableId,
        inputs: Vec<SstId>,
        result: Result<Option<SstMeta>>,
    },
    /// Who could lead after this node, best first, and the term that it leads. Dropped if it does not lead.
    Successors(oneshot::Sender<(u64, Vec<u64>)>),
    /// Leadership is to go to another node. Told the term that ended here.
    HandOver {
        to: u64,
        done: oneshot::Sender<Result<u64>>,
    },
    /// The voters are to be exactly these.
    ChangeVoters {
        voters: BTreeMap<u64, Member>,
        done: oneshot::Sender<Result<()>>,
    },
    /// Raft's answer to a step of a change of the voters.
    VotersAnswered {
        term: u64,
        result: Result<()>,
    },
    Stop(oneshot::Sender<()>),
}

/// Whole filters, as of one serial.
pub struct FilterSet {
    pub epoch: Epoch,
    pub serial: Serial,
    pub manifest: Arc<Manifest>,
    pub filters: Vec<(TableId, Generation, Vec<u8>)>,
}

/// A write request on its way to the sequencer.
pub struct WriteEvent {
    pub request: Request,
    pub queued: Queued,
    /// On `Clock::holder_ns`: after this nobody waits for the answer any more.
    pub deadline_ns: u64,
    pub reply: ReplySink,
}

/// A share of the bytes that may wait for a sequencer; given back when dropped.
pub struct Queued {
    of: Arc<AtomicUsize>,
    pub bytes: usize,
}

impl Queued {
    /// None: there is no room. (A queue that is empty takes anything.)
    pub fn admit(of: &Arc<AtomicUsize>, bytes: usize, max: usize) -> Option<Self> {
        let queued = Self { of: of.clone(), bytes };
        let before = of.fetch_add(bytes, Ordering::AcqRel);
        (before == 0 || before + bytes <= max).then_some(queued)
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        self.of.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// An answer to a write, on its way to the client.
pub struct Answer {
    pub reply: v1::WriteReply,
    /// The condition was checked against an older manifest than this. Whoever sends the answer converts it, if the client does
    /// not have it yet.
    pub stale: Option<Arc<Manifest>>,
    /// Its share of what may be on its way to the client.
    pub room: Option<OwnedSemaphorePermit>,
}

/// Where the answer to a write goes. Dropped without an answer it says "outcome unknown": no caller is left hanging.
pub struct ReplySink {
    id: u64,
    /// The queue is unbounded, so that a worker never waits for a client; it holds no more than there is room for.
    to: Option<mpsc::UnboundedSender<Answer>>,
    room: Option<OwnedSemaphorePermit>,
}

impl ReplySink {
    /// `room`: for the answer, given back when the client has it.
    pub fn new(id: u64, to: mpsc::UnboundedSender<Answer>, room: Option<OwnedSemaphorePermit>) -> Self {
        Self { id, to: Some(to), room }
    }

    pub fn send(mut self, reply: v1::WriteReply) {
        self.give(reply, None);
    }

    /// The write's condition was checked against an older manifest.
    pub fn stale(mut self, manifest: Arc<Manifest>) {
        let status = v1::WriteStatus::WriteStaleManifest.into();
        self.give(v1::WriteReply { status, ..Default::default() }, Some(manifest));
    }

    pub fn status(self, status: v1::WriteStatus, message: &str) {
        self.send(v1::WriteReply {
            status: status.into(),
            message: message.to_owned(),
            ..Default::default()
        });
    }

    fn give(&mut self, mut reply: v1::WriteReply, stale: Option<Arc<Manifest>>) {
        if let Some(to) = self.to.take() {
            reply.id = self.id;
            let _ = to.send(Answer { reply, stale, room: self.room.take() });
        }
    }
}

impl Drop for ReplySink {
    fn drop(&mut self) {
        if self.to.is_some() {
            let status = v1::WriteStatus::WriteOutcomeUnknown.into();
            let message = "the partition's worker stopped".into();
            self.give(v1::WriteReply { status, message, ..Default::default() }, None);
        }
    }
}

/// Feeds a partition's worker from its log.
pub struct LogFeed(pub mpsc::UnboundedSender<Event>);

impl sextant_raft_log::LogObserver for LogFeed {
    fn appended(&self, entries: Vec<Entry>) {
        let _ = self.0.send(Event::Appended(entries));
    }

    fn truncated(&self, after: Option<LogId>) {
        let _ = self.0.send(Event::Truncated(after));
    }
}

/// An entry's body as the partition takes it.
pub fn body_of(entry: &Entry) -> crate::partition::ingest::Body {
    use crate::partition::ingest::Body;
    match &entry.payload {
        openraft::EntryPayload::Blank => Body::Blank,
        openraft::EntryPayload::Normal(payload) => Body::Payload(payload.0.clone()),
        openraft::EntryPayload::Membership(m) => {
            let stored = sextant_raft_log::StoredMembership::new(Some(entry.log_id), m.clone());
            Body::Membership(Bytes::from(sextant_raft_log::encode_membership(&stored).to_vec()))
        }
    }
}
