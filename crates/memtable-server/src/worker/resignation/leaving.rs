//! The worker lets go, and asks Raft to, as long as that still leads.

use super::Resigned;
use crate::worker::Worker;

impl Worker {
    pub(in crate::worker) fn has_resigned(&self, term: u64) -> bool {
        self.resigned.as_ref().is_some_and(|r| r.term == term)
    }

    /// Called every turn: lets go if it is time.
    pub(in crate::worker) fn see_to_handover(&mut self) {
        self.leave_raft();
        let Some(leading) = &mut self.leading else { return };
        let term = leading.tenure.term;
        if let Some(parting) = leading.parting(&self.replica) {
            self.resign(term, parting.heir, parting.why);
            if let Some(done) = parting.done {
                let _ = done.send(Ok(term));
            }
        }
    }

    /// Ends this node's leadership of a term, for good.
    fn resign(&mut self, term: u64, heir: u64, why: &'static str) {
        self.replica.shared.set_leader(term, 0);
        self.resigned = Some(Resigned::now(term, heir));
        self.step_down(why);
        self.replica.metrics.handovers.inc();
        let network = self.replica.network.clone();
        self.replica.background.spawn(async move {
            network.name_heir(heir, term).await;
        });
        self.leave_raft();
    }

    /// As long as Raft still leads a term in which this node has resigned, it is asked to let go.
    fn leave_raft(&mut self) {
        if let Some(resigned) = &mut self.resigned {
            resigned.leave_raft(&self.replica);
        }
    }
}
