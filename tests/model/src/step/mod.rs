//! What may happen, and what it does. Every step that takes time in the real system is one of its own: append, commit, publish,
//! pull, reply, seal, flag, both halves of a read. Messages are delayed or lost, leases expire at any time.
//!
//! * [`writes`]: clients' requests, evaluation, append, publication.
//! * [`tables`]: freezes, flushes, merges.
//! * [`leases`]: pulls, replies, expiry.
//! * [`reads`]: a read's consult, its memtable half, its SSTable half.
//! * [`registered`]: reads whose answers p-nodes keep.
//! * [`loads`]: tables from outside.
//! * [`expiry`]: ticks, and who judges by which whether a record has expired.
//! * [`failover`]: a new leader.

mod expiry;
mod failover;
mod leases;
mod loads;
mod reads;
mod registered;
mod tables;
mod writes;

use crate::Mutant;
use crate::bounds::Bounds;
use crate::explore::Model;
use crate::state::log::Entry;
use crate::state::manifest::{Manifest, Reading};
use crate::state::pnode::PNode;
use crate::state::{Cell, State, What, WriteKind};

/// A step. Numbers are indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A client begins a write through a p-node: searches what it needs, and sends the request.
    Begin {
        write: usize,
        kind: WriteKind,
        keys: u8,
        expires: u8,
        pnode: usize,
    },
    /// The request is sent again: a new search, the same number.
    Resend {
        write: usize,
        pnode: usize,
    },
    /// A copy of a request reaches the sequencer, perhaps together with one of another write.
    Evaluate {
        first: (usize, usize),
        second: Option<(usize, usize)>,
    },
    /// The sequencer swaps the next slot of the group that it forms.
    Swap,
    /// The group's ring entries go out.
    PutOut,
    Append,
    /// Raft refuses the proposal.
    Refuse,
    Commit,
    /// `lost`: whoever waits for it never gets the answer.
    Publish {
        lost: bool,
    },

    /// A load is announced.
    Announce,
    /// The load is proposed.
    Load,
    /// The load may be published: readers are given its manifest.
    Show,

    /// The leader proposes that the time goes on.
    Tick {
        time: u8,
    },

    /// An operator changes the mode of leases.
    Configure,

    /// A request's session has been idle for too long: an entry says so.
    Forget {
        write: usize,
    },

    Freeze,
    /// A flush begins (and, if tables have ids of their own, is sealed at once).
    Flush {
        generation: u8,
    },
    /// A merge of the manifest's tables from one position to another.
    Merge {
        from: usize,
        to: usize,
    },
    /// A planned table becomes durable.
    Seal {
        job: usize,
    },
    /// The flag of a sealed table is appended.
    Flag {
        job: usize,
    },
    EndGrace,

    /// A pull reaches the leader, which answers, with a lease or without.
    Pull {
        pnode: usize,
        grant: bool,
    },
    FetchFilters {
        pnode: usize,
    },
    Deliver {
        pnode: usize,
        reply: usize,
    },
    Lose {
        pnode: usize,
        reply: usize,
    },
    /// The p-node's oldest lease expires.
    Expire {
        pnode: usize,
    },
    /// What is left of the leases of a former epoch expires.
    ExpireOld {
        pnode: usize,
    },
    /// Invalidations that were acknowledged are applied (a mutant).
    ApplyInvalidations {
        pnode: usize,
    },
    /// A manifest arrives by itself.
    Refresh {
        pnode: usize,
    },

    /// A read begins: it consults the view.
    Consult {
        pnode: usize,
        key: usize,
        precise: bool,
    },
    /// A scan of all keys, which asks no leader.
    Scan {
        pnode: usize,
    },
    /// It loads the published position.
    LoadPublished {
        pnode: usize,
    },
    /// The next step of a memtable read's registration.
    Register {
        pnode: usize,
    },
    AskMemtables {
        pnode: usize,
    },
    AskSstables {
        pnode: usize,
    },

    /// A new leader whose log has `kept` entries, which knows `known` of them to be committed.
    Failover {
        kept: u8,
        known: u8,
        stale_bits: bool,
    },
}

