//! Whether a group may be founded: the sstable servers are asked first.
//!
//! What "no tables" takes: an answer of *every* sstable server of the configuration. A table is durable on two of three before it
//! counts, so that two answers would do if no disk was ever lost; but whoever has lost all memtable servers may have lost the disk of an
//! sstable server with them, and then the third one may have the last copy.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use openraft::async_runtime::WatchReceiver;
use parking_lot::Mutex;
use sextant_common::ids::{NodeId, PartitionId};
use sextant_environment::shutdown::Shutdown;

use crate::command::Configuration;
use crate::incarnation::{Incarnation, Memory};
use crate::raft::Raft;
use crate::raft::network::NetworkFactory;
use crate::replica::ReplicaState;
use crate::upstream::SstServers;

/// How often a server that has nothing of a partition looks why.
const WATCH: Duration = Duration::from_secs(1);

/// What this server remembers, of all partitions.
pub struct Memories {
    /// Some partition had something when the process started.
    at_start: bool,
    incarnation: Arc<Incarnation>,
    rafts: Mutex<HashMap<PartitionId, Raft>>,
}

impl Memories {
    pub fn new(at_start: bool, incarnation: Arc<Incarnation>) -> Arc<Self> {
        Arc::new(Self { at_start, incarnation, rafts: Mutex::default() })
    }

    pub fn add(&self, partition: PartitionId, raft: Raft) {
        self.rafts.lock().insert(partition, raft);
    }

    pub fn of(&self, partition: PartitionId) -> Memory {
        let look = |raft: &Raft| {
            let metrics = raft.metrics();
            let m = metrics.borrow_watched();
            let members = m.membership_config.membership().nodes().next().is_some();
            (m.last_log_index.is_some() || m.last_applied.is_some() || members, m.current_term)
        };
        let rafts = self.rafts.lock();
        let (own, term) = rafts.get(&partition).map(look).unwrap_or_default();
        let any = self.at_start || rafts.values().any(|raft| look(raft).0);
        Memory { partition: own, any, term, lost: self.incarnation.is_lost(partition) }
    }
}

/// Tables that an sstable server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub of_partition: u64,
    pub in_all: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nobody remembers the partition, and nobody holds tables: it is new.
    New,
    /// Some memtable server remembers it: who does.
    Remembered(String),
    /// Not everybody has answered: who has not.
    Unknown(String),
    /// All memory of it is lost, but not its tables, or not every trace of it: an operator has to say what is to become of it.
    Lost(String),
}

fn list(nodes: impl IntoIterator<Item = NodeId>) -> String {
    nodes.into_iter().map(|n| n.to_string()).collect::<Vec<_>>().join(", ")
}

/// What is known of a partition when all servers were asked; None: no answer.
pub fn judge(
    partition: PartitionId,
    memtable: &[(NodeId, Option<Memory>)],
    sstable: &[(NodeId, Option<Held>)],
) -> Verdict {
    let who = |says: fn(&Memory) -> bool| {
        list(memtable.iter().filter(|(_, memory)| memory.as_ref().is_some_and(says)).map(|(node, _)| *node))
    };
    let remember = who(|m| m.partition);
    if !remember.is_empty() {
        return Verdict::Remembered(format!(
            "partition {partition}: this server has nothing of it, memtable servers {remember} have: it waits for their group"
        ));
    }
    let silent = |(node, answered): (NodeId, bool)| (!answered).then_some(node);
    let silent_memtable = list(memtable.iter().filter_map(|(n, m)| silent((*n, m.is_some()))));
    if !silent_memtable.is_empty() {
        return Verdict::Unknown(format!(
            "partition {partition} is not founded: memtable servers {silent_memtable} do not answer"
        ));
    }
    let help = "bring the disks back, or run `sextant admin recover`";
    let most = |tables: fn(&Held) -> u64| {
        sstable.iter().filter_map(|(_, h)| h.as_ref()).map(tables).max().unwrap_or(0)
    };
    let holders = |tables: fn(&Held) -> u64| {
        list(sstable.iter().filter(|(_, h)| h.as_ref().is_some_and(|h| tables(h) > 0)).map(|(n, _)| *n))
    };
    let own = most(|h| h.of_partition);
    if own > 0 {
        return Verdict::Lost(format!(
            "partition {partition}: the memtable servers are empty but sstable servers ({}) hold {own} tables of it: {help}",
            holders(|h| h.of_partition)
        ));
    }
    // A partition of which nothing was ever flushed leaves no trace but its neighbours'.
    let all = most(|h| h.in_all);
    if all > 0 && memtable.iter().all(|(_, memory)| memory.is_some_and(|m| !m.any)) {
        return Verdict::Lost(format!(
            "partition {partition}: the memtable servers are empty but sstable servers ({}) hold {all} tables of other \
             partitions: {help}",
            holders(|h| h.in_all)
        ));
    }
    let silent_sstable = list(sstable.iter().filter_map(|(n, h)| silent((*n, h.is_some()))));
    if !silent_sstable.is_empty() {
        return Verdict::Unknown(format!(
            "partition {partition} is not founded: sstable servers {silent_sstable} do not answer, and may hold tables of it"
        ));
    }
    // Nobody has a record, but there was a group: what it acknowledged and did not flush is gone, and somebody is to know.
    let empty_them =
        "empty the directories of these servers and start them again, or run `sextant admin recover`";
    let told = who(|m| m.lost);
    if !told.is_empty() {
        return Verdict::Lost(format!(
            "partition {partition} is not founded: all servers are empty, but memtable servers {told} know that it had a group: whatever \
             was written is lost. Bring a disk back, or begin anew: {empty_them}"
        ));
    }
    let voted = who(|m| m.term > 0);
    if !voted.is_empty() {
        return Verdict::Lost(format!(
            "partition {partition} is not founded: all servers are empty, but memtable servers {voted} have voted in it and must not \
             forget that. Bring a disk back, or begin anew: {empty_them}"
        ));
    }
    Verdict::New
}

