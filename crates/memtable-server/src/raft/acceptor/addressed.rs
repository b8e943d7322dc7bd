//! Whether a message is for this server, as what it is.
//!
//! Raft's messages name the cluster, the node and the incarnation that their sender means. One that means another incarnation is
//! refused before the vote guard is asked, before its vote is considered, and before anything is appended: a server without its
//! memory votes for nobody and acknowledges nothing. (What cannot be decoded at all is refused before that.)

use bytes::Bytes;
use sextant_common::error::{Error, Result};
use sextant_common::ids::NodeId;
use sextant_rules::mutant::{self, Mutant};

use super::{Acceptor, Refusal, Sent};

/// Whether a message is for this node of this cluster. `cluster`: its id and fingerprint, as peers send it.
pub fn check_server(own: (NodeId, &Bytes), to: u64, cluster: &Bytes) -> Result<()> {
    let (node, own_cluster) = own;
    if cluster != own_cluster {
        return Err(Error::invalid(
            "another cluster, or another number of partitions: check [cluster] in the configuration",
        ));
    }
    if to != node.0 {
        return Err(Error::invalid(format!("this is node {node}, not {to}")));
    }
    Ok(())
}

/// Whom a message for an incarnation means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meant {
    ThisServer,
    /// Another one, and that says nothing about this one.
    Another,
    /// What this server was before it lost its memory, as far as it knows.
    Former,
}

/// A message for `named`, at a server that is `own`. `is_member`: its log says that it belongs to the group as that.
fn meant(named: u64, own: u64, is_member: impl FnOnce() -> bool) -> Meant {
    if named == own || mutant::active(Mutant::IncarnationNotNamed) {
        Meant::ThisServer
    } else if named != 0 && !is_member() {
        Meant::Former
    } else {
        Meant::Another
    }
}

impl Acceptor {
    /// For messages that mean a member of the group: a certain incarnation of this server.
    pub(super) fn admit_member(&self, named: u64) -> Result<(), Refusal> {
        let own = self.shared.incarnation.id();
        match meant(named, own, || self.is_member()) {
            Meant::ThisServer => return Ok(()),
            Meant::Former => self.lost_memory(named),
            Meant::Another => {}
        }
        Err(Refusal::OtherIncarnation { named, own })
    }

    /// The same for an append, which shows more: the sender leads, and says what it has committed.
    pub(super) fn admit_append(&self, sent: &Sent) -> Result<(), Refusal> {
        let named = sent.incarnation;
        self.admit_member(named).or_else(|refusal| {
            if named != 0
                && let Ok(request) = &sent.request
                && self.reach().check_append(request).is_ok()
            {
                self.check_life(named, request.leader_commit)?;
            }
            Err(refusal)
        })
    }

    /// For a request for this server's vote.
    pub(super) fn admit_voter(&self, named: u64) -> Result<(), Refusal> {
        self.admit_member(named)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_for_another_node_or_cluster_is_refused() {
        let own = Bytes::from_static(b"prod/7");
        check_server((NodeId(2), &own), 2, &own).unwrap();
        let error = check_server((NodeId(2), &own), 3, &own).unwrap_err();
        assert!(error.message.contains("this is node 2, not 3"), "{error}");
        let other = Bytes::from_static(b"prod/8");
        let error = check_server((NodeId(2), &own), 3, &other).unwrap_err();
        assert!(error.message.contains("another cluster"), "the cluster comes first: {error}");
    }

    #[test]
    fn only_a_message_that_names_what_this_server_is_means_it() {
        assert_eq!(meant(7, 7, || unreachable!("nobody needs to look")), Meant::ThisServer);
        assert_eq!(meant(6, 7, || true), Meant::Another, "whoever sends it has not heard of the change yet");
        assert_eq!(meant(6, 7, || false), Meant::Former, "it was replaced, and is not let in yet");
        assert_eq!(meant(0, 7, || unreachable!("it names nobody")), Meant::Another);
    }
}
