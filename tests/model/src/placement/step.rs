//! What may happen, and what has to hold.

use super::Bounds;
use super::state::{Change, Leader, Release, SERVERS, Set, Stamp, State, What, has, with, without};
use crate::Mutant;
use crate::explore::Model;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A leader, by its place among all, has a server copy the table, and is told that it is there.
    Copy {
        leader: usize,
        server: usize,
    },
    /// The same, and the answer is lost.
    CopyUnheard {
        leader: usize,
        server: usize,
    },
    /// A leader asks a server what it has.
    Ask {
        leader: usize,
        server: usize,
    },
    /// One server is to be named, and another not any more; `remove`: [`SERVERS`] for none.
    Propose {
        leader: usize,
        add: usize,
        remove: usize,
    },
    /// A compaction, a cut, or its end.
    ProposeOther {
        leader: usize,
        what: What,
    },
    Commit,
    /// A mutant: a leader's clock says that the cut is over.
    Forget(usize),
    /// A leader learns what was committed.
    Learn(usize),
    /// A leader tells a server that is not named to release the table, or to delete it if none is.
    SendRelease {
        leader: usize,
        server: usize,
    },
    Deliver(usize),
    /// A new leader. `keeps`: what was proposed before is in its log.
    Elect {
        keeps: bool,
    },
    Wipe(usize),
}

pub struct Placement {
    bounds: Bounds,
}

impl Placement {
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds }
    }

    /// Whether a leader may propose to name a server.
    fn may_name(&self, leader: &Leader, server: usize) -> bool {
        has(leader.told, server) || self.bounds.is(Mutant::NamedBeforeDurable)
    }

    /// Whether a leader may have a server release its copy: neither manifest nor cut names it, and nothing that this leader has
    /// proposed may name it yet. (Or delete it: no server is named by either.)
    fn may_release(&self, leader: &Leader, server: usize) -> bool {
        let held = if self.bounds.is(Mutant::HoldIgnored) { 0 } else { leader.held };
        if leader.named == 0 {
            return held == 0;
        }
        let may_be_named = has(leader.pending, server) && !self.bounds.is(Mutant::ReleasedWhileProposed);
        !has(leader.named | held, server) && !may_be_named
    }

    fn is_refused(&self, s: &State, release: Release) -> bool {
        let is_old = release.stamp < s.fences[usize::from(release.server)];
        is_old && !release.deletes && !self.bounds.is(Mutant::ReleaseUnfenced)
    }

    /// What a leader in office may propose beside other servers.
    fn others(&self, s: &State, leader: &Leader) -> impl Iterator<Item = What> {
        let may = |what: What| match what {
            What::Name { .. } => false,
            What::Compact => leader.named != 0 && self.bounds.cuts > 0,
            What::Cut => s.cuts < self.bounds.cuts,
            What::EndCut => leader.held != 0,
        };
        [What::Compact, What::Cut, What::EndCut].into_iter().filter(move |what| may(*what))
    }

    fn next_stamp(leader: &mut Leader) -> Stamp {
        leader.orders += 1;
        Stamp { term: leader.term, order: leader.orders }
    }

    fn copy(s: &mut State, leader: usize, server: usize) {
        Self::raise(s, leader, server);
        s.holding = with(s.holding, server);
        Self::seen(s, leader, server);
    }

    /// The server remembers that it has heard from the leader.
    fn raise(s: &mut State, leader: usize, server: usize) {
        let stamp = Self::next_stamp(&mut s.leaders[leader]);
        s.fences[server] = s.fences[server].max(stamp);
        s.copies += 1;
    }

    /// The server has the table: a leader in office counts on it from here on.
    fn seen(s: &mut State, leader: usize, server: usize) {
        if leader + 1 == s.leaders.len() {
            s.lost = without(s.lost, server);
        }
    }

    fn apply(s: &mut State, change: Change) {
        match change.what {
            What::Name { add, remove } if s.named != 0 => s.named = (s.named | add) & !remove,
            What::Name { .. } => {}
            What::Compact => s.named = 0,
            What::Cut => s.held |= s.named,
            What::EndCut => s.held = 0,
        }
    }

    fn propose(s: &mut State, leader: usize, what: What) {
        let leader = &mut s.leaders[leader];
        leader.pending |= what.added();
        s.proposed.push(Change { term: leader.term, what });
        s.changes += 1;
        s.cuts += u8::from(what == What::Cut);
    }
}