/// Stands before the founding of one partition. Cheap to clone.
#[derive(Clone)]
pub struct Gate {
    pub shared: Arc<ReplicaState>,
    pub servers: Arc<SstServers>,
    pub network: NetworkFactory,
    pub memories: Arc<Memories>,
    /// Replicas of each SSTable.
    pub sst_replicas: usize,
    /// What this server's file says.
    pub founding: Configuration,
    /// Held by whoever founds or rebuilds the group, from the last question to the end. True: that was done here. (What Raft shows of
    /// itself lags behind; rebuilt a second time, the partition would contradict itself.)
    pub founder: Arc<tokio::sync::Mutex<bool>>,
}

impl Gate {
    /// What every memtable server remembers of the partition, this one first.
    pub async fn memories(&self) -> Vec<(NodeId, Option<Memory>)> {
        let mut all = vec![(NodeId(self.shared.node), Some(self.memories.of(self.shared.id)))];
        all.extend(self.network.memories().await);
        all
    }

    /// Asks everybody. What keeps the group from being founded is in the log, the status, and the answer to "ready?".
    pub async fn check(&self) -> Verdict {
        let id = self.shared.id;
        let asked = self.servers.all().iter().map(|server| async move {
            let held = server.count(id).await.ok();
            (server.id, held.map(|(of_partition, in_all)| Held { of_partition, in_all }))
        });
        let (memtable, sstable) = futures::join!(self.memories(), futures::future::join_all(asked));
        let verdict = judge(id, &memtable, &sstable);
        self.tell(&verdict);
        verdict
    }

    fn tell(&self, verdict: &Verdict) {
        let why = match verdict {
            Verdict::New => None,
            Verdict::Remembered(why) | Verdict::Unknown(why) | Verdict::Lost(why) => Some(why.clone()),
        };
        let before = std::mem::replace(&mut *self.shared.unfounded.lock(), why.clone());
        match (verdict, why) {
            (Verdict::Lost(_), Some(why)) if before.as_ref() != Some(&why) => tracing::error!("{why}"),
            (_, Some(why)) if before.as_ref() != Some(&why) => tracing::info!("{why}"),
            _ => {}
        }
    }

