//! The grantor's books: every unacknowledged grant of every holder, and what they say about a group that waits for publication
//! (the rule: [`crate::publication`]).
//!
//! All times are nanoseconds of the grantor's own clocks. What threads may disagree about them is in the expiries already: the desk
//! adds it.

use std::collections::{HashMap, VecDeque};

use sextant_common::ids::Serial;
use sextant_environment::clock::WallInterval;
use sextant_environment::config::LeaseMode;

use crate::publication::{Permission, forbids, is_covered, is_ended};

/// A holder's random id.
pub type HolderId = [u8; 16];

/// Most holders of a partition: each can delay publication, and each costs a check per group.
pub const HOLDERS_MAX: usize = 1024;
/// A holder whose lease ran out unacknowledged so many times in a row, while a group waited for it, gets no leases for a while.
const STRIKES_MAX: u32 = 3;
/// For how long.
const THROTTLE_NS: u64 = 3_000_000_000;
/// A holder without a live grant is forgotten after this long without a pull.
const FORGET_NS: u64 = 60_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Grant {
    serial: u64,
    expiry_mono_ns: u64,
    /// 0: none was given.
    expiry_wall_ns: u64,
}

impl Grant {
    fn expired(&self, now: Now) -> bool {
        // The wall clock's expiry is waited for too, but not for ever: within the stated bounds it has passed when the
        // monotonic one has, and a clock that was set back or lost must not stop publication.
        let wall = self.expiry_wall_ns == 0
            || !now.wall.is_synchronised()
            || now.wall.earliest_ns > self.expiry_wall_ns
            || now.mono_ns >= self.expiry_mono_ns + WALL_WAIT_NS_MAX;
        now.mono_ns >= self.expiry_mono_ns && wall
    }
}

#[derive(Debug, Default)]
struct Holder {
    acked: u64,
    /// Unacknowledged grants, by rising serial.
    grants: VecDeque<Grant>,
    last_pull_ns: u64,
    strikes: u32,
    throttled_until_ns: u64,
}

/// The grantor's clocks at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// `Clock::grantor_ns`.
    pub mono_ns: u64,
    pub wall: WallInterval,
}

#[derive(Debug, Default)]
pub struct Grantor {
    holders: HashMap<HolderId, Holder>,
    /// Holders that gave their leases back: a pull of theirs that is still on its way gets nothing.
    released: VecDeque<HolderId>,
    /// Whether late holders lose their leases: not where nobody acknowledges.
    timed: bool,
}

/// Why no lease was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    Throttled,
    TooManyHolders,
    /// The holder said that it is going; ids are random per process and never come back.
    Released,
}

impl Grantor {
    pub fn new(mode: LeaseMode) -> Self {
        Self { timed: mode == LeaseMode::Timed, ..Self::default() }
    }

    /// The holder now uses everything up to `serial`: older grants bind no longer.
    pub fn acknowledge(&mut self, holder: HolderId, serial: Serial, now: Now) {
        if let Some(h) = self.holders.get_mut(&holder) {
            h.last_pull_ns = now.mono_ns;
            if serial.0 <= h.acked {
                return;
            }
            h.acked = serial.0;
            let in_time = h.grants.iter().any(|g| is_ended(g.serial, serial.0) && !g.expired(now));
            while h.grants.front().is_some_and(|g| is_ended(g.serial, h.acked)) {
                h.grants.pop_front();
            }
            if in_time {
                h.strikes = 0;
            }
        }
    }

    /// Records a grant at `serial` (the newest there is).
    pub fn grant(
        &mut self,
        holder: HolderId,
        serial: Serial,
        expiry_mono_ns: u64,
        expiry_wall_ns: u64,
        now: Now,
    ) -> Result<(), Refusal> {
        if self.released.contains(&holder) {
            return Err(Refusal::Released);
        }
        if !self.holders.contains_key(&holder) && self.holders.len() >= HOLDERS_MAX {
            self.forget(now);
            if self.holders.len() >= HOLDERS_MAX {
                return Err(Refusal::TooManyHolders);
            }
        }
        let h = self.holders.entry(holder).or_default();
        h.last_pull_ns = now.mono_ns;
        if now.mono_ns < h.throttled_until_ns {
            return Err(Refusal::Throttled);
        }
        match h.grants.back_mut() {
            // Same serial: the same promise, for longer.
            Some(last) if last.serial == serial.0 => {
                last.expiry_mono_ns = last.expiry_mono_ns.max(expiry_mono_ns);
                if last.expiry_wall_ns != 0 || expiry_wall_ns != 0 {
                    last.expiry_wall_ns = last.expiry_wall_ns.max(expiry_wall_ns);
                }
            }
            _ => h.grants.push_back(Grant { serial: serial.0, expiry_mono_ns, expiry_wall_ns }),
        }
        while h.grants.front().is_some_and(|g| g.expired(now)) {
            h.grants.pop_front();
        }
        Ok(())
    }

