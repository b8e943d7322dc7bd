//! One partition's lease desk: ring, grantor and the newest manifest, behind a mutex held for microseconds.
//!
//! The partition's worker pushes bf-log entries *before* it proposes their group, and asks the publish rule; pulls come from
//! the service's tasks. Outside of a leadership the desk is closed: it grants nothing and answers "not leader".

use parking_lot::Mutex;
use sextant_common::ids::{Epoch, ManifestVersion, Serial};
use sextant_common::manifest::{ManifestDigest, Versions};
use sextant_environment::clock::CLOCK_DISAGREEMENT_NS;
use sextant_environment::config::LeaseMode;
use sextant_rules::mutant::{self, Mutant};

use super::grantor::{Grantor, HolderId, Now, Refusal};
use super::ring::{Ring, Run, SERIALS_MAX};
use crate::publication::Permission;

/// A lease shorter than this is not worth its round trip.
const LEASE_NS_MIN: u64 = 2_000_000;

/// Where a holder stands: what it uses, and so acknowledges.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    pub epoch: Epoch,
    pub serial: Serial,
    pub manifest: ManifestVersion,
    /// Of that manifest, if the holder takes changes.
    pub digest: Option<ManifestDigest>,
    pub has_filters: bool,
}

/// What a pull answers for one partition.
#[derive(Debug)]
pub enum Answer {
    NotLeader,
    NotReady,
    NeedFilters { epoch: Epoch },
    News(News),
}

#[derive(Debug)]
pub struct News {
    pub epoch: Epoch,
    pub from: Serial,
    pub to: Serial,
    pub runs: Vec<Run>,
    /// If newer than the holder's, or something else.
    pub manifest: Option<Versions>,
    pub lease: Option<Lease>,
    pub throttled: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Whether the holder's acknowledgements are waited for.
    pub mode: LeaseMode,
    pub manifest: ManifestVersion,
    pub expiry_mono_ns: u64,
    pub expiry_wall_ns: u64,
}

#[derive(Debug)]
struct Open {
    epoch: Epoch,
    mode: LeaseMode,
    drift_ppm: u64,
    ring: Ring,
    grantor: Grantor,
    /// None until the leader's own first entry is applied: before that its manifest may lag.
    manifest: Option<Versions>,
    /// Publication waits for an acknowledgement.
    waiting: bool,
}

#[derive(Debug)]
pub struct LeaseDesk {
    open: Mutex<Option<Open>>,
    /// Of all rings that there were.
    newest_epoch: Mutex<Option<Epoch>>,
    /// That a ring keeps.
    serials_max: u64,
}

impl Default for LeaseDesk {
    fn default() -> Self {
        Self::of(SERIALS_MAX)
    }
}

impl Open {
    /// Whether the position's serial means something here.
    fn is_of(&self, position: &Position) -> bool {
        let same_epoch = position.epoch == self.epoch || mutant::active(Mutant::SerialsGoOn);
        same_epoch && position.has_filters
    }

    fn new(epoch: Epoch, mode: LeaseMode, drift_ppm: u64, ring: Ring) -> Self {
        let grantor = Grantor::new(mode);
        Self { epoch, mode, drift_ppm, ring, grantor, manifest: None, waiting: false }
    }
}

/// What hearing a position leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard {
    /// There is something to answer at once.
    pub news: bool,
    /// The worker waits for acknowledgements and should look again.
    pub wake_worker: bool,
}

impl LeaseDesk {
    /// Closed. Its rings keep so many serials.
    pub fn of(serials_max: u64) -> Self {
        Self { open: Mutex::default(), newest_epoch: Mutex::default(), serials_max }
    }

    /// Opens for an epoch: an empty ring at serial 0, no grants. Holders take whole filters.
    pub fn open(&self, epoch: Epoch, mode: LeaseMode, drift_ppm: u64) {
        *self.open.lock() = Some(Open::new(epoch, mode, drift_ppm, Ring::of(self.serials_max)));
    }