impl Model for Placement {
    type State = State;
    type Action = Action;

    fn roots(&self) -> Vec<State> {
        vec![State::new()]
    }

    fn actions(&self, s: &State, out: &mut Vec<Action>) {
        let knows = |leader: &Leader| (leader.named, leader.held) == (s.named, s.held);
        let applied = |leader: &Leader| knows(leader) && !s.proposed.iter().any(|c| c.term == leader.term);
        for (at, leader) in s.leaders.iter().enumerate() {
            let in_office = at + 1 == s.leaders.len();
            for server in 0..SERVERS {
                if s.copies < self.bounds.copies {
                    // Somebody has it.
                    if s.holding != 0 {
                        out.push(Action::Copy { leader: at, server });
                        out.push(Action::CopyUnheard { leader: at, server });
                    }
                    if has(s.holding, server) {
                        out.push(Action::Ask { leader: at, server });
                    }
                }
                if s.sent < self.bounds.releases && self.may_release(leader, server) {
                    out.push(Action::SendRelease { leader: at, server });
                }
                let may_propose = in_office && s.changes < self.bounds.changes;
                let names = may_propose && leader.named != 0 && !has(leader.named, server);
                if names && self.may_name(leader, server) {
                    let named = (0..SERVERS).filter(|other| has(leader.named, *other));
                    let removes = named.chain([SERVERS]);
                    out.extend(removes.map(|remove| Action::Propose { leader: at, add: server, remove }));
                }
            }
            if in_office && s.changes < self.bounds.changes {
                let others = self.others(s, leader);
                out.extend(others.map(|what| Action::ProposeOther { leader: at, what }));
            }
            if leader.held != 0 && self.bounds.is(Mutant::HoldEndedByClock) {
                out.push(Action::Forget(at));
            }
            if in_office && (!applied(leader) || leader.pending != 0) {
                out.push(Action::Learn(at));
            }
        }
        if !s.proposed.is_empty() {
            out.push(Action::Commit);
        }
        if s.leaders.len() <= usize::from(self.bounds.elections) {
            out.push(Action::Elect { keeps: false });
            if !s.proposed.is_empty() {
                out.push(Action::Elect { keeps: true });
            }
        }
        out.extend((0..s.releases.len()).map(Action::Deliver));
        if s.wipes < self.bounds.wipes {
            out.extend((0..SERVERS).map(Action::Wipe));
        }
    }

