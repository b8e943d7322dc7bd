//! Sessions in partitions: the p-node's own, opened when they are needed, and those of callers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::FuturesUnordered;
use futures::{Stream, StreamExt};
use sextant_common::ids::PartitionId;
use sextant_common::operation::{Lane, WriteStatus};
use sextant_common::{Error, ErrorKind, Result};
use tokio::sync::Semaphore;

use super::numbers::{Begun, Line, Numbers, SessionGone, Size, Ticket};
use super::openings::Openings;
use crate::core::Core;
use crate::upstream::{Backoff, Deadline};

/// How long a leader may take to register a session: a write and some.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// Partitions in which a session is opened at once, and besides those that have taken so long already.
const OPENINGS_AT_ONCE: usize = 64;
const PLACE_MAX: Duration = Duration::from_millis(30);
/// How long it takes at most to open one, if any partition has it: an election, and some.
const OPENING_MAX: Duration = Duration::from_millis(750);

pub(super) struct Sessions {
    core: Arc<Core>,
    numbers: Numbers,
    openings: Openings,
}

impl Sessions {
    pub fn new(core: &Arc<Core>) -> Self {
        let numbers = Numbers::new(core.config.cluster.partitions, &core.env.clock);
        Self { core: core.clone(), numbers, openings: Openings::default() }
    }

    /// Registers a new session in every partition that can be reached soon, one at least, and goes on with the others. A partition without
    /// a leader must keep nobody from writing to those that have one; whoever writes there [waits](Self::opened).
    pub async fn open(&self, limit: Option<Duration>) -> Result<u64> {
        let clock = &*self.core.env.clock;
        // From now on, however many there are.
        let soon = self.core.deadline(Some(limit.unwrap_or(OPENING_MAX).min(OPENING_MAX)));
        let (deadline, until) = (self.core.deadline(limit), self.core.deadline(None));
        let session = self.core.env.rng.nonzero_u64();
        let mut missing: BTreeSet<PartitionId> = self.core.views.partitions().collect();
        let mut openings = open_in_each(&self.core, session, until);
        let (mut has_one, mut error) = (false, Error::unavailable("no session could be opened in time"));
        loop {
            let by = if has_one { soon } else { deadline };
            match tokio::time::timeout(by.left(clock), openings.next()).await {
                Ok(Some((partition, opened))) => {
                    missing.remove(&partition);
                    match opened {
                        Ok(()) => has_one = true,
                        Err(e) => error = e,
                    }
                }
                Ok(None) if has_one => return Ok(session),
                Err(_) if has_one => break,
                Ok(None) | Err(_) => return Err(error),
            }
        }
        let under_way =
            missing.into_iter().map(|partition| (partition, self.openings.begin(partition, session)));
        let mut under_way: BTreeMap<_, _> = under_way.collect();
        tokio::spawn(async move {
            while let Some((partition, _)) = openings.next().await {
                under_way.remove(&partition);
            }
        });
        Ok(session)
    }

    /// A caller's session is not, or not any more, being opened in the partition. (Whether it is open there is for the leader to say.)
    pub async fn opened(&self, partition: PartitionId, session: u64, deadline: Deadline) -> Result<()> {
        let Some(end) = self.openings.end_of(partition, session) else { return Ok(()) };
        let ended = async {
            end.await;
            Ok(())
        };
        deadline.limit(&*self.core.env.clock, Duration::MAX, ended).await.map_err(|_| {
            let why = "the write was not executed: its session is not open yet";
            Error::unavailable(format!("{why} in partition {partition}"))
        })
    }

    /// The servers do not know this session of ours any more: the next write opens another.
    pub fn forget(&self, partition: PartitionId, session: u64) {
        self.numbers.forget(partition, session);
    }

    /// Numbers for small writes of one operation, as they become free. None: no session is open.
    pub fn line(&self, partition: PartitionId, lane: Lane, writes: usize) -> Option<Line> {
        self.numbers.line(partition, lane, writes)
    }

    /// A number for a write; waits while enough is under way, or for a session to be opened.
    pub async fn ticket(
        &self,
        partition: PartitionId,
        size: Size,
        lane: Lane,
        deadline: Deadline,
    ) -> Result<Ticket> {
        loop {
            let begun = async {
                Ok(match self.numbers.begin(partition, size, lane).await {
                    Begun::InSession(mut line) => Ok(line.one().await),
                    Begun::Opening(turn) => Err(turn),
                })
            };
            let begun = deadline.limit(&*self.core.env.clock, Duration::MAX, begun).await;
            match begun.map_err(|_| too_many_before())? {
                Ok(Ok(ticket)) => return Ok(ticket),
                Ok(Err(SessionGone)) => {}
                Err(turn) => {
                    let session = self.core.env.rng.nonzero_u64();
                    open_in(&self.core, partition, session, deadline).await?;
                    self.core.metrics.sessions_opened.inc();
                    turn.opened(session);
                }
            }
        }
    }
}