    /// The epoch of the next ring of a leader of `term`. A term that comes again, too, goes on where it was: what holders have from an
    /// earlier ring of it is never taken for something of this one.
    pub fn next_epoch(&self, term: u64) -> Epoch {
        let mut newest = self.newest_epoch.lock();
        let incarnation = newest.filter(|epoch| epoch.term == term).map_or(1, |epoch| epoch.incarnation + 1);
        *newest.insert(Epoch { term, incarnation })
    }

    /// A new ring incarnation within the term (bf-log entries of a refused group may be out, or the mode has changed). Grants of
    /// the epoch before stay binding until they expire, so their end is returned: nothing may be published before it.
    pub fn reopen(&self, epoch: Epoch, mode: LeaseMode, drift_ppm: u64) -> u64 {
        let mut guard = self.open.lock();
        let before = guard.take();
        let until = before.as_ref().map_or(0, |b| b.grantor.last_expiry_ns());
        let manifest = before.as_ref().and_then(|b| b.manifest.clone());
        let ring = Ring::of(self.serials_max);
        *guard = Some(Open { manifest, ..Open::new(epoch, mode, drift_ppm, ring) });
        // A long ring takes a while to go: others need the desk.
        drop(guard);
        drop(before);
        until
    }

    pub fn close(&self) {
        *self.open.lock() = None;
    }

    pub fn epoch(&self) -> Option<Epoch> {
        self.open.lock().as_ref().map(|o| o.epoch)
    }

    /// Adds bf-log entries; the serial after them.
    pub fn push(&self, runs: impl IntoIterator<Item = Run>) -> Serial {
        let mut guard = self.open.lock();
        let Some(open) = guard.as_mut() else { return Serial(0) };
        runs.into_iter().for_each(|run| open.ring.push(run));
        open.ring.serial()
    }

    /// The ring's epoch and newest serial: of one ring, therefore under one lock.
    pub fn newest(&self) -> Option<(Epoch, Serial)> {
        self.open.lock().as_ref().map(|o| (o.epoch, o.ring.serial()))
    }

    pub fn serial(&self) -> Serial {
        self.open.lock().as_ref().map_or(Serial(0), |o| o.ring.serial())
    }

    pub fn set_manifest(&self, manifest: Versions) {
        if let Some(open) = self.open.lock().as_mut() {
            open.manifest = Some(manifest);
        }
    }

    /// The manifest that is served, and in which epoch.
    pub fn manifest(&self) -> Option<(Epoch, Versions)> {
        self.open.lock().as_ref().and_then(|open| Some((open.epoch, open.manifest.clone()?)))
    }

    pub fn may_publish(&self, serial: Serial, now: Now) -> Permission {
        let mut guard = self.open.lock();
        let Some(open) = guard.as_mut() else { return Permission::Granted };
        let permission = open.grantor.may_publish(serial, now);
        open.waiting = permission != Permission::Granted;
        permission
    }

    /// Records what the holder acknowledges, and tells whether there is news for it.
    pub fn hear(&self, holder: HolderId, position: &Position, now: Now) -> Heard {
        let mut guard = self.open.lock();
        let Some(open) = guard.as_mut() else { return Heard { news: true, wake_worker: false } };
        if !open.is_of(position) {
            return Heard { news: true, wake_worker: false };
        }
        if open.mode == LeaseMode::Ack {
            // Nobody can use more than there is.
            open.grantor.acknowledge(holder, position.serial.min(open.ring.serial()), now);
        }
        let newer = open.manifest.as_ref().is_some_and(|m| m.is_news(position.manifest, position.digest));
        Heard { news: open.ring.serial() > position.serial || newer, wake_worker: open.waiting }
    }