/// The protocol within bounds.
pub struct Protocol {
    pub bounds: Bounds,
    reading: Reading,
}

impl Protocol {
    /// `Err`: the bounds are wider than the model has room for.
    pub fn new(bounds: Bounds) -> Result<Self, String> {
        bounds.check()?;
        let reading = Reading::of(bounds.mutant);
        Ok(Self { bounds, reading })
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.bounds.is(mutant)
    }

    /// The manifest as the leader knows it.
    pub fn manifest(&self, s: &State) -> Manifest {
        // A load changes what is visible, so it waits for its publication, and what follows it for the load.
        let known = match s.load() {
            Some((at, _)) if !s.shown => s.known_committed.min(at - 1),
            _ => s.known_committed,
        };
        s.manifest_at(known, self.reading)
    }

    fn manifest_of(&self, s: &State, version: u8) -> Manifest {
        s.manifest_of(version, self.reading)
    }

    /// Whether the leader's own first entry is published: before that it answers nothing.
    fn serves(&self, s: &State) -> bool {
        s.published >= s.first
    }

    fn append(&self, s: &mut State, entry: Entry) -> Result<(), String> {
        if s.append(entry) { Ok(()) } else { Err("the model's log is too short for these bounds".into()) }
    }

    /// What does not matter any more is made equal; p-nodes are interchangeable, so they are put in order.
    fn canonical(&self, mut s: State) -> State {
        if self.bounds.pnodes == 2 {
            let order = |p: &PNode| crate::explore::fingerprint(p);
            if order(&s.pnodes[1]) < order(&s.pnodes[0]) {
                s.pnodes.swap(0, 1);
            }
        }
        s
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn roots(&self) -> Vec<State> {
        let root = |preloaded: &Cell| {
            let mut s = State::root(*preloaded, self.bounds.preloaded_expiry);
            let any = *preloaded != Cell::NOTHING;
            s.pnodes[..self.bounds.pnodes].fill(PNode::new(any));
            s.dropped = u8::from(any);
            s
        };
        self.bounds.preloaded.iter().map(root).collect()
    }

    fn actions(&self, s: &State, out: &mut Vec<Action>) {
        self.read_actions(s, out);
        self.lease_actions(s, out);
        self.write_actions(s, out);
        self.table_actions(s, out);
        self.load_actions(s, out);
        self.tick_actions(s, out);
        self.failover_actions(s, out);
    }

    fn step(&self, state: &State, action: Action) -> Result<State, String> {
        let mut s = state.clone();
        match action {
            Action::Begin { write, kind, keys, expires, pnode } => {
                self.begin(&mut s, (write, kind, keys, expires), pnode);
            }
            Action::Resend { write, pnode } => self.resend(&mut s, write, pnode),
            Action::Evaluate { first, second } => self.evaluate(&mut s, first, second)?,
            Action::Swap => self.swap(&mut s)?,
            Action::PutOut => self.put_out(&mut s)?,
            Action::Append => self.append_proposal(&mut s)?,
            Action::Refuse => self.refuse(&mut s),
            Action::Commit => self.commit(&mut s)?,
            Action::Publish { lost } => self.publish(&mut s, lost)?,
            Action::Forget { write } => self.forget(&mut s, write)?,
            Action::Tick { time } => self.propose_tick(&mut s, time)?,
            Action::Announce => self.propose(&mut s, What::Announcement)?,
            Action::Load => self.propose(&mut s, What::Load)?,
            Action::Show => self.show(&mut s),
            Action::Configure => self.configure(&mut s)?,
            Action::Freeze => self.freeze(&mut s)?,
            Action::Flush { generation } => self.flush(&mut s, generation),
            Action::Merge { from, to } => self.merge(&mut s, from, to),
            Action::Seal { job } => self.seal(&mut s, job),
            Action::Flag { job } => self.flag(&mut s, job)?,
            Action::EndGrace => s.dropped = self.manifest(&s).last_flush,
            Action::Pull { pnode, grant } => self.pull(&mut s, pnode, grant),
            Action::FetchFilters { pnode } => self.fetch_filters(&mut s, pnode),
            Action::Deliver { pnode, reply } => self.deliver(&mut s, pnode, reply),
            Action::Lose { pnode, reply } => s.pnodes[pnode].replies[reply] = Default::default(),
            Action::Expire { pnode } => self.expire(&mut s, pnode),
            Action::ExpireOld { pnode } => self.expire_old(&mut s, pnode),
            Action::ApplyInvalidations { pnode } => self.apply_invalidations(&mut s, pnode),
            Action::Refresh { pnode } => self.refresh(&mut s, pnode),
            Action::Consult { pnode, key, precise } => self.consult(&mut s, pnode, key, precise)?,
            Action::Scan { pnode } => self.scan(&mut s, pnode)?,
            Action::LoadPublished { pnode } => {
                let published = s.published;
                if let Some(reader) = &mut s.pnodes[pnode].reader {
                    reader.loaded = 1 + published;
                }
            }
            Action::Register { pnode } => self.register(&mut s, pnode),
            Action::AskMemtables { pnode } => self.ask_memtables(&mut s, pnode)?,
            Action::AskSstables { pnode } => self.ask_sstables(&mut s, pnode)?,
            Action::Failover { kept, known, stale_bits } => {
                self.fail_over(&mut s, kept, known, stale_bits)?
            }
        }
        Ok(self.canonical(s))
    }

    fn check(&self, s: &State) -> Result<(), String> {
        self.check_progress(s)
    }

    fn describe(&self, s: &State, action: Action) -> String {
        let what = |write: usize| {
            let w = &s.writes[write];
            format!("write {write} ({}, keys {:02b})", w.kind.name(), w.keys)
        };
        match action {
            Action::Begin { write, kind, keys, expires, pnode } => {
                let expiry = if expires == 0 { String::new() } else { format!(", to expire at {expires}") };
                let kind = kind.name();
                format!("write {write} begins: {kind} of keys {keys:02b} through p-node {pnode}{expiry}")
            }
            Action::Tick { time } => format!("tick {time} is in the ring"),
            Action::Resend { write, .. } => format!("{} is sent again", what(write)),
            Action::Evaluate { first, second: None } => format!("{} is evaluated", what(first.0)),
            Action::Evaluate { first, second: Some(second) } => {
                format!("{} and {} are evaluated together", what(first.0), what(second.0))
            }
            Action::Append if s.proposal.what == What::Tick => {
                format!("the tick is appended at {}", s.len + 1)
            }
            Action::Append => format!("the group is appended at {}", s.len + 1),
            Action::Commit => format!("the leader learns that more than {} is committed", s.known_committed),
            Action::Publish { lost } => {
                let lost = if lost { ", its answer is lost" } else { "" };
                format!("{} is published{lost}", s.published + 1)
            }
            Action::Forget { write } => format!("the session of {} expires at {}", what(write), s.len + 1),
            Action::Configure => format!("the leases' mode is to change by {}", s.len + 1),
            Action::Freeze => format!("memtable {} is frozen by {}", s.generation(), s.len + 1),
            Action::Consult { pnode, key, precise } => {
                let mode = if precise { "under its lease" } else { "without a lease" };
                format!("p-node {pnode} begins to read key {key} {mode}")
            }
            Action::Failover { kept, known, .. } => format!(
                "leader {} is replaced; the new one has {kept} of {} entries, and knows {known} to be committed",
                s.term, s.len
            ),
            other => format!("{other:?}"),
        }
    }
}
