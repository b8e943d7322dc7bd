//! Searching SSTables: on which replica to look for which candidates. The choice is pure; the loop asks.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sextant_common::ids::{NodeId, Seq, SstId};
use sextant_common::operation::Record;
use sextant_common::{Error, ErrorKind, Result};
use sextant_environment::room::Purse;
use sextant_environment::slow_log::{self, Tier};
use sextant_rules::mutant::{self, Mutant};

use crate::core::Core;
use crate::upstream::{
    Deadline, LARGE_ANSWER_MAX, LargeReads, SstGet, SstPeer, SstSays, busy, held, unhurried,
};
use crate::view::Sst;

/// How long one replica may take. A block comes from a disk in far less; another replica is asked then.
const REPLICA_ANSWER_MAX: Duration = unhurried(Duration::from_millis(500));

/// What the SSTables have of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SstFound {
    Value(Record),
    Tombstone(Seq),
    NoEntry,
}

/// Why a search did not come to an end.
#[derive(Debug)]
pub(crate) enum SearchFailed {
    /// No replica that answered has the table: the manifest is old.
    Gone,
    /// No replica could be asked, or all that were are damaged.
    NoReplica(Error),
}

/// The next server to ask, and how many of the candidates (from the first on) it is asked for: the one that holds the most,
/// of them a near one, starting from a place that differs from read to read. `failed` are excluded, `avoided` come last.
fn choose(
    candidates: &[Arc<Sst>],
    rotation: u64,
    failed: impl Fn(usize, NodeId) -> bool,
    avoided: impl Fn(&Sst, NodeId) -> bool,
    far: impl Fn(NodeId) -> bool,
) -> Option<(NodeId, usize)> {
    let first = candidates.first()?;
    let replicas = &first.meta.replicas;
    let start = if replicas.is_empty() { 0 } else { (rotation % replicas.len() as u64) as usize };
    let holds = |at: usize, node| candidates[at].meta.replicas.contains(&node) && !failed(at, node);
    let mut best: Option<((bool, usize, bool), NodeId)> = None;
    for at in 0..replicas.len() {
        let node = replicas[(start + at) % replicas.len()];
        if failed(0, node) {
            continue;
        }
        let healthy = !avoided(first, node);
        let run = (1..candidates.len())
            .take_while(|at| holds(*at, node) && healthy != avoided(&candidates[*at], node));
        let run = 1 + run.count();
        let rank = (healthy, run, !far(node));
        if best.is_none_or(|(best, _)| rank > best) {
            best = Some((rank, node));
        }
    }
    best.map(|((_, run, _), node)| (node, run))
}

/// Asks for records in SSTables.
#[derive(Clone)]
pub(crate) struct SstSearch {
    core: Arc<Core>,
    large_reads: Arc<LargeReads>,
}

impl SstSearch {
    pub fn new(core: &Arc<Core>, large_reads: &Arc<LargeReads>) -> Self {
        Self { core: core.clone(), large_reads: large_reads.clone() }
    }

    /// Searches `candidates` (newest first) for a key: the first one that has it, with a value or a tombstone, ends the search.
    pub async fn search(
        &self,
        candidates: &[Arc<Sst>],
        key: &Bytes,
        hash: u64,
        purse: Option<&Purse>,
        deadline: Deadline,
    ) -> Result<SstFound, SearchFailed> {
        let found = self.search_replicas(candidates, key, hash, purse, deadline);
        slow_log::asking(Tier::Sstables, &*self.core.env.clock, found).await
    }