    /// Answers a pull, with a lease if the leader can give one: `grantable` is (term, length in ns), which held at `now` or
    /// later.
    pub fn answer(
        &self,
        holder: HolderId,
        position: &Position,
        grantable: Option<(u64, u64)>,
        now: Now,
    ) -> Answer {
        let mut guard = self.open.lock();
        let Some(open) = guard.as_mut() else { return Answer::NotLeader };
        if !open.is_of(position) {
            return if open.manifest.is_some() {
                Answer::NeedFilters { epoch: open.epoch }
            } else {
                Answer::NotReady
            };
        }
        let Some(manifest) = open.manifest.clone() else { return Answer::NotReady };
        let Some(runs) = open.ring.since(position.serial) else {
            return Answer::NeedFilters { epoch: open.epoch };
        };
        let to = open.ring.serial();
        let mut throttled = false;
        let worth = |ns: &u64| *ns >= LEASE_NS_MIN || open.mode == LeaseMode::Timed;
        let lease_ns = grantable.filter(|(term, _)| *term == open.epoch.term).map(|(_, ns)| ns).filter(worth);
        let lease = lease_ns.and_then(|ns| {
            let expiry_mono_ns = now.mono_ns + ns;
            // A little less on the wall clock, so that the monotonic expiry implies the other within the drift bound.
            let wall_ns = ns.saturating_sub(ns * 2 * open.drift_ppm / 1_000_000 + 1);
            let expiry_wall_ns = if now.wall.is_synchronised() { now.wall.earliest_ns + wall_ns } else { 0 };
            // The worker asks on another thread, whose clock may be ahead.
            let bound_until_ns = expiry_mono_ns + CLOCK_DISAGREEMENT_NS;
            match open.grantor.grant(holder, to, bound_until_ns, expiry_wall_ns, now) {
                Ok(()) => {
                    let (mode, manifest) = (open.mode, manifest.newest.version);
                    Some(Lease { mode, manifest, expiry_mono_ns, expiry_wall_ns })
                }
                Err(Refusal::Throttled | Refusal::TooManyHolders | Refusal::Released) => {
                    throttled = true;
                    None
                }
            }
        });
        let manifest = Some(manifest).filter(|m| m.is_news(position.manifest, position.digest));
        Answer::News(News { epoch: open.epoch, from: position.serial, to, runs, manifest, lease, throttled })
    }

    pub fn release(&self, holder: HolderId) {
        if let Some(open) = self.open.lock().as_mut() {
            open.grantor.release(holder);
        }
    }

