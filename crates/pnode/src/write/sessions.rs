//! Sessions in partitions: the p-node's own, opened when they are needed, and those of callers.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use sextant_common::ids::PartitionId;
use sextant_common::operation::{Lane, WriteStatus};
use sextant_common::{Error, ErrorKind, Result};
use tokio::sync::mpsc;

use super::numbers::{Begun, Line, Numbers, SessionGone, Size, Ticket};
use crate::core::Core;
use crate::upstream::{Backoff, Deadline};

/// How long a leader may take to register a session: a write and some.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// Partitions in which a session is opened at once.
const OPENINGS_AT_ONCE: usize = 64;
/// How long it takes at most to open one in a partition, if another has it: an election, and some.
const OPENING_MAX: Duration = Duration::from_millis(750);

pub(super) struct Sessions {
    core: Arc<Core>,
    numbers: Numbers,
}

impl Sessions {
    pub fn new(core: &Arc<Core>) -> Self {
        Self { core: core.clone(), numbers: Numbers::new(core.config.cluster.partitions, &core.env.clock) }
    }

    /// Registers a new session in every partition that can be reached soon, one at least, and goes on with the others. A partition without
    /// a leader must keep nobody from writing to those that have one; until it has heard of the session it says that it does not know it,
    /// and whoever writes opens another.
    pub async fn open(&self, limit: Option<Duration>) -> Result<u64> {
        let session = self.core.env.rng.nonzero_u64();
        let patience = limit.unwrap_or(OPENING_MAX).min(OPENING_MAX);
        let partitions = self.core.views.partitions().collect();
        let opened = self.open_in_each(partitions, session, patience).await;
        let missing: Vec<_> = opened.iter().filter(|(_, opened)| opened.is_err()).map(|(p, _)| *p).collect();
        if missing.is_empty() {
            return Ok(session);
        }
        let has_one = missing.len() < opened.len();
        let (told, mut heard) = mpsc::channel(missing.len());
        let (core, deadline) = (self.core.clone(), self.core.deadline(None));
        tokio::spawn(async move {
            let openings = missing.into_iter().map(|partition| open_in(&core, partition, session, deadline));
            let openings = futures::stream::iter(openings).buffer_unordered(OPENINGS_AT_ONCE);
            let tells = |opened| {
                // (Perhaps nobody waits.)
                let _ = told.try_send(opened);
                std::future::ready(())
            };
            openings.for_each(tells).await;
        });
        if has_one {
            return Ok(session);
        }
        let first = async {
            let mut error = Error::unavailable("no session could be opened");
            while let Some(opened) = heard.recv().await {
                match opened {
                    Ok(()) => return Ok(session),
                    Err(e) => error = e,
                }
            }
            Err(error)
        };
        let deadline = self.core.deadline(limit);
        deadline.limit(&*self.core.env.clock, Duration::MAX, first).await
    }

    /// Each may take so long.
    async fn open_in_each(
        &self,
        partitions: Vec<PartitionId>,
        session: u64,
        patience: Duration,
    ) -> Vec<(PartitionId, Result<()>)> {
        let openings = partitions.into_iter().map(|partition| async move {
            let deadline = self.core.deadline(Some(patience));
            (partition, open_in(&self.core, partition, session, deadline).await)
        });
        futures::stream::iter(openings).buffer_unordered(OPENINGS_AT_ONCE).collect().await
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
