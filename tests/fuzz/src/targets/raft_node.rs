//! What openraft does after decoding: messages with any numbers, fed to a replica's Raft on a real log.

use std::path::Path;

use bytes::Bytes;
use sextant_common::ids::LogPosition;
use sextant_memtable_server::fuzzing::RaftNode;
use sextant_proto::v1;
use sextant_simulated::FaultyVfs;

use super::log::{block_on, env, membership_entry};
use crate::input::Input;

/// Messages of one input: enough to climb from one extreme to the next.
const MESSAGES_MAX: usize = 24;
/// By so much a single message may raise a term: what the door lets in.
const TERMS_AHEAD_MAX: u64 = 1 << 32;
/// A blank entry as it is stored and sent.
const BLANK: &[u8] = &[0];

pub fn raft_node(data: &[u8]) {
    block_on(feed(Input::new(data)));
}

/// What the replica's log must hold, by what it has accepted. Whoever contradicts what is committed is no liar about numbers but a
/// false leader: that is not what this target is about.
struct Known {
    entries: Vec<LogPosition>,
    committed: u64,
}

impl Known {
    fn is_contradicted(&self, id: LogPosition) -> bool {
        id.index <= self.committed && self.entries.get(id.index as usize) != Some(&id)
    }

    fn allows(&self, message: &v1::AppendEntriesRequest) -> bool {
        let entries = message.entries.iter().filter_map(|entry| entry.position);
        let named = message.prev.into_iter().chain(message.leader_commit).chain(entries);
        !named.map(LogPosition::from).any(|id| self.is_contradicted(id))
    }

    /// A leader that names another entry before its own: what is there from that one on goes.
    fn conflicted(&mut self, message: &v1::AppendEntriesRequest) {
        let Some(prev) = message.prev.map(LogPosition::from) else { return };
        if self.entries.get(prev.index as usize).is_some_and(|here| *here != prev) {
            self.entries.truncate(prev.index as usize);
        }
    }

    fn accepted(&mut self, message: &v1::AppendEntriesRequest) {
        for id in message.entries.iter().filter_map(|entry| entry.position).map(LogPosition::from) {
            let at = id.index as usize;
            if self.entries.get(at) != Some(&id) {
                self.entries.truncate(at);
                self.entries.push(id);
            }
        }
    }
}

async fn feed(mut input: Input<'_>) {
    let disk = FaultyVfs::default();
    let env = env(&disk);
    let dir = Path::new("/node");
    let node = started(RaftNode::start(&env, dir).await);
    let mut known = Known { entries: Vec::new(), committed: 0 };

    // Node 2 founds the group of 1, 2 and 3, and leads its first term.
    let founding = append(1, None, vec![(1, 0, membership_entry()), (1, 1, blank())], Some((1, 1)));
    assert!(accepts(&node, &mut known, founding).await, "an honest leader is refused");

    let mut messages = 0;
    while !input.is_empty() && messages < MESSAGES_MAX {
        messages += 1;
        let (term, last) = (term_of(&node).await, known.entries.last().copied().unwrap_or_default());
        match input.u8() % 4 {
            0 | 1 => {
                let message = any_append(&mut input, term, last);
                if known.allows(&message) {
                    accepts(&node, &mut known, message).await;
                }
            }
            kind => {
                let message = any_vote_request(&mut input, term, last);
                let _ = if kind == 2 { node.vote(message).await } else { node.pre_vote(message).await };
            }
        }
        assert!(node.is_running(), "openraft has ended");
    }
    let highest = 1 + messages as u64 * TERMS_AHEAD_MAX;
    let term = term_of(&node).await;
    assert!(term <= highest, "term {term} after {messages} messages");
    assert_eq!(node.last(), known.entries.last().copied());

    // The next honest leader is taken, and what it was told survives a restart.
    let (term, last) = (term + 1, known.entries.last().copied().unwrap_or_default());
    let next = append(term, Some((last.term, last.index)), vec![(term, last.index + 1, blank())], None);
    assert!(accepts(&node, &mut known, next).await, "an honest leader is refused");
    node.stop().await;
    let again = started(RaftNode::start(&env, dir).await);
    assert_eq!((term_of(&again).await, again.last()), (term, known.entries.last().copied()));
    again.stop().await;
}

fn started(node: sextant_common::Result<RaftNode>) -> RaftNode {
    match node {
        Ok(node) => node,
        Err(e) => panic!("the node does not start: {e}"),
    }
}

async fn term_of(node: &RaftNode) -> u64 {
    match node.term().await {
        Ok(term) => term,
        Err(e) => panic!("the vote cannot be read: {e}"),
    }
}

async fn accepts(node: &RaftNode, known: &mut Known, message: v1::AppendEntriesRequest) -> bool {
    use v1::append_entries_response::Outcome;
    let Ok(reply) = node.append(message.clone()).await else { return false };
    // What its leader claims to be committed counts once its entries are here, now or later.
    known.committed = known.committed.max(message.leader_commit.map_or(0, |commit| commit.index));
    if reply.outcome() == Outcome::Conflict {
        known.conflicted(&message);
    }
    let taken = matches!(reply.outcome(), Outcome::Success | Outcome::PartialSuccess);
    if taken {
        known.accepted(&message);
    }
    taken
}