    fn step(&self, state: &State, action: Action) -> Result<State, String> {
        let mut s = state.clone();
        match action {
            Action::Copy { leader, server } => {
                Self::copy(&mut s, leader, server);
                s.leaders[leader].told = with(s.leaders[leader].told, server);
            }
            Action::CopyUnheard { leader, server } => Self::copy(&mut s, leader, server),
            Action::Ask { leader, server } => {
                if !self.bounds.is(Mutant::QuestionUnfenced) {
                    Self::raise(&mut s, leader, server);
                } else {
                    s.copies += 1;
                }
                Self::seen(&mut s, leader, server);
            }
            Action::Propose { leader, add, remove } => {
                let remove = if remove < SERVERS { 1 << remove } else { 0 };
                Self::propose(&mut s, leader, What::Name { add: 1 << add, remove });
            }
            Action::ProposeOther { leader, what } => Self::propose(&mut s, leader, what),
            Action::Forget(leader) => s.leaders[leader].held = 0,
            Action::Commit => {
                let change = s.proposed.remove(0);
                Self::apply(&mut s, change);
            }
            Action::Learn(leader) => {
                let leader = &mut s.leaders[leader];
                let own = s.proposed.iter().filter(|change| change.term == leader.term);
                leader.pending = own.fold(0, |set, change| set | change.what.added());
                (leader.named, leader.held) = (s.named, s.held);
            }
            Action::SendRelease { leader, server } => {
                let leader = &mut s.leaders[leader];
                leader.told = without(leader.told, server);
                let deletes = leader.named == 0;
                let release = Release { server: server as u8, stamp: Self::next_stamp(leader), deletes };
                if let Err(place) = s.releases.binary_search(&release) {
                    s.releases.insert(place, release);
                }
                s.sent += 1;
            }
            Action::Deliver(at) => {
                let release = s.releases[at];
                if !self.is_refused(&s, release) {
                    s.holding = without(s.holding, usize::from(release.server));
                }
            }
            Action::Elect { keeps } => {
                let term = s.leaders.last().map_or(1, |l| l.term + 1);
                // Its first entry commits what was before it.
                let proposed = std::mem::take(&mut s.proposed);
                proposed.into_iter().filter(|_| keeps).for_each(|change| Self::apply(&mut s, change));
                let (named, held) = (s.named, s.held);
                s.leaders.push(Leader { term, named, held, ..Leader::default() });
            }
            Action::Wipe(server) => {
                s.holding = without(s.holding, server);
                s.fences[server] = Stamp::default();
                s.lost = with(s.lost, server);
                s.wipes += 1;
            }
        }
        Ok(s)
    }

    fn check(&self, s: &State) -> Result<(), String> {
        let missing = |named: Set| {
            let missing = named & !s.holding & !s.lost;
            (0..SERVERS).find(|server| has(missing, *server))
        };
        match (missing(s.named), missing(s.held)) {
            (Some(server), _) => Err(format!("server {server} is named, lost nothing, and has no copy")),
            (_, Some(server)) => {
                Err(format!("a cut names server {server}, which lost nothing and has no copy"))
            }
            (None, None) => Ok(()),
        }
    }

    fn describe(&self, s: &State, action: Action) -> String {
        match action {
            Action::Copy { leader, server } => {
                format!(
                    "server {server} copies for the leader of term {}, and says so",
                    s.leaders[leader].term
                )
            }
            Action::CopyUnheard { leader, server } => {
                format!("server {server} copies for the leader of term {}, unheard", s.leaders[leader].term)
            }
            Action::Ask { leader, server } => {
                format!(
                    "the leader of term {} hears that server {server} has the table",
                    s.leaders[leader].term
                )
            }
            Action::Propose { leader, add, remove } => format!(
                "the leader of term {} proposes to name server {add}{}",
                s.leaders[leader].term,
                if remove < SERVERS { format!(" instead of {remove}") } else { String::new() }
            ),
            Action::ProposeOther { leader, what } => {
                let what = match what {
                    What::Compact => "another table in its place",
                    What::Cut => "a cut",
                    What::EndCut => "the end of the cut",
                    What::Name { .. } => "other servers",
                };
                format!("the leader of term {} proposes {what}", s.leaders[leader].term)
            }
            Action::Forget(leader) => {
                format!("by its clock, says the leader of term {}, the cut is over", s.leaders[leader].term)
            }
            Action::Commit => "it is committed".to_owned(),
            Action::Learn(leader) => format!("the leader of term {} applies it", s.leaders[leader].term),
            Action::SendRelease { leader, server } => format!(
                "the leader of term {} orders server {server} to release its copy",
                s.leaders[leader].term
            ),
            Action::Deliver(at) => {
                let Release { server, stamp, .. } = s.releases[at];
                let refused = if self.is_refused(s, s.releases[at]) { ": refused" } else { "" };
                format!("order {} of term {} reaches server {server}{refused}", stamp.order, stamp.term)
            }
            Action::Elect { keeps } => {
                format!("a new leader{}", if keeps { ", with what was proposed" } else { "" })
            }
            Action::Wipe(server) => format!("server {server} loses its disk"),
        }
    }
}
