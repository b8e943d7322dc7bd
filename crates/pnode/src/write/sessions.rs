//! Sessions in partitions: the p-node's own, opened when they are needed, and those of callers.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use sextant_common::ids::PartitionId;
use sextant_common::operation::{Lane, WriteStatus};
use sextant_common::{Error, ErrorKind, Result};

use super::numbers::{Begun, Line, Numbers, SessionGone, Size, Ticket};
use crate::core::Core;
use crate::upstream::{Backoff, Deadline};

/// How long a leader may take to register a session: a write and some.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// Partitions in which a session is opened at once.
const OPENINGS_AT_ONCE: usize = 16;

pub(super) struct Sessions {
    core: Arc<Core>,
    numbers: Numbers,
}

impl Sessions {
    pub fn new(core: &Arc<Core>) -> Self {
        Self { core: core.clone(), numbers: Numbers::new(core.config.cluster.partitions, &core.env.clock) }
    }

    /// Registers a new session in every partition.
    pub async fn open(&self) -> Result<u64> {
        let deadline = self.core.deadline(None);
        let session = self.core.env.rng.nonzero_u64();
        futures::stream::iter(self.core.views.partitions().map(|p| self.open_in(p, session, deadline)))
            .buffer_unordered(OPENINGS_AT_ONCE)
            .try_for_each(|()| async { Ok(()) })
            .await?;
        Ok(session)
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
                    self.open_in(partition, session, deadline).await?;
                    self.core.metrics.sessions_opened.inc();
                    turn.opened(session);
                }
            }
        }
    }

    /// Registers a session in one partition; idempotent.
    pub async fn open_in(&self, partition: PartitionId, session: u64, deadline: Deadline) -> Result<()> {
        let mut backoff = Backoff::default();
        loop {
            let before = self.core.leaders.get(partition).node;
            let asked = self
                .core
                .ask_leader(partition, deadline, ANSWER_MAX, |peer| peer.open_session(partition, session));
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
            self.core.check_running()?;
            if !self.core.wait_to_retry(partition, before, &mut backoff, deadline).await {
                return Err(error);
            }
        }
    }
}

/// Its turn does not come in time.
pub(super) fn too_many_before() -> Error {
    Error::new(ErrorKind::Overloaded, "the write was not executed: too many are before it")
}