    /// The publish rule for a group whose last bf-log entry has this serial.
    pub fn may_publish(&mut self, serial: Serial, now: Now) -> Permission {
        let mut until = 0;
        for holder in self.holders.values_mut() {
            if is_covered(holder.acked, serial.0) {
                continue;
            }
            let before = holder.grants.len();
            while holder.grants.front().is_some_and(|g| g.serial < serial.0 && g.expired(now)) {
                holder.grants.pop_front();
            }
            let blocking = holder.grants.iter().filter(|g| forbids(g.serial, holder.acked, serial.0));
            let mut blocks = false;
            for grant in blocking {
                if !grant.expired(now) {
                    blocks = true;
                    // A wall-clock expiry that is still ahead is asked about again a little later.
                    until = until.max(grant.expiry_mono_ns.max(now.mono_ns + WALL_RECHECK_NS));
                }
            }
            if !self.timed && !blocks && before > holder.grants.len() {
                holder.strikes += 1;
                if holder.strikes >= STRIKES_MAX {
                    holder.strikes = 0;
                    holder.throttled_until_ns = now.mono_ns + THROTTLE_NS;
                }
            }
        }
        if until == 0 { Permission::Granted } else { Permission::WaitUntil(until) }
    }

    /// A draining holder gives its leases back.
    pub fn release(&mut self, holder: HolderId) {
        self.holders.remove(&holder);
        if self.released.len() >= RELEASED_MAX {
            self.released.pop_front();
        }
        self.released.push_back(holder);
    }

    /// The latest moment at which any lease can still be in use (0: none).
    pub fn last_expiry_ns(&self) -> u64 {
        self.holders.values().flat_map(|h| &h.grants).map(|g| g.expiry_mono_ns).max().unwrap_or(0)
    }

    pub fn holders(&self) -> usize {
        self.holders.len()
    }

    /// Holders with an unexpired grant.
    pub fn live(&self, now: Now) -> usize {
        self.holders.values().filter(|h| h.grants.iter().any(|g| !g.expired(now))).count()
    }

    fn forget(&mut self, now: Now) {
        self.holders.retain(|_, h| {
            h.last_pull_ns + FORGET_NS > now.mono_ns || h.grants.iter().any(|g| !g.expired(now))
        });
    }
}

/// Holders that are remembered as gone: their last pulls end within a second.
const RELEASED_MAX: usize = 64;
/// How much longer than the monotonic expiry the wall clock's is waited for.
const WALL_WAIT_NS_MAX: u64 = 1_000_000_000;
/// How soon an expiry on the wall clock is looked at again.
const WALL_RECHECK_NS: u64 = 500_000;

#[cfg(test)]
mod tests {
    use super::*;

    const A: HolderId = [1; 16];
    const B: HolderId = [2; 16];

    fn at(ns: u64) -> Now {
        Now { mono_ns: ns, wall: WallInterval::UNSYNCHRONISED }
    }

    #[test]
    fn a_group_beyond_an_unacknowledged_lease_waits_for_its_expiry() {
        let mut g = Grantor::default();
        g.grant(A, Serial(5), 100_000_000, 0, at(0)).unwrap();
        assert_eq!(g.may_publish(Serial(5), at(1)), Permission::Granted, "within what the lease covers");
        assert_eq!(g.may_publish(Serial(6), at(1)), Permission::WaitUntil(100_000_000));
        assert_eq!(g.may_publish(Serial(6), at(100_000_000)), Permission::Granted);
    }

    #[test]
    fn an_acknowledgement_frees_the_group() {
        let mut g = Grantor::default();
        g.grant(A, Serial(5), 100_000_000, 0, at(0)).unwrap();
        g.acknowledge(A, Serial(6), at(2));
        assert_eq!(g.may_publish(Serial(6), at(2)), Permission::Granted);
        assert!(matches!(g.may_publish(Serial(7), at(2)), Permission::Granted), "no grant is left");
    }

