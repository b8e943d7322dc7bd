//! Snapshots that a leader sends.
//!
//! In this order: it is for this server as it is, an honest leader can send it, and it can be installed; the guard is bound; the
//! leader's vote is accepted, and durable, before anything of its term is stored; the snapshot is stored before Raft is told, which
//! cannot go on after an error of the disk.

use bytes::Bytes;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse};
use sextant_common::error::Error;
use sextant_raft_log::Vote;

use super::{Acceptor, Refusal};
use crate::partition::{readable, snapshot};
use crate::raft::snapshot_store::{Meta, SnapshotData, check_installable};

/// What a leader says of the snapshot that it is going to send.
#[derive(Debug)]
pub struct Offered {
    pub vote: Vote,
    pub meta: Meta,
    /// How long this node is asked to abstain.
    pub asked_ns: u64,
}

impl Acceptor {
    /// Before its bytes are put together. `named`: the incarnation of this server that is meant.
    pub fn admit_snapshot(&self, named: u64) -> Result<(), Refusal> {
        self.admit_member(named)
    }

    /// Whether an honest leader can offer it.
    pub fn check_offer(&self, offered: &Offered) -> Result<(), Refusal> {
        let (reach, term) = (self.reach(), offered.vote.leader_id.term);
        reach.check_asker(&offered.vote)?;
        for id in [offered.meta.last_log_id.as_ref(), offered.meta.last_membership.log_id().as_ref()] {
            reach.check_log_id(id, term)?;
        }
        Ok(())
    }

    /// Installs all of it. The vote that this node has accepted afterwards: another than the leader's if there is a newer one.
    pub async fn install(&self, offered: Offered, data: Bytes) -> Result<Vote, Refusal> {
        let Offered { vote, meta, asked_ns } = offered;
        check_installable(self.shared.id, &meta, &data)?;
        self.check_format(&data)?;
        self.bind_guard(asked_ns);
        // An append of nothing.
        let greeting =
            AppendEntriesRequest { vote, prev_log_id: None, entries: Vec::new(), leader_commit: None };
        let greeted = self.raft.append_entries(greeting).await.map_err(Refusal::of_raft)?;
        if let AppendEntriesResponse::HigherVote(vote) = greeted {
            return Ok(vote);
        }
        self.store_snapshot(&data).await?;
        let snapshot = openraft::Snapshot { meta, snapshot: SnapshotData(data) };
        let reply = self.raft.install_full_snapshot(vote, snapshot).await.map_err(Refusal::of_raft)?;
        if reply.vote == vote {
            self.bind_guard(asked_ns);
        }
        Ok(reply.vote)
    }

    /// A snapshot of a newer format has nothing in it for this server, nor has the log after it: it ends.
    fn check_format(&self, data: &Bytes) -> Result<(), Refusal> {
        let snapshot = snapshot::decode(data, self.shared.id)?;
        let format = snapshot.configuration.map_or(0, |(c, _)| c.format);
        readable(self.shared.id, format, self.shared.format_max).map_err(|e| {
            self.shared.env.fatal.outdated(&e.message);
            e.into()
        })
    }

    /// Refused, the leader sends it again; until then this server is like one that lags, and votes.
    async fn store_snapshot(&self, data: &Bytes) -> Result<(), Refusal> {
        let partition = self.shared.id;
        let stored = self.store.receive(&snapshot::decode(data, partition)?).await;
        stored.map_err(|e| {
            self.metrics.snapshots_refused.inc();
            tracing::error!(%partition, "cannot store the snapshot that the leader sent: {e}");
            Error::new(e.kind, format!("cannot store the snapshot of partition {partition}: {e}")).into()
        })
    }
}