    async fn search_replicas(
        &self,
        candidates: &[Arc<Sst>],
        key: &Bytes,
        hash: u64,
        purse: Option<&Purse>,
        deadline: Deadline,
    ) -> Result<SstFound, SearchFailed> {
        let clock = &*self.core.env.clock;
        let mut left = candidates;
        let mut failed: Vec<(SstId, NodeId)> = Vec::new();
        let mut gone = false;
        let mut alone = !self.core.coalesces();
        let mut last_error = Error::unavailable("no replica is in the configuration");
        while !left.is_empty() {
            let now_ns = clock.holder_ns();
            let perfect = self.core.health.is_perfect();
            let chosen = choose(
                left,
                hash,
                |at, node| {
                    failed.contains(&(left[at].meta.id, node)) || !self.core.sstables.contains_key(&node)
                },
                |sst, node| !perfect && self.core.health.is_avoided(node, sst.meta.id, now_ns),
                |node| self.core.distances.is_far(node, hash),
            );
            let Some((node, mut run)) = chosen else {
                // Damage says more than absence: another look at the manifest follows either.
                let gone = gone && last_error.kind != ErrorKind::Corrupt;
                return Err(if gone { SearchFailed::Gone } else { SearchFailed::NoReplica(last_error) });
            };
            if deadline.is_over(clock) {
                return Err(SearchFailed::NoReplica(last_error));
            }
            if mutant::active(Mutant::SearchPastTombstone) {
                run = 1;
            }
            let get = || SstGet {
                candidates: left[..run].iter().map(|sst| sst.wire_id.clone()).collect(),
                key: key.clone(),
            };
            let Some(peer) = self.core.sstables.get(&node) else { continue };
            // A second attempt travels alone: whatever broke the stream, it was perhaps the company.
            alone |= !failed.is_empty();
            let mut says = deadline.limit(clock, REPLICA_ANSWER_MAX, peer.get(get(), alone)).await;
            if matches!(says, Ok(SstSays::Value(_) | SstSays::Tombstone(_) | SstSays::NoEntry)) {
                self.core.distances.answered(node, clock.holder_ns().saturating_sub(now_ns));
            }
            if !perfect && says.as_ref().is_ok_and(|says| !matches!(says, SstSays::Unreadable(..))) {
                self.core.health.server_answered(node, now_ns);
            }
            let mut asked_ns = now_ns;
            if let Ok(SstSays::Large(bytes)) = says {
                says = Box::pin(self.get_large(peer, get(), bytes, purse, deadline, &mut asked_ns)).await;
            }
            match says {
                Ok(SstSays::Value(record)) => return Ok(SstFound::Value(record)),
                Ok(SstSays::Tombstone(_)) if mutant::active(Mutant::SearchPastTombstone) => left = &left[1..],
                Ok(SstSays::Tombstone(seq)) => return Ok(SstFound::Tombstone(seq)),
                Ok(SstSays::NoEntry) => left = &left[run..],
                Ok(SstSays::MessageFull) if !alone => alone = true,
                Ok(SstSays::MessageFull) => {
                    failed.extend(left.iter().map(|sst| (sst.meta.id, node)));
                    last_error = Error::internal("a single value does not fit into a message");
                }
                Ok(SstSays::Large(_)) => {
                    // Another one may have room.
                    failed.extend(left.iter().map(|sst| (sst.meta.id, node)));
                    last_error = busy("the sstable servers have no room for so large an answer now");
                }
                Err(e) if e.kind == ErrorKind::Overloaded => return Err(SearchFailed::NoReplica(e)),
                Ok(SstSays::Gone(at)) => {
                    gone = true;
                    // Perhaps the stream leads to the server's predecessor, which has not heard of the table.
                    peer.renew_gets();
                    let sst = &left[at.min(run - 1)];
                    self.core.health.replica_failed(node, sst.meta.id, now_ns);
                    failed.push((sst.meta.id, node));
                }
                Ok(SstSays::Damaged(at, message)) => {
                    let sst = &left[at.min(run - 1)];
                    tracing::warn!(%node, sst = %sst.meta.id, "damaged: {message}");
                    self.core.health.replica_failed(node, sst.meta.id, now_ns);
                    failed.push((sst.meta.id, node));
                    last_error = Error::new(ErrorKind::Corrupt, message);
                }
                Ok(SstSays::Unreadable(at, message)) => {
                    let sst = &left[at.min(run - 1)];
                    tracing::warn!(%node, sst = %sst.meta.id, "not readable: {message}");
                    self.core.health.replica_failed(node, sst.meta.id, now_ns);
                    failed.push((sst.meta.id, node));
                    if last_error.kind != ErrorKind::Corrupt {
                        last_error = Error::unavailable(message);
                    }
                }
                Err(e) => {
                    self.core.health.server_failed(
                        node,
                        asked_ns,
                        clock.holder_ns(),
                        deadline.is_over(clock),
                    );
                    failed.extend(left.iter().map(|sst| (sst.meta.id, node)));
                    // That a server is down is no answer to whoever asks what became of a damaged record.
                    if last_error.kind != ErrorKind::Corrupt {
                        last_error = e;
                    }
                }
            }
        }
        Ok(SstFound::NoEntry)
    }

