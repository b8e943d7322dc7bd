//! A new incarnation of the ring within the term: after a group was refused whose bits may be out, and when the mode of leases or
//! their bound on drift changes.

use sextant_common::ids::Serial;
use sextant_rules::mutant::{self, Mutant};
use sextant_rules::probe::ProbeEvent;

use super::Leading;
use crate::publication::PublishQueue;
use crate::worker::proposal::Proposal;
use crate::worker::replica::Replica;
use crate::worker::waiting::Waiting;

impl Leading {
    /// A new ring incarnation within the term. Whatever is in flight waits for the old one's leases as a whole.
    pub fn renew_ring(&mut self, replica: &mut Replica) {
        let (mode, drift_ppm) = (replica.configuration().mode, replica.configuration().drift_ppm);
        let (tenure, shared) = (&mut self.tenure, &replica.shared);
        let epoch = shared.desk.next_epoch(tenure.term);
        tenure.hold_until_ns = tenure.hold_until_ns.max(shared.desk.reopen(epoch, mode, drift_ppm));
        tenure.epoch = epoch;
        shared.env.tell(|| ProbeEvent::RingRenewed {
            partition: shared.id,
            node: shared.node,
            over_group: self.sequencer.proposal.as_ref().is_some_and(|p| p.serial.0 > 0),
        });
        forget_serials(&mut replica.queue, self.sequencer.proposal.as_mut());
        shared.news.notify_waiters();
    }
}

/// What is in flight has serials of a ring that is gone: the new one might never reach them. That goes for the group, too, that is
/// proposed and not yet back from the log.
fn forget_serials(queue: &mut PublishQueue<Waiting>, proposal: Option<&mut Proposal>) {
    queue.iter_mut().for_each(|entry| entry.serial = Serial(0));
    if let Some(proposal) = proposal
        && !mutant::active(Mutant::ProposalKeepsSerial)
    {
        proposal.serial = Serial(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publication::{Next, Permission, Position};
    use crate::worker::proposal::Proposed;
    use crate::worker::waiting;

    fn proposed(serial: u64) -> Proposal {
        Proposal::for_tests(serial, Proposed::Group(Vec::new()))
    }

    fn own(index: u64, seq: u64, proposal: Proposal) -> crate::publication::Appended<Waiting> {
        waiting::own(index, Position { seq, ..Position::default() }, proposal, 2)
    }

    #[test]
    fn a_new_ring_binds_nothing_that_is_in_flight_also_not_what_is_on_its_way_into_the_log() {
        let mut queue = PublishQueue::new(0);
        queue.push(own(1, 10, proposed(700)));
        let mut proposal = Some(proposed(701));
        forget_serials(&mut queue, proposal.as_mut());
        queue.push(own(2, 11, proposal.unwrap()));
        queue.push(own(3, 12, proposed(1)));
        // The new ring begins at 0, and nobody has acknowledged anything in it.
        let permit = |s: Serial| if s.0 == 0 { Permission::Granted } else { Permission::WaitUntil(u64::MAX) };
        assert!(matches!(queue.next(3, permit), Next::Publish(e) if e.index == 1));
        assert!(matches!(queue.next(3, permit), Next::Publish(e) if e.index == 2));
        assert!(matches!(queue.next(3, permit), Next::WaitUntil(_)), "a group of the new ring waits as ever");
    }
}
