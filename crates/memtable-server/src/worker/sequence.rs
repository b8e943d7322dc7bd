//! A turn's work for writes: what may be published is, and what is next is proposed.

use sextant_rules::mutant::{self, Mutant};
use sextant_rules::probe::PausePoint;

use super::Worker;
use super::leading::sequencer::Turn;
use super::proposal::Proposed;
use crate::command::Command;

impl Worker {
    pub(super) fn publish(&mut self) {
        let published = self.replica.publish(self.leading.as_ref().map(|l| &l.tenure));
        if let Some(leading) = &mut self.leading {
            leading.published(&self.replica, published);
        }
    }

    /// Proposes what is next: a command, or a group whose bits are out.
    pub(super) async fn sequence(&mut self) {
        let Some(leading) = self.leading.as_mut().filter(|l| !l.has_stopped()) else { return };
        match leading.next_turn(&self.replica) {
            Turn::Nothing => {}
            Turn::Command(pending) => leading.propose_command(&self.replica, pending).await,
            Turn::Group => {
                let Some(formed) = leading.form_group(&mut self.replica) else { return };
                self.replica.shared.env.pause_point(PausePoint::BitsOut).await;
                let Some(leading) = &mut self.leading else { return };
                let late = mutant::active(Mutant::SwapAfterProposal).then(|| formed.group.clone());
                let payload = Command::Group(formed.group).encode();
                let what = Proposed::Group(formed.writes);
                leading.propose(&self.replica, payload, formed.serial, what).await;
                if let Some(group) = late {
                    leading.invalidate_late(&self.replica, &group);
                }
            }
        }
    }
}