    /// A server has an answer of about `bytes` bytes. It is asked again, alone, when there is room; `asked_ns`: when that was.
    async fn get_large(
        &self,
        peer: &SstPeer,
        get: SstGet,
        bytes: usize,
        purse: Option<&Purse>,
        deadline: Deadline,
        asked_ns: &mut u64,
    ) -> Result<SstSays> {
        let clock = &*self.core.env.clock;
        let taken = self.large_reads.take(bytes, &peer.large_on_the_way, purse, clock, deadline).await;
        let (room, _on_the_way) = taken?;
        *asked_ns = clock.holder_ns();
        Ok(match deadline.limit(clock, LARGE_ANSWER_MAX, peer.get_large(get)).await? {
            SstSays::Value(record) => SstSays::Value(Record { value: held(record.value, room), ..record }),
            other => other,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::sst_meta;

    fn sst(counter: u32, replicas: &[u64]) -> Arc<Sst> {
        let mut meta = sst_meta(counter, b"a", b"z");
        meta.replicas = replicas.iter().map(|n| NodeId(*n)).collect();
        Arc::new(Sst::new(meta))
    }

    #[test]
    fn candidates_on_one_server_travel_together() {
        let all = [sst(1, &[1, 2, 3]), sst(2, &[1, 2, 3]), sst(3, &[2, 3, 4])];
        assert_eq!(choose(&all, 0, |_, _| false, |_, _| false, |_| false), Some((NodeId(2), 3)));
        assert_eq!(choose(&all[..2], 0, |_, _| false, |_, _| false, |_| false), Some((NodeId(1), 2)));
    }

    #[test]
    fn reads_rotate_over_the_replicas() {
        let all = [sst(1, &[1, 2, 3])];
        let servers: Vec<u64> =
            (0..3).map(|r| choose(&all, r, |_, _| false, |_, _| false, |_| false).unwrap().0.0).collect();
        assert_eq!(servers, [1, 2, 3]);
    }

    #[test]
    fn of_replicas_that_are_as_good_a_near_one_is_asked() {
        let all = [sst(1, &[1, 2, 3])];
        let near = |rotation, far: &[u64]| {
            choose(&all, rotation, |_, _| false, |_, _| false, |n| far.contains(&n.0)).map(|(node, _)| node.0)
        };
        assert_eq!([0, 1, 2].map(|r| near(r, &[1])), [Some(2), Some(2), Some(3)]);
        assert_eq!([0, 1, 2].map(|r| near(r, &[1, 2, 3])), [Some(1), Some(2), Some(3)]);
        let more = [sst(1, &[1, 2]), sst(2, &[1])];
        assert_eq!(choose(&more, 0, |_, _| false, |_, _| false, |n| n.0 == 1), Some((NodeId(1), 2)));
        assert_eq!(choose(&all, 0, |_, _| false, |_, n| n.0 != 1, |n| n.0 == 1), Some((NodeId(1), 1)));
    }

    #[test]
    fn failed_replicas_are_excluded_and_avoided_ones_come_last() {
        let all = [sst(1, &[1, 2]), sst(2, &[1, 2])];
        assert_eq!(choose(&all, 0, |_, _| false, |_, n| n.0 == 1, |_| false), Some((NodeId(2), 2)));
        assert_eq!(choose(&all, 0, |_, n| n.0 == 2, |_, n| n.0 == 1, |_| false), Some((NodeId(1), 2)));
        assert_eq!(
            choose(&all, 0, |at, n| at == 1 && n.0 == 1, |_, n| n.0 == 2, |_| false),
            Some((NodeId(1), 1))
        );
        assert_eq!(choose(&all, 0, |_, _| true, |_, _| false, |_| false), None);
        assert_eq!(choose(&[], 0, |_, _| false, |_, _| false, |_| false), None);
        assert_eq!(choose(&[sst(1, &[])], 5, |_, _| false, |_, _| false, |_| false), None);
    }
}
