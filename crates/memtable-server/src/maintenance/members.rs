//! Who is in a partition's group, and who leads it.

use std::collections::BTreeMap;
use std::time::Duration;

use sextant_common::error::{Error, Result};
use sextant_environment::config::ClusterConfig;
use sextant_raft_log::Member;
use tokio::sync::oneshot;

use super::{DATA_TIMEOUT, ENTRY_TIMEOUT, within};
use crate::leadership::not_leading;
use crate::raft::network::NetworkFactory;
use crate::replica::{Event, Handle, Leader};

/// How often a server that has let go looks for its successor.
const ELECTED_POLL: Duration = Duration::from_millis(5);
/// A successor that takes longer to say who it is does not get a leadership.
const HEIR_ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// What only a leader can do.
pub fn check_leads(handle: &Handle) -> Result<()> {
    handle.shared.serving().map(drop).ok_or_else(not_leading)
}

/// Voters that a request names, with their addresses; their incarnations are theirs to say.
pub fn voters_of(ids: &[u64], cluster: &ClusterConfig) -> Result<BTreeMap<u64, Member>> {
    if ids.is_empty() {
        return Err(Error::invalid("a partition needs at least one voter"));
    }
    let mut voters = BTreeMap::new();
    for id in ids {
        let server = cluster.memtable.iter().find(|s| s.id.0 == *id);
        let server = server.ok_or_else(|| Error::invalid(format!("there is no memtable server {id}")))?;
        if voters.insert(*id, Member::new(server.addr.clone(), 0)).is_some() {
            return Err(Error::invalid(format!("memtable server {id} is named twice")));
        }
    }
    Ok(voters)
}

/// Makes these the voters, as what they say that they are.
pub async fn choose_voters(
    handle: &Handle,
    mut voters: BTreeMap<u64, Member>,
    network: Option<&NetworkFactory>,
) -> Result<()> {
    if let Some(network) = network {
        let others = voters.keys().copied().filter(|id| *id != handle.shared.node);
        for (id, said) in network.introductions(others.collect::<Vec<u64>>(), 0).await {
            let format = handle.shared.configuration.load().format;
            if voters.contains_key(&id) && said.format < format {
                return Err(Error::invalid(format!(
                    "memtable server {id} reads formats up to {}, the partition has {format}: install this version there first",
                    said.format
                )));
            }
            voters.entry(id).and_modify(|member| member.incarnation = said.incarnation);
        }
    }
    let (done, answer) = oneshot::channel();
    let _ = handle.events.send(Event::ChangeVoters { voters, done });
    within(DATA_TIMEOUT, "change of the voters (it goes on)", answer).await
}

/// Gives the leadership to another server. Who leads when that is over.
pub async fn transfer(
    handle: &Handle,
    to: u64,
    cluster: &ClusterConfig,
    network: Option<&NetworkFactory>,
) -> Result<Leader> {
    if !cluster.memtable.iter().any(|s| s.id.0 == to) {
        return Err(Error::invalid(format!("there is no memtable server {to}")));
    }
    check_leads(handle)?;
    if to == handle.shared.node {
        return Ok(handle.shared.leader());
    }
    // A leader that lets go of its writes for one who is not there would keep them waiting for nothing.
    if let Some(network) = network {
        check_heir(network, to).await.map_err(|why| {
            Error::invalid(format!("memtable server {to} {why}: the leadership stays where it is"))
        })?;
    }
    let (done, answer) = oneshot::channel();
    let _ = handle.events.send(Event::HandOver { to, done });
    let ended = within(ENTRY_TIMEOUT, "transfer", answer).await?;
    let elected = async {
        loop {
            let leader = handle.shared.leader();
            if leader.term > ended && leader.node != 0 {
                return leader;
            }
            tokio::time::sleep(ELECTED_POLL).await;
        }
    };
    let nobody = |_| Error::unavailable("this server has let go, but nobody was elected yet");
    tokio::time::timeout(ENTRY_TIMEOUT, elected).await.map_err(nobody)
}

/// Why a server cannot lead now.
async fn check_heir(network: &NetworkFactory, to: u64) -> Result<(), &'static str> {
    let asked = futures::future::join(network.introductions([to], 0), network.would_lead(vec![to]));
    let Ok((said, would_lead)) = tokio::time::timeout(HEIR_ANSWERS_WITHIN, asked).await else {
        return Err("does not answer");
    };
    match said.get(&to) {
        None => Err("does not answer"),
        Some(said) if !said.founded => Err("has nothing of the partition's group"),
        Some(_) if would_lead.is_empty() => Err("is stopping or slow, or its log has no room or hangs"),
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use sextant_environment::config::Server;

    use super::*;

    #[test]
    fn voters_are_servers_of_the_configuration_each_named_once() {
        let server = |id: u64| Server::new(id, format!("m{id}:1"));
        let cluster = ClusterConfig {
            id: "test".into(),
            partitions: 1,
            memtable: vec![server(1), server(2), server(3)],
            sstable: Vec::new(),
            lease: Default::default(),
        };
        let voters = voters_of(&[3, 1], &cluster).unwrap();
        assert_eq!(voters.keys().copied().collect::<Vec<u64>>(), [1, 3]);
        assert_eq!((voters[&3].addr.as_str(), voters[&3].incarnation), ("m3:1", 0));
        for (ids, why) in
            [(&[][..], "at least one"), (&[4], "no memtable server 4"), (&[1, 2, 1], "named twice")]
        {
            let error = voters_of(ids, &cluster).unwrap_err();
            assert!(error.message.contains(why), "{error}");
        }
    }
}
