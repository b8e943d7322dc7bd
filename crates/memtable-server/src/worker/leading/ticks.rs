//! The partition's time, as its leader moves it on (design, section 15): a *tick* is an entry of the log and one of the ring, and waits
//! for the leases below that, like a write.
//!
//! Owns when the next one is due, and up to where time was announced. What is due is said by [`sextant_common::expiry`].

use sextant_common::expiry::{Tick, due_tick};
use sextant_common::ids::Serial;
use sextant_rules::mutant::{self, Mutant};

use super::Leading;
use crate::command::{self, Command};
use crate::lease::ring::Run;
use crate::publication::Position;
use crate::worker::replica::Replica;

/// From one tick to the next, while records may expire.
const INTERVAL_NS: u64 = 100_000_000;
/// The furthest that a tick goes beyond what nothing expires by. With the interval: how fast time catches up.
const STEP_MAX_MS: u64 = 1000;

pub(in crate::worker) struct Ticks {
    /// The newest tick that is out in the ring, appended or not; at first the newest of the log, committed or not: so no lease is given
    /// to somebody who does not know of a tick that may be published.
    pub announced: Tick,
    /// Not before (grantor's clock).
    next_at_ns: u64,
}

impl Ticks {
    pub fn begin(of_log: Tick) -> Self {
        Self { announced: of_log, next_at_ns: 0 }
    }
}

impl Leading {
    /// Lets time go on, if a record may expire by that.
    pub fn tick_when_due(&mut self, replica: &Replica, now_ns: u64) {
        if now_ns < self.ticks.next_at_ns || due(replica).is_none() {
            return;
        }
        if !self.sequencer.has_own(|command| matches!(command, Command::Tick(_))) {
            // What it says is decided when it is proposed.
            let (term, at) = (self.tenure.term, Tick::default());
            self.command(Command::Tick(command::Tick { term, at }), None);
        }
    }

    /// Puts the tick that is due now into the ring: what is to be proposed, and the serial that its publication waits for. None: none is
    /// due any more, or nobody would take it.
    pub fn announce_tick(&mut self, replica: &Replica) -> Option<(Tick, Serial)> {
        let shared = &replica.shared;
        self.ticks.next_at_ns = shared.env.clock.grantor_ns() + INTERVAL_NS;
        // Raft would refuse.
        if !shared.lease.is_valid(self.tenure.term, shared.env.clock.holder_ns()) {
            return None;
        }
        let at = due(replica)?;
        self.ticks.announced = self.ticks.announced.max(at);
        let serial = match mutant::active(Mutant::TickWaitsForNobody) {
            true => Serial(0),
            false => shared.desk.push([Run::Ticks { newest: at, entries: 1 }]),
        };
        shared.news.notify_waiters();
        if mutant::active(Mutant::TickNotPublished) {
            shared.published.store(Position { tick: at, ..shared.published.load() });
        }
        replica.metrics.ticks.inc();
        Some((at, serial))
    }
}

fn due(replica: &Replica) -> Option<Tick> {
    let wall_ms = replica.shared.env.clock.wall_guess_ns() / 1_000_000;
    due_tick(replica.partition.tick(), wall_ms, replica.partition.next_expiry(), STEP_MAX_MS)
}