    #[test]
    fn only_grants_made_before_the_group_count_so_a_deaf_holder_delays_it_once() {
        let mut g = Grantor::default();
        g.grant(A, Serial(5), 100_000_000, 0, at(0)).unwrap();
        // The group took serial 6; the replies get lost, and the holder keeps asking from 5.
        for t in 1..9 {
            g.grant(A, Serial(6), 100_000_000 + t * 10_000_000, 0, at(t * 10_000_000)).unwrap();
        }
        assert_eq!(g.may_publish(Serial(6), at(90_000_000)), Permission::WaitUntil(100_000_000));
        assert_eq!(g.may_publish(Serial(6), at(100_000_000)), Permission::Granted);
    }

    #[test]
    fn every_unacknowledged_grant_is_kept_not_one_merged_record() {
        let mut g = Grantor::default();
        g.grant(A, Serial(5), 200_000_000, 0, at(0)).unwrap();
        g.grant(A, Serial(9), 100_000_000, 0, at(1)).unwrap();
        assert_eq!(g.may_publish(Serial(6), at(2)), Permission::WaitUntil(200_000_000));
        g.acknowledge(A, Serial(9), at(3));
        assert_eq!(g.may_publish(Serial(9), at(3)), Permission::Granted);
        assert_eq!(g.may_publish(Serial(10), at(3)), Permission::WaitUntil(100_000_000));
    }

    #[test]
    fn the_slowest_holder_decides_and_a_release_frees() {
        let mut g = Grantor::default();
        g.grant(A, Serial(0), 100_000_000, 0, at(0)).unwrap();
        g.grant(B, Serial(0), 300_000_000, 0, at(0)).unwrap();
        assert_eq!(g.may_publish(Serial(1), at(1)), Permission::WaitUntil(300_000_000));
        g.release(B);
        assert_eq!(g.may_publish(Serial(1), at(1)), Permission::WaitUntil(100_000_000));
        assert_eq!(g.grant(B, Serial(0), 300_000_000, 0, at(2)), Err(Refusal::Released));
    }

    #[test]
    fn a_wall_clock_expiry_is_waited_for_too() {
        let mut g = Grantor::default();
        let wall = |earliest_ns| WallInterval { earliest_ns, latest_ns: earliest_ns + 10 };
        g.grant(A, Serial(0), 100, 5_000, Now { mono_ns: 0, wall: wall(4_000) }).unwrap();
        let wait = g.may_publish(Serial(1), Now { mono_ns: 200, wall: wall(5_000) });
        assert_eq!(wait, Permission::WaitUntil(200 + WALL_RECHECK_NS));
        assert_eq!(g.may_publish(Serial(1), Now { mono_ns: 300, wall: wall(5_001) }), Permission::Granted);
        // A wall clock that is lost or set back does not stop publication for ever.
        g.grant(A, Serial(1), 400, 9_000, Now { mono_ns: 300, wall: wall(6_000) }).unwrap();
        let back = Now { mono_ns: 400 + WALL_WAIT_NS_MAX, wall: wall(1_000) };
        assert_eq!(g.may_publish(Serial(2), back), Permission::Granted);
    }

    #[test]
    fn a_holder_that_always_lets_its_lease_run_out_is_throttled() {
        let mut g = Grantor::default();
        let mut now = 0;
        for serial in 0..u64::from(STRIKES_MAX) {
            g.grant(A, Serial(serial), now + 100, 0, at(now)).unwrap();
            now += 100;
            assert_eq!(g.may_publish(Serial(serial + 1), at(now)), Permission::Granted);
        }
        assert_eq!(g.grant(A, Serial(9), now + 100, 0, at(now)), Err(Refusal::Throttled));
        assert!(g.grant(A, Serial(9), now + 100, 0, at(now + THROTTLE_NS)).is_ok());
    }

    #[test]
    fn the_number_of_holders_is_bounded() {
        let mut g = Grantor::default();
        for i in 0..HOLDERS_MAX as u64 {
            let mut id = [0; 16];
            id[..8].copy_from_slice(&i.to_le_bytes());
            g.grant(id, Serial(0), 100, 0, at(0)).unwrap();
        }
        assert_eq!(g.grant([0xff; 16], Serial(0), 100, 0, at(1)), Err(Refusal::TooManyHolders));
        assert!(g.grant([0xff; 16], Serial(0), FORGET_NS * 3, 0, at(FORGET_NS * 2)).is_ok());
    }
}