/// Registers a session in each partition, and says in which as it is done. Those without a leader keep no place from the others.
fn open_in_each(
    core: &Arc<Core>,
    session: u64,
    deadline: Deadline,
) -> impl Stream<Item = (PartitionId, Result<()>)> + Send + Unpin + use<> {
    let places = Arc::new(Semaphore::new(OPENINGS_AT_ONCE));
    let opening = |partition| {
        let (core, places) = (core.clone(), places.clone());
        async move {
            let place = places.acquire().await;
            let mut opening = Box::pin(open_in(&core, partition, session, deadline));
            let soon = tokio::time::timeout(PLACE_MAX, &mut opening).await;
            drop(place);
            let opened = match soon {
                Ok(opened) => opened,
                Err(_) => opening.await,
            };
            (partition, opened)
        }
    };
    core.views.partitions().map(opening).collect::<FuturesUnordered<_>>()
}

/// Registers a session in one partition; idempotent.
async fn open_in(core: &Core, partition: PartitionId, session: u64, deadline: Deadline) -> Result<()> {
    let mut backoff = Backoff::default();
    loop {
        let before = core.leaders.get(partition).node;
        let asked =
            core.ask_leader(partition, deadline, ANSWER_MAX, |peer| peer.open_session(partition, session));
        let error = match asked.await {
            Ok((_, says)) => match says.status {
                WriteStatus::Ok => return Ok(()),
                WriteStatus::NotLeader => {
                    Error::unavailable(format!("no leader of partition {partition} answers"))
                }
                WriteStatus::Invalid => return Err(Error::invalid(says.message)),
                WriteStatus::Overloaded => {
                    Error::new(ErrorKind::Overloaded, format!("no session yet: {}", says.message))
                }
                _ => Error::unavailable(format!("no session yet: {}", says.message)),
            },
            Err(unanswered) => unanswered.into_error(),
        };
        core.check_running()?;
        if !core.wait_to_retry(partition, before, &mut backoff, deadline).await {
            return Err(error);
        }
    }
}

/// Its turn does not come in time.
pub(super) fn too_many_before() -> Error {
    Error::new(ErrorKind::Overloaded, "the write was not executed: too many are before it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Cluster, until};
    use crate::{Operation, RequestId, WriteOptions};

    #[tokio::test]
    async fn a_write_waits_for_its_session_to_be_open_and_is_not_sent_before() {
        let cluster = Cluster::start(2).await;
        let pnode = cluster.pnode().await;
        for partition in 0..2 {
            cluster.settled(&pnode, partition).await;
        }
        let lost = cluster.leader().state.lock().partitions.remove(&1).unwrap();
        let session = pnode.open_session(None).await.unwrap();
        let options = WriteOptions {
            request: Some(RequestId { session, number: 1, acked_below: 1 }),
            ..WriteOptions::default()
        };
        let key = (0..).map(|i| format!("k{i}")).find(|key| cluster.partition_of(key) == 1).unwrap();
        let put = vec![Operation::put("", key, "v")];
        let soon = WriteOptions { deadline: Some(Duration::from_millis(100)), ..options };
        let error = pnode.write(put.clone(), soon).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
        assert!(cluster.leader().state.lock().writes.is_empty());
        let write = tokio::spawn({
            let pnode = pnode.clone();
            async move { pnode.write(put, options).await }
        });
        cluster.leader().state.lock().partitions.insert(1, lost);
        assert!(write.await.unwrap().unwrap().applied);
        assert!(cluster.leader().with(1, |p| p.sessions.contains(&session)));
    }

    #[tokio::test]
    async fn many_partitions_without_leaders_keep_no_session_from_the_others() {
        let (lost, all) = (OPENINGS_AT_ONCE as u32, OPENINGS_AT_ONCE as u32 + 2);
        let cluster = Cluster::start(all).await;
        let pnode = cluster.pnode_without_leases().await;
        cluster.leader().state.lock().partitions.retain(|partition, _| *partition >= lost);
        let session = pnode.open_session(None).await.unwrap();
        for partition in lost..all {
            let is_open = || cluster.leader().with_quietly(partition, |p| p.sessions.contains(&session));
            until("it is open", is_open).await;
        }
    }

    #[tokio::test]
    async fn a_session_that_can_be_opened_nowhere_is_given_up_in_time() {
        let cluster = Cluster::start(2).await;
        let pnode = cluster.pnode_without_leases().await;
        cluster.leader().state.lock().partitions.clear();
        let error = pnode.open_session(Some(Duration::from_millis(100))).await.unwrap_err();
        assert!(error.kind == ErrorKind::Unavailable && error.message.contains("in time"), "{error}");
    }
}
