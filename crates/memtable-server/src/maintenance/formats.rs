//! What a partition's log may say: which formats its members read, and that it is raised.

use std::collections::BTreeMap;

use openraft::async_runtime::WatchReceiver;
use sextant_common::configuration::PartitionFormat;
use sextant_common::error::{Error, Result};
use sextant_common::ids::PartitionId;
use tokio::sync::oneshot;

use super::{ENTRY_TIMEOUT, led, within};
use crate::leadership::not_leading;
use crate::raft::Raft;
use crate::raft::network::NetworkFactory;
use crate::replica::{Event, Handle, ReplicaState};
use crate::service::Context;

/// What a partition's members, voters and learners, say that they can read.
#[derive(Debug)]
pub struct Formats(BTreeMap<u64, Member>);

#[derive(Debug)]
struct Member {
    /// As the membership names it.
    incarnation: u64,
    /// None: it does not answer, or is another one.
    reads: Option<u32>,
}

impl Formats {
    /// With the incarnations that the membership names.
    pub fn members(&self) -> BTreeMap<u64, u64> {
        self.0.iter().map(|(id, member)| (*id, member.incarnation)).collect()
    }

    /// None: not all have said.
    pub fn of_all(&self) -> Option<u32> {
        let reads: Option<Vec<u32>> = self.0.values().map(|member| member.reads).collect();
        reads?.into_iter().min()
    }

    /// Who cannot read this format, or has not said, a line each.
    fn hindrances(&self, format: u32) -> Vec<String> {
        let line = |(id, member): (&u64, &Member)| match member.reads {
            Some(reads) if reads >= format => None,
            Some(reads) => {
                Some(format!("memtable server {id} reads formats up to {reads}: install this version there"))
            }
            None => Some(format!("memtable server {id} does not answer as the member that it was")),
        };
        self.0.iter().filter_map(line).collect()
    }
}

/// Asks all members of the newest membership in this server's log.
pub async fn ask_formats(shared: &ReplicaState, raft: &Raft, network: &NetworkFactory) -> Formats {
    let membership = raft.server_metrics().borrow_watched().membership_config.clone();
    let members: BTreeMap<u64, u64> =
        membership.membership().nodes().map(|(id, node)| (*id, node.incarnation)).collect();
    let others: Vec<u64> = members.keys().copied().filter(|id| *id != shared.node).collect();
    let said = network.introductions(others, 0).await;
    let formats = members.into_iter().map(|(id, incarnation)| {
        let reads = match id == shared.node {
            true => Some(shared.format_max),
            false => said.get(&id).filter(|said| said.incarnation == incarnation).map(|said| said.format),
        };
        (id, Member { incarnation, reads })
    });
    Formats(formats.collect())
}

/// Raises the format of each of these partitions that this server leads; none named: of all. What came of it.
pub async fn raise_formats(context: &Context, named: &[u32], to: u32, dry_run: bool) -> Vec<PartitionFormat> {
    let partitions = led(context.partitions.values(), named);
    let raised = partitions.into_iter().map(|handle| raise(context, handle, to, dry_run));
    futures::future::join_all(raised).await
}

/// `to` 0: the newest that this server can read.
async fn raise(context: &Context, handle: &Handle, to: u32, dry_run: bool) -> PartitionFormat {
    let shared = &handle.shared;
    let id = shared.id;
    let to = if to == 0 { shared.format_max } else { to };
    let asked = async {
        // In this order: what is heard, is heard in this term.
        let term = shared.serving().ok_or_else(not_leading)?;
        let (Some(raft), Some(network)) = (context.rafts.get(&id), context.networks.get(&id)) else {
            return Err(not_leading());
        };
        Ok((term, ask_formats(shared, raft, network).await))
    };
    let now = || shared.configuration.load().format;
    let (term, formats) = match asked.await {
        Ok(asked) => asked,
        Err(e) => return refused(id, now(), e),
    };
    let possible = formats.of_all().unwrap_or(0).max(now());
    let hindrances = formats.hindrances(to);
    let answer = |refused| PartitionFormat { partition: id, format: now(), possible, hindrances, refused };
    if dry_run || to <= now() {
        return answer(String::new());
    }
    if possible < to {
        return answer(format!("not all members can read format {to}"));
    }
    let (done, raised) = oneshot::channel();
    let _ = handle.events.send(Event::RaiseFormat { term, members: formats.members(), to, done });
    let raised: Result<()> = within(ENTRY_TIMEOUT, "raise the format", raised).await;
    answer(raised.err().map_or_else(String::new, |e| e.message.into_owned()))
}

fn refused(partition: PartitionId, format: u32, e: Error) -> PartitionFormat {
    PartitionFormat {
        partition,
        format,
        possible: format,
        hindrances: Vec::new(),
        refused: e.message.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_is_possible_when_every_member_has_said_that_it_reads_it() {
        let of = |reads: &[Option<u32>]| {
            let members =
                (1..).zip(reads).map(|(id, reads)| (id, Member { incarnation: 10 * id, reads: *reads }));
            Formats(members.collect())
        };
        let all = of(&[Some(2), Some(1), Some(1)]);
        assert_eq!((all.of_all(), all.hindrances(1).len(), all.hindrances(2).len()), (Some(1), 0, 2));
        let silent = of(&[Some(1), None, Some(0)]);
        assert_eq!(silent.of_all(), None);
        let lines = silent.hindrances(1);
        assert!(
            lines[0].contains("server 2 does not answer")
                && lines[1].contains("server 3 reads formats up to 0")
        );
        assert_eq!(silent.members(), [(1, 10), (2, 20), (3, 30)].into());
    }
}
