//! What may happen, and what has to hold.

use super::Bounds;
use super::state::{Entry, Member, Role, SERVERS, Server, State, What, is_majority};
use crate::Mutant;
use crate::explore::Model;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Found(usize),
    Campaign(usize),
    /// A candidate's request reaches a server.
    Vote {
        candidate: usize,
        to: usize,
    },
    Lead(usize),
    Write(usize),
    /// A leader's log reaches a server.
    Append {
        leader: usize,
        to: usize,
    },
    /// A leader counts acknowledgements.
    Commit(usize),
    Remove {
        leader: usize,
        server: usize,
    },
    AddLearner {
        leader: usize,
        server: usize,
    },
    Promote {
        leader: usize,
        server: usize,
    },
    /// A server's directories are emptied.
    Wipe(usize),
}

pub struct Election {
    bounds: Bounds,
}

impl Election {
    pub fn new(bounds: Bounds) -> Self {
        assert!(usize::from(bounds.writes) <= 4, "at most 4 writes");
        Self { bounds }
    }

    /// Whether an addressee takes a request that names this incarnation of it.
    fn is_meant(&self, server: &Server, named: u8) -> bool {
        self.bounds.is(Mutant::IncarnationNotNamed) || server.incarnation == named
    }

    /// Whether a server grants a candidate its vote.
    fn grants(&self, candidate: &Server, id: usize, to: &Server, named: Member) -> bool {
        let Member::Voter(named) = named else { return false };
        let amnesiac = to.log.is_empty();
        let meant = self.is_meant(to, named) || self.bounds.is(Mutant::AmnesiacVotes) && amnesiac;
        let blank_for_blank =
            !self.bounds.is(Mutant::IncarnationNotNamed) || !amnesiac || candidate.log.len() == 1;
        let free = candidate.term > to.term
            || candidate.term == to.term && (to.voted == 0 || usize::from(to.voted) == id + 1);
        meant && blank_for_blank && free && candidate.last() >= to.last()
    }

    /// Whether a leader may change the membership: the last change and an entry of its own term are committed.
    fn may_change(&self, leader: &Server) -> bool {
        let Role::Leader { committed, .. } = leader.role else { return false };
        let own = leader.log.iter().position(|e| e.term == leader.term && e.what == What::First);
        let settled = leader.membership().is_some_and(|(at, _)| at < usize::from(committed));
        own.is_some_and(|at| at < usize::from(committed)) && settled
            || self.bounds.is(Mutant::ReadmittedBeforeRemoval)
    }

    /// How many entries a majority of the voters has, by what they acknowledged; at the most those of its own term count.
    fn committable(&self, id: usize, leader: &Server) -> Option<u8> {
        let Role::Leader { acknowledged, committed } = leader.role else { return None };
        let (_, membership) = leader.membership()?;
        let has = |server: usize, length: u8| {
            let Member::Voter(named) = membership[server] else { return false };
            match server == id {
                true => leader.incarnation == named,
                false => {
                    let (incarnation, acknowledged) = acknowledged[server];
                    acknowledged >= length
                        && (incarnation == named || self.bounds.is(Mutant::IncarnationNotNamed))
                }
            }
        };
        (committed + 1..=leader.log.len() as u8).rev().find(|length| {
            let count = (0..SERVERS).filter(|server| has(*server, *length)).count();
            leader.log[usize::from(*length) - 1].term == leader.term && is_majority(count, &membership)
        })
    }

    fn may_found(&self, state: &State, server: usize) -> bool {
        let blank = state.servers.iter().filter(|s| s.is_blank()).count();
        let fixed = server == 0 && blank == SERVERS;
        let anybody = self.bounds.is(Mutant::FoundedByAnybody) && 2 * blank > SERVERS;
        state.servers[server].is_blank() && (fixed || anybody)
    }

    /// Whether a server can lose its memory and leave a majority of the voters with theirs.
    fn may_wipe(&self, state: &State, server: usize) -> bool {
        let Some(committed) = state.committed else { return false };
        let sound = (0..SERVERS).filter(|other| *other != server && state.is_sound(*other)).count();
        state.wipes < self.bounds.wipes && is_majority(sound, &committed)
    }

    fn actions_of_leader(&self, state: &State, id: usize, out: &mut Vec<Action>) {
        let leader = &state.servers[id];
        let Some((_, membership)) = leader.membership() else { return };
        if state.writes < self.bounds.writes {
            out.push(Action::Write(id));
        }
        for to in (0..SERVERS).filter(|to| *to != id) {
            let (Member::Voter(named) | Member::Learner(named)) = membership[to] else { continue };
            let server = &state.servers[to];
            let Role::Leader { acknowledged, .. } = leader.role else { continue };
            let news = acknowledged[to] != (server.incarnation, leader.log.len() as u8);
            if self.is_meant(server, named) && server.term <= leader.term && news {
                out.push(Action::Append { leader: id, to });
            }
        }
        if self.committable(id, leader).is_some() {
            out.push(Action::Commit(id));
        }
        if state.changes >= self.bounds.changes || !self.may_change(leader) {
            return;
        }
        for server in (0..SERVERS).filter(|server| *server != id) {
            let incarnation = state.servers[server].incarnation;
            out.push(match membership[server] {
                Member::None => Action::AddLearner { leader: id, server },
                Member::Learner(i) if i == incarnation => Action::Promote { leader: id, server },
                Member::Learner(i) | Member::Voter(i) if i != incarnation => {
                    Action::Remove { leader: id, server }
                }
                _ => continue,
            });
        }
    }