fn blank() -> Bytes {
    Bytes::from_static(BLANK)
}

fn position((term, index): (u64, u64)) -> v1::LogPosition {
    v1::LogPosition { term, index }
}

/// Of node 2, which leads `term`.
fn append(
    term: u64,
    prev: Option<(u64, u64)>,
    entries: Vec<(u64, u64, Bytes)>,
    commit: Option<(u64, u64)>,
) -> v1::AppendEntriesRequest {
    let entry = |(term, index, data)| v1::RaftEntry { position: Some(position((term, index))), data };
    v1::AppendEntriesRequest {
        from: 2,
        to: 1,
        vote: Some(v1::RaftVote { term, node: 2, committed: true }),
        prev: prev.map(position),
        leader_commit: commit.map(position),
        entries: entries.into_iter().map(entry).collect(),
        ..Default::default()
    }
}

/// Mostly near a number that means something; often at an edge.
fn number(input: &mut Input<'_>, near: u64) -> u64 {
    let choice = input.u8();
    match choice {
        0..=159 => near.saturating_add(u64::from(choice % 8)).saturating_sub(3),
        160..=199 => near,
        200..=209 => u64::MAX - u64::from(choice - 200),
        210..=219 => near.saturating_add(1 << 32).saturating_add(u64::from(choice - 210)).saturating_sub(5),
        220..=229 => near.saturating_add(1 << 52).saturating_add(u64::from(choice - 220)).saturating_sub(5),
        230..=239 => (1 << 62) + u64::from(choice - 230) - 5,
        240..=244 => (1 << 63) + u64::from(choice - 240) - 2,
        245..=249 => u64::from(choice - 245),
        _ => input.u64(),
    }
}

fn any_position(input: &mut Input<'_>, term: u64, last: LogPosition) -> Option<v1::LogPosition> {
    match input.u8() % 4 {
        0 => None,
        1 => Some(last.into()),
        _ => Some(position((number(input, term), number(input, last.index)))),
    }
}

fn any_vote(input: &mut Input<'_>, term: u64, committed: bool) -> Option<v1::RaftVote> {
    let flags = input.u8();
    let node = u64::from(flags % 5);
    Some(v1::RaftVote { term: number(input, term), node, committed: committed ^ (flags > 250) })
}

fn any_append(input: &mut Input<'_>, term: u64, last: LogPosition) -> v1::AppendEntriesRequest {
    let vote = any_vote(input, term, true);
    let prev = any_position(input, term, last);
    let leader_commit = any_position(input, term, last);
    let mut index = prev.map_or(0, |p| p.index.wrapping_add(1));
    let mut entries = Vec::new();
    for _ in 0..input.u8() % 4 {
        let term = number(input, term);
        if input.u8() > 240 {
            index = number(input, index);
        }
        entries.push(v1::RaftEntry { position: Some(position((term, index))), data: blank() });
        index = index.wrapping_add(1);
    }
    v1::AppendEntriesRequest { from: 2, to: 1, vote, prev, leader_commit, entries, ..Default::default() }
}

fn any_vote_request(input: &mut Input<'_>, term: u64, last: LogPosition) -> v1::VoteRequest {
    let vote = any_vote(input, term, false);
    let last_log = any_position(input, term, last);
    v1::VoteRequest { from: 2, to: 1, vote, last_log, ..Default::default() }
}

pub fn raft_node_seeds() -> Vec<Vec<u8>> {
    let append = |vote: u8, term: u8, rest: &[u8]| [&[0, vote, term][..], rest].concat();
    vec![
        // A leader of the next term, with an entry after the last one.
        append(2, 4, &[1, 1, 1, 4, 0]),
        // The last term there is, from a leader and from a candidate.
        append(2, 200, &[0, 0, 0]),
        vec![2, 2, 200, 0, 3, 3, 200, 0],
        // As far as the door lets in, several times over; then an entry.
        [append(3, 215, &[0, 0, 0]), append(2, 215, &[0, 0, 0]), append(2, 165, &[1, 1, 2, 165, 0, 165, 0])]
            .concat(),
        // Positions at the edges, before and committed.
        append(2, 165, &[2, 165, 200, 0, 0]),
        append(2, 165, &[1, 2, 165, 200, 1, 165, 0]),
        // A later leader that has another entry where two of the one before it stand.
        [append(2, 165, &[1, 0, 2, 165, 200, 165, 0]), append(4, 118, &[3, 1, 165, 0])].concat(),
        append(2, 4, &[1, 2, 1, 230, 1, 4, 0]),
        // Committed up to where the leader's own log cannot be of that term any more.
        append(2, 4, &[1, 2, 160, 7, 1, 4, 0]),
        // Its own vote comes back to it.
        append(1, 4, &[1, 0, 1, 4, 0]),
        vec![2, 1, 4, 1],
    ]
}