    /// Says why this server has nothing of the partition, until it has.
    pub async fn watch(self, mut shutdown: Shutdown) {
        loop {
            tokio::select! {
                () = shutdown.wait() => return,
                () = tokio::time::sleep(WATCH) => {}
            }
            if self.memories.of(self.shared.id).partition {
                *self.shared.unfounded.lock() = None;
                return;
            }
            tokio::select! {
                () = shutdown.wait() => return,
                _ = self.check() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: PartitionId = PartitionId(1);

    fn nothing() -> Option<Memory> {
        Some(Memory::default())
    }

    fn other() -> Option<Memory> {
        Some(Memory { any: true, ..Memory::default() })
    }

    fn own() -> Option<Memory> {
        Some(Memory { any: true, partition: true, term: 7, lost: false })
    }

    fn held(of_partition: u64, in_all: u64) -> Option<Held> {
        Some(Held { of_partition, in_all })
    }

    fn judged(memtable: [Option<Memory>; 3], sstable: [Option<Held>; 3]) -> Verdict {
        let id = |i: usize| NodeId(i as u64 + 1);
        let memtable: Vec<_> = memtable.into_iter().enumerate().map(|(i, m)| (id(i), m)).collect();
        let sstable: Vec<_> = sstable.into_iter().enumerate().map(|(i, h)| (id(i), h)).collect();
        judge(P, &memtable, &sstable)
    }

    fn lost(verdict: Verdict, words: &[&str]) {
        let Verdict::Lost(why) = verdict else { panic!("{verdict:?}") };
        words.iter().for_each(|word| assert!(why.contains(word), "{why}"));
    }

    fn unknown(verdict: Verdict, words: &[&str]) {
        let Verdict::Unknown(why) = verdict else { panic!("{verdict:?}") };
        words.iter().for_each(|word| assert!(why.contains(word), "{why}"));
    }

    #[test]
    fn a_partition_is_new_only_if_everybody_says_so() {
        let empty = [held(0, 0); 3];
        assert_eq!(judged([nothing(); 3], empty), Verdict::New);
        for silent in 0..3 {
            let (mut memtable, mut sstable) = ([nothing(); 3], empty);
            memtable[silent] = None;
            unknown(judged(memtable, empty), &["memtable servers", &(silent + 1).to_string()]);
            sstable[silent] = None;
            unknown(judged([nothing(); 3], sstable), &["sstable servers", &(silent + 1).to_string()]);
        }
    }

    #[test]
    fn one_table_on_one_server_is_enough_to_refuse() {
        for holder in 0..3 {
            let mut sstable = [held(0, 0), None, held(0, 0)];
            sstable[holder] = held(4, 9);
            let words = ["partition 1", "are empty", "4 tables of it", "sextant admin recover"];
            lost(judged([nothing(); 3], sstable), &words);
            lost(judged([other(); 3], sstable), &words);
        }
    }

    #[test]
    fn tables_of_other_partitions_count_if_no_memtable_server_remembers_anything() {
        let sstable = [held(0, 0), held(0, 5), held(0, 0)];
        lost(judged([nothing(); 3], sstable), &["5 tables of other partitions", "sextant admin recover"]);
        // A new cluster whose first partition was faster.
        assert_eq!(judged([nothing(), other(), nothing()], sstable), Verdict::New);
    }

    #[test]
    fn a_partition_that_somebody_remembers_is_not_lost() {
        let verdict = judged([nothing(), own(), None], [held(4, 4), None, None]);
        let Verdict::Remembered(why) = verdict else { panic!("{verdict:?}") };
        assert!(why.contains("memtable servers 2 have"), "{why}");
    }

    #[test]
    fn a_partition_that_had_a_group_is_not_founded_in_silence_even_if_everybody_is_empty() {
        // A founder that was marked lost waited for a group that was not there any more, and said nothing.
        let told = Some(Memory { lost: true, ..Memory::default() });
        let voted = Some(Memory { term: 4, ..Memory::default() });
        let empty = [held(0, 0); 3];
        for at in 0..3 {
            for (memory, words) in [(told, "know that it had a group"), (voted, "have voted in it")] {
                let mut memtable = [nothing(); 3];
                memtable[at] = memory;
                let servers = format!("memtable servers {} {words}", at + 1);
                lost(judged(memtable, empty), &[&servers, "empty the directories", "sextant admin recover"]);
                // What is known of tables, or not known, comes first.
                lost(judged(memtable, [held(0, 0), held(2, 2), held(0, 0)]), &["hold 2 tables of it"]);
                unknown(judged(memtable, [held(0, 0), None, held(0, 0)]), &["sstable servers 2"]);
                memtable[(at + 1) % 3] = None;
                unknown(judged(memtable, empty), &["memtable servers", "do not answer"]);
                memtable[(at + 1) % 3] = own();
                assert!(matches!(judged(memtable, empty), Verdict::Remembered(_)));
            }
        }
    }
}
