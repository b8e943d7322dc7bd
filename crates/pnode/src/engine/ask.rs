//! One request to a partition's leader, with everything that ends the wait for it.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use sextant_common::ids::{NodeId, PartitionId};
use sextant_common::{Error, ErrorKind, Result};

use super::Engine;
use crate::upstream::{Backoff, Deadline, MemtablePeer};

/// How long to wait before looking whether the leader has moved on. Nearly every request is answered sooner, and the watch
/// costs something.
const PATIENCE: Duration = Duration::from_millis(30);

/// How a request to a leader ended without an answer.
#[derive(Debug)]
pub(crate) enum Unanswered {
    /// It did not leave.
    NotSent(Error),
    /// It may have arrived.
    Lost(Error),
}

impl Unanswered {
    pub fn into_error(self) -> Error {
        match self {
            Unanswered::NotSent(e) | Unanswered::Lost(e) => e,
        }
    }
}

impl Engine {
    /// Makes a request to the leader of `partition` and waits for the answer: until the deadline, for `at_most`, or until
    /// another leader is known. Whatever goes wrong, the leader becomes suspect.
    pub(crate) async fn ask_leader<'e, T, F>(
        &'e self,
        partition: PartitionId,
        deadline: Deadline,
        at_most: Duration,
        request: impl FnOnce(&'e MemtablePeer) -> F,
    ) -> Result<(NodeId, T), Unanswered>
    where
        F: Future<Output = Result<T>> + 'e,
    {
        let clock = &*self.env.clock;
        let Some(node) = self.leaders.get(partition).node else {
            return Err(Unanswered::NotSent(Error::unavailable(format!(
                "no leader of partition {partition} is known"
            ))));
        };
        let peer = self.memtable(node).map_err(|e| {
            // Hinted at, and not in this p-node's configuration: whoever leads later must be looked for.
            self.leaders.suspect(partition, node);
            Unanswered::NotSent(e)
        })?;
        if deadline.is_over(clock) {
            return Err(Unanswered::NotSent(Error::unavailable("the deadline is over")));
        }
        let mut answer = pin!(request(peer));
        let first = tokio::time::timeout(deadline.left(clock).min(PATIENCE), &mut answer).await;
        let result = match first {
            Ok(result) => result,
            Err(_) => {
                let mut leader = self.leaders.watch(partition);
                let moved = leader.wait_for(|l| l.node != Some(node));
                let left = deadline.left(clock).min(at_most);
                tokio::select! {
                    result = &mut answer => result,
                    _ = moved => return Err(Unanswered::Lost(Error::unavailable("the leader has changed"))),
                    () = tokio::time::sleep(left) => Err(Error::unavailable("the leader did not answer in time")),
                }
            }
        };
        result.map(|answer| (node, answer)).map_err(|e| {
            // Too much to do on the way to it says nothing about the leader.
            if e.kind != ErrorKind::Overloaded {
                self.leaders.suspect(partition, node);
            }
            Unanswered::Lost(e)
        })
    }

    /// Waits for a retry: until a leader other than `before` is known, or for the backoff's step. False: the deadline is over.
    pub(crate) async fn wait_to_retry(
        &self,
        partition: PartitionId,
        before: Option<NodeId>,
        backoff: &mut Backoff,
        deadline: Deadline,
    ) -> bool {
        let clock = &*self.env.clock;
        let step = backoff.step(&*self.env.rng).min(deadline.left(clock));
        let mut leader = self.leaders.watch(partition);
        // A leader that was found meanwhile is asked at once.
        let found = leader.wait_for(|l| l.is_certain() && l.node != before);
        let _ = tokio::time::timeout(step, found).await;
        !deadline.is_over(clock)
    }
}