    fn change(&self, state: &mut State, leader: usize, server: usize, member: Member) {
        let of = &mut state.servers[leader];
        let Some((_, mut membership)) = of.membership() else { return };
        membership[server] = member;
        of.log.push(Entry { term: of.term, what: What::Membership(membership) });
        state.changes += 1;
    }
}

impl Model for Election {
    type State = State;
    type Action = Action;

    fn roots(&self) -> Vec<State> {
        vec![State::new()]
    }

    fn actions(&self, state: &State, out: &mut Vec<Action>) {
        for (id, server) in state.servers.iter().enumerate() {
            if self.may_found(state, id) {
                out.push(Action::Found(id));
            }
            if self.may_wipe(state, id) {
                out.push(Action::Wipe(id));
            }
            let own = server.membership().map(|(_, membership)| membership[id]);
            let leads = matches!(server.role, Role::Leader { .. });
            if own == Some(Member::Voter(server.incarnation))
                && !leads
                && state.campaigns < self.bounds.campaigns
            {
                out.push(Action::Campaign(id));
            }
            match server.role {
                Role::Follower => {}
                Role::Candidate { granted } => {
                    let Some((_, membership)) = server.membership() else { continue };
                    for to in (0..SERVERS).filter(|to| granted & (1 << to) == 0) {
                        if self.grants(server, id, &state.servers[to], membership[to]) {
                            out.push(Action::Vote { candidate: id, to });
                        }
                    }
                    if is_majority(granted.count_ones() as usize, &membership) {
                        out.push(Action::Lead(id));
                    }
                }
                Role::Leader { .. } => self.actions_of_leader(state, id, out),
            }
        }
    }

    fn step(&self, state: &State, action: Action) -> Result<State, String> {
        let mut after = state.clone();
        match action {
            Action::Found(id) => {
                let membership = std::array::from_fn(|s| Member::Voter(state.servers[s].incarnation));
                after.servers[id].log.push(Entry { term: 0, what: What::Membership(membership) });
                after.committed = after.committed.or(Some(membership));
            }
            Action::Campaign(id) => {
                let server = &mut after.servers[id];
                server.term += 1;
                server.voted = id as u8 + 1;
                server.role = Role::Candidate { granted: 1 << id };
                after.campaigns += 1;
            }
            Action::Vote { candidate, to } => {
                let term = state.servers[candidate].term;
                let voter = &mut after.servers[to];
                (voter.term, voter.voted, voter.role) = (term, candidate as u8 + 1, Role::Follower);
                if let Role::Candidate { granted } = &mut after.servers[candidate].role {
                    *granted |= 1 << to;
                }
            }
            Action::Lead(id) => {
                let server = &mut after.servers[id];
                server.log.push(Entry { term: server.term, what: What::First });
                server.role = Role::Leader { acknowledged: [(0, 0); SERVERS], committed: 0 };
            }
            Action::Write(id) => {
                let server = &mut after.servers[id];
                server.log.push(Entry { term: server.term, what: What::Write(after.writes) });
                after.writes += 1;
            }
            Action::Append { leader, to } => {
                let (term, log) = (state.servers[leader].term, state.servers[leader].log.clone());
                let follower = &mut after.servers[to];
                let same = follower.log.iter().zip(&log).take_while(|(a, b)| a == b).count();
                // What it has beyond what it is sent stays, unless the two differ.
                if same < log.len() {
                    follower.log.truncate(same);
                    follower.log.extend_from_slice(&log[same..]);
                }
                (follower.term, follower.voted) = (term, leader as u8 + 1);
                follower.role = Role::Follower;
                let acknowledges = (follower.incarnation, log.len() as u8);
                if let Role::Leader { acknowledged, .. } = &mut after.servers[leader].role {
                    acknowledged[to] = acknowledges;
                }
            }
            Action::Commit(id) => {
                let leader = &state.servers[id];
                let Some(length) = self.committable(id, leader) else { return Ok(after) };
                for entry in &leader.log[..usize::from(length)] {
                    match entry.what {
                        What::Write(write) => {
                            let acknowledged = &mut after.acknowledged[usize::from(write)];
                            if *acknowledged == 0 {
                                *acknowledged = leader.term + 1;
                            }
                        }
                        What::Membership(membership) => after.committed = Some(membership),
                        What::First => {}
                    }
                }
                if let Role::Leader { committed, .. } = &mut after.servers[id].role {
                    *committed = length;
                }
            }
            Action::Remove { leader, server } => self.change(&mut after, leader, server, Member::None),
            Action::AddLearner { leader, server } => {
                let incarnation = state.servers[server].incarnation;
                self.change(&mut after, leader, server, Member::Learner(incarnation));
            }
            Action::Promote { leader, server } => {
                let incarnation = state.servers[server].incarnation;
                self.change(&mut after, leader, server, Member::Voter(incarnation));
            }
            Action::Wipe(id) => {
                after.wipes += 1;
                after.servers[id] = Server::empty(after.wipes);
            }
        }
        Ok(after)
    }

    fn check(&self, state: &State) -> Result<(), String> {
        for (id, leader) in state.servers.iter().enumerate() {
            if !matches!(leader.role, Role::Leader { .. }) {
                continue;
            }
            for (write, term) in state.acknowledged.iter().enumerate() {
                if *term != 0 && leader.term + 1 >= *term && !leader.has_write(write as u8) {
                    return Err(format!(
                        "server {id} leads term {} without write {write}, which was acknowledged in term {}",
                        leader.term,
                        term - 1
                    ));
                }
            }
        }
        Ok(())
    }

    fn describe(&self, _: &State, action: Action) -> String {
        format!("{action:?}")
    }
}
