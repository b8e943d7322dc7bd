//! Whether this server still knows what it promised: what it does when a leader knows better.
//!
//! Two ways to find out. A leader says how many entries this server has acknowledged to it, and the log ends before. Or a leader means
//! another incarnation of this server although it has committed what let this one in: it was replaced since. Either way the directories are
//! an older copy, votes are forgotten too, and the server must not go on with what it has: it takes another incarnation and ends.

use openraft::async_runtime::WatchReceiver;
use sextant_common::error::Result;
use sextant_raft_log::{LogId, StoredMembership};

use super::{Acceptor, Refusal};
use crate::raft::Raft;
use crate::raft::reach::check_acknowledged;

/// Whether a log that ends after `end` entries has lost some of those that it acknowledged to the leader of `term`. `voted`: the
/// term of its newest vote; the log is cut only for a leader whose vote was taken before. An error: no log has so many.
fn has_forgotten(
    acknowledged: u64,
    end: u64,
    term: u64,
    voted: impl FnOnce() -> Option<u64>,
) -> Result<bool> {
    if acknowledged == 0 || end >= acknowledged || voted().is_some_and(|voted| voted > term) {
        return Ok(false);
    }
    check_acknowledged(acknowledged, end)?;
    Ok(true)
}

/// Whether the life that `committed` names this server as, `own`, was over when a leader had committed `leader_commit` and named another.
fn is_former_life(committed: &StoredMembership, node: u64, own: u64, leader_commit: Option<LogId>) -> bool {
    let named = committed.membership().get_node(&node).map(|n| n.incarnation);
    named == Some(own) && committed.log_id().is_some() && leader_commit >= *committed.log_id()
}

impl Acceptor {
    /// A leader of `term` says how many entries of the log this server has acknowledged to it. If the log ends before, this server's
    /// directories are an older copy: it has forgotten votes too, and must not go on with what it has.
    pub(super) fn check_memory(&self, term: u64, acknowledged: u64) -> Result<(), Refusal> {
        if acknowledged == 0 {
            return Ok(());
        }
        let partition = self.shared.id;
        let log = self.log.partition(partition);
        // In this order: the end, then the vote.
        let end = log.last_log_id().map_or(0, |last| last.index.saturating_add(1));
        // While a snapshot that contradicts its end is installed, the log is shorter than what it stands for.
        let end = end.max(self.store.entries_covered());
        if !has_forgotten(acknowledged, end, term, || log.vote().map(|vote| vote.leader_id.term))? {
            return Ok(());
        }
        Err(self.give_up_memory(format!(
            "partition {partition}: this server has acknowledged {acknowledged} entries to the leader of term {term}, but its log ends \
             after {end}: its directories are an older copy"
        )))
    }

    /// A leader that has committed `leader_commit` means another incarnation of this server, `named`. If this server knows that it
    /// was let in as what it is by then, it has been replaced since: its directories are a copy of a former life, whose votes and
    /// acknowledgements count for nobody who knows of the later one. (Where it does not know that, it is a new one, and waits to be
    /// let in; or the leader is not up to date.)
    pub(super) fn check_life(&self, named: u64, leader_commit: Option<LogId>) -> Result<(), Refusal> {
        let (node, own) = (self.shared.node, self.shared.incarnation.id());
        let is_former = {
            let metrics = self.raft.server_metrics();
            let m = metrics.borrow_watched();
            is_former_life(&m.committed_membership_config, node, own, leader_commit)
        };
        if !is_former {
            return Ok(());
        }
        Err(self.give_up_memory(format!(
            "partition {}: this server is incarnation {own:016x}; the group has let it in as {named:016x} since: its directories are from \
             before that, an older copy",
            self.shared.id
        )))
    }

    /// The group takes this server for what it was before it lost its memory. It asks to be let in as what it is now
    /// (`founding`).
    pub(super) fn lost_memory(&self, named: u64) {
        let incarnation = self.shared.incarnation.clone();
        if incarnation.lose(self.shared.id) {
            tracing::error!(
                partition = %self.shared.id,
                "this server has lost its memory: the group knows it as incarnation {named:016x}, it is {:016x} now. It votes for \
                 nobody and counts for nothing until the group has let it in again",
                incarnation.id()
            );
            tokio::spawn(async move { incarnation.store().await });
        }
    }

    /// This server's directories are an older copy, as `what` says: it takes another incarnation, and ends.
    fn give_up_memory(&self, what: String) -> Refusal {
        if !self.shared.incarnation.gives_up() {
            return Refusal::NotNow(what);
        }
        tracing::error!("{what}");
        let (incarnation, fatal) = (self.shared.incarnation.clone(), self.shared.env.fatal.clone());
        // Where an operator has taken it out, it stays out.
        let is_member = |raft: &Raft| {
            let metrics = raft.server_metrics();
            let m = metrics.borrow_watched();
            m.membership_config.membership().get_node(&self.shared.node).is_some()
        };
        let members = self.rafts.iter().filter(|(_, raft)| is_member(raft)).map(|(id, _)| *id);
        let partitions = members.chain([self.shared.id]).collect();
        let message = format!("{what}. When it is started again it asks to be let in as a new one");
        tokio::spawn(async move {
            match incarnation.renew(&partitions).await {
                Ok(()) => fatal.fatal(&message),
                Err(e) => fatal.fatal(&format!("{message}; but that cannot be written: {e}")),
            }
        });
        Refusal::NotNow(what)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use sextant_raft_log::{Member, Membership, log_id};

    use super::*;

    #[test]
    fn a_log_that_ends_before_what_it_acknowledged_has_forgotten_unless_it_was_cut_for_a_later_leader() {
        let forgets = |acknowledged, end, voted| has_forgotten(acknowledged, end, 5, || voted).unwrap();
        assert!(forgets(10, 9, Some(5)));
        assert!(forgets(1, 0, None), "all of it");
        assert!(!forgets(10, 10, Some(5)));
        assert!(!forgets(0, 0, None), "the leader does not say");
        assert!(!forgets(10, 4, Some(6)), "it was cut for the leader of term 6");
    }

    #[test]
    fn the_vote_is_looked_at_after_the_end_and_a_number_that_no_log_has_makes_nobody_give_up() {
        has_forgotten(10, 10, 5, || unreachable!("nothing is missing")).unwrap();
        has_forgotten(u64::MAX, 3, 5, || Some(5)).unwrap_err();
        assert!(!has_forgotten(u64::MAX, 3, 5, || Some(6)).unwrap());
    }

    #[test]
    fn only_a_leader_that_has_committed_this_servers_admission_can_say_that_its_life_is_over() {
        let nodes: BTreeMap<u64, Member> = (1..=3).map(|n| (n, Member::new("a:1", 10 * n))).collect();
        let membership = Membership::new(vec![[1, 2, 3].into()], nodes).unwrap();
        let committed = StoredMembership::new(Some(log_id(4, 100)), membership);
        let is_former = |own, commit| is_former_life(&committed, 2, own, commit);
        assert!(is_former(20, Some(log_id(4, 100))));
        assert!(is_former(20, Some(log_id(5, 101))));
        assert!(!is_former(20, Some(log_id(4, 99))), "it speaks of the life before this one");
        assert!(!is_former(20, Some(log_id(3, 200))), "a leader of an earlier term");
        assert!(!is_former(20, None));
        assert!(!is_former(77, Some(log_id(4, 100))), "it is new, and was not let in yet");
        assert!(!is_former_life(&StoredMembership::default(), 2, 20, None), "it knows of no group");
    }
}