    /// (holders known, holders with a live lease), for status.
    pub fn holders(&self, now: Now) -> (usize, usize) {
        self.open.lock().as_ref().map_or((0, 0), |o| (o.grantor.holders(), o.grantor.live(now)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use sextant_common::ids::{Generation, PartitionId, TableId};
    use sextant_common::manifest::Manifest;
    use sextant_environment::clock::WallInterval;

    const A: HolderId = [1; 16];
    const EPOCH: Epoch = Epoch { term: 3, incarnation: 1 };

    fn now(ns: u64) -> Now {
        Now { mono_ns: ns, wall: WallInterval::UNSYNCHRONISED }
    }

    fn desk() -> LeaseDesk {
        let desk = LeaseDesk::default();
        desk.open(EPOCH, LeaseMode::Ack, 0);
        desk.set_manifest(Arc::new(Manifest::empty(PartitionId(0))).into());
        desk
    }

    fn position(serial: u64) -> Position {
        Position {
            epoch: EPOCH,
            serial: Serial(serial),
            manifest: ManifestVersion(0),
            digest: None,
            has_filters: true,
        }
    }

    fn bits(hashes: &[u64]) -> Run {
        Run::Bits { table: TableId(1), generation: Generation(1), hashes: hashes.to_vec() }
    }

    #[test]
    fn no_two_rings_are_of_one_epoch() {
        let desk = LeaseDesk::default();
        let epochs = [3, 3, 5, 5, 6].map(|term| desk.next_epoch(term));
        let of = |term, incarnation| Epoch { term, incarnation };
        assert_eq!(epochs, [of(3, 1), of(3, 2), of(5, 1), of(5, 2), of(6, 1)]);
    }

    #[test]
    fn serials_do_not_continue_across_epochs() {
        let desk = desk();
        desk.push([bits(&[1, 2])]);
        let old = Position { epoch: Epoch { term: 2, incarnation: 1 }, ..position(1) };
        assert!(matches!(desk.answer(A, &old, Some((3, 1 << 30)), now(0)), Answer::NeedFilters { .. }));
        // Nor does such a position acknowledge anything.
        desk.answer(A, &position(2), Some((3, 1 << 30)), now(0));
        desk.push([bits(&[3])]);
        desk.hear(A, &Position { serial: Serial(9), ..old }, now(1));
        assert!(matches!(desk.may_publish(Serial(3), now(1)), Permission::WaitUntil(_)));
        desk.hear(A, &position(3), now(1));
        assert_eq!(desk.may_publish(Serial(3), now(1)), Permission::Granted);
    }

    #[test]
    fn no_manifest_is_served_before_the_leaders_own_first_entry_is_applied() {
        let desk = LeaseDesk::default();
        desk.open(EPOCH, LeaseMode::Ack, 0);
        assert!(matches!(desk.answer(A, &position(0), Some((3, 1 << 30)), now(0)), Answer::NotReady));
    }

    #[test]
    fn a_closed_desk_knows_no_leases() {
        let desk = desk();
        desk.close();
        assert!(matches!(desk.answer(A, &position(0), Some((3, 1 << 30)), now(0)), Answer::NotLeader));
    }

    #[test]
    fn a_new_incarnation_remembers_how_long_old_leases_bind() {
        let desk = desk();
        desk.answer(A, &position(0), Some((3, 1 << 30)), now(5));
        let bound_until_ns = desk.reopen(Epoch { term: 3, incarnation: 2 }, LeaseMode::Ack, 0);
        assert_eq!(bound_until_ns, 5 + (1 << 30) + CLOCK_DISAGREEMENT_NS);
        assert!(matches!(
            desk.answer(A, &position(0), Some((3, 1 << 30)), now(6)),
            Answer::NeedFilters { .. }
        ));
    }

    #[test]
    fn a_lease_of_another_term_is_not_granted() {
        let desk = desk();
        let Answer::News(news) = desk.answer(A, &position(0), Some((2, 1 << 30)), now(0)) else { panic!() };
        assert_eq!(news.lease, None);
    }

    #[test]
    fn in_timed_mode_acknowledgements_do_not_count() {
        let desk = LeaseDesk::default();
        desk.open(EPOCH, LeaseMode::Timed, 0);
        desk.set_manifest(Arc::new(Manifest::empty(PartitionId(0))).into());
        desk.answer(A, &position(0), Some((3, 1000)), now(0));
        let serial = desk.push([bits(&[1])]);
        desk.hear(A, &position(1), now(1));
        assert_eq!(desk.may_publish(serial, now(2)), Permission::WaitUntil(500_002), "commit wait");
        assert_eq!(desk.may_publish(serial, now(1000 + CLOCK_DISAGREEMENT_NS)), Permission::Granted);
    }

    #[test]
    fn a_lease_binds_a_little_longer_than_its_holder_is_told_for_another_threads_clock_may_be_ahead() {
        let desk = desk();
        let Answer::News(news) = desk.answer(A, &position(0), Some((3, 1 << 30)), now(0)) else { panic!() };
        let told = news.lease.unwrap().expiry_mono_ns;
        let serial = desk.push([bits(&[1])]);
        let ahead = now(told + CLOCK_DISAGREEMENT_NS - 1);
        assert!(matches!(desk.may_publish(serial, ahead), Permission::WaitUntil(_)));
        assert_eq!(desk.may_publish(serial, now(told + CLOCK_DISAGREEMENT_NS)), Permission::Granted);
    }
}
