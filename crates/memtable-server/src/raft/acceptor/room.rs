//! Room in the log for what a leader sends.
//!
//! Raft cannot go on after its log has refused an append, so that entries for which there is no room are refused before. A follower
//! without room is like one that is not heard for a while: it goes on voting, and catches up later.

use openraft::EntryPayload;
use openraft::raft::AppendEntriesRequest;
use sextant_common::error::Result;
use sextant_raft_log::{RaftLog, Reservation, TypeConfig};

use crate::command::Command;

/// What groups of writes leave in a follower's log for elections, freezes and flush flags: entries that make room, or that a
/// new leader cannot do without.
const COMMANDS_ROOM_BYTES: u64 = 1024 * 1024;

/// How many times what a leader needs to take writes a server has free that would lead: or it would be full itself after the next ones.
const LEADS_ROOM: u64 = 2;

/// What must fit before a leader proposes a group of so many bytes: all partitions may append one between its look and Raft's append.
pub fn room_of_groups(log: &RaftLog, bytes: usize) -> u64 {
    (bytes * (1 + log.partitions())) as u64
}

/// Whether a leader with this log could take writes, and not only the next few.
pub fn could_lead(log: &RaftLog, group_bytes: usize) -> bool {
    log.check_room(LEADS_ROOM * room_of_groups(log, group_bytes)).is_ok()
}

/// What a message's entries need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Need {
    entries: usize,
    bytes: u64,
    /// Left free beside them.
    spare: u64,
}

fn need(request: &AppendEntriesRequest<TypeConfig>) -> Need {
    let mut need = Need { entries: request.entries.len(), ..Need::default() };
    for entry in &request.entries {
        if let EntryPayload::Normal(payload) = &entry.payload {
            need.bytes += payload.0.len() as u64;
            if Command::is_group(&payload.0) {
                need.spare = COMMANDS_ROOM_BYTES;
            }
        }
    }
    need
}

/// None: it has no entries.
pub fn room_for(log: &RaftLog, request: &AppendEntriesRequest<TypeConfig>) -> Result<Option<Reservation>> {
    let Need { entries, bytes, spare } = need(request);
    if entries == 0 { Ok(None) } else { log.reserve(entries, bytes, spare).map(Some) }
}
