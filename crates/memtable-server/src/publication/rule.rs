//! The publish rule, pure.
//!
//! A group with serial s may be published when every lease granted with a serial below s has been acknowledged up to s or has
//! expired, and so have all leases of the ring before this one. A grant always brings its holder up to the serial at which it is
//! made, so grants with a serial below s are exactly those made before the group: later grants never extend the wait.

use sextant_common::ids::Serial;

/// Whether a group may be published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    Granted,
    /// Not before an acknowledgement, or (if none comes) this monotonic time.
    WaitUntil(u64),
}

/// The publish rule for one grant, as long as it has not expired: whether a lease granted at serial `granted` to a holder that
/// has acknowledged everything up to `acked` forbids the publication of a group with this serial. Only grants made before the
/// group count, so renewals never extend the wait.
#[inline]
pub fn forbids(granted: u64, acked: u64, serial: u64) -> bool {
    !is_covered(acked, serial) && granted < serial
}

/// Whether a holder that has acknowledged everything up to `acked` forbids nothing at this serial, whatever it was granted.
#[inline]
pub fn is_covered(acked: u64, serial: u64) -> bool {
    acked >= serial
}

/// Whether a lease granted at serial `granted` binds no longer, however long it would last, when its holder acknowledges everything up
/// to `acked`: whoever acknowledges a serial uses no lease from before it any more.
#[inline]
pub fn is_ended(granted: u64, acked: u64) -> bool {
    granted < acked
}

/// The publish rule for an entry of the log that its predecessors no longer hold up. `hold_until_ns`: when the last lease of a ring
/// before this one ends (grantor's clock, as `now_ns`). `leases`: what those of this ring say about the serial; asked only of
/// entries that have one.
pub fn permission(
    serial: Serial,
    now_ns: u64,
    hold_until_ns: u64,
    leases: impl FnOnce() -> Permission,
) -> Permission {
    if now_ns < hold_until_ns {
        Permission::WaitUntil(hold_until_ns)
    } else if serial.0 == 0 {
        Permission::Granted
    } else {
        leases()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_acknowledged_is_forbidden_by_no_lease_and_no_lease_outlives_a_later_acknowledgement() {
        assert!([5, 6].into_iter().all(|acked| is_covered(acked, 5) && !forbids(0, acked, 5)));
        assert!(!is_covered(4, 5) && forbids(0, 4, 5));
        assert!(is_ended(4, 5) && !is_ended(5, 5));
    }

    #[test]
    fn leases_of_a_ring_before_hold_up_everything_also_what_left_no_bits() {
        let never = || panic!("nobody is asked");
        assert_eq!(permission(Serial(0), 9, 10, never), Permission::WaitUntil(10));
        assert_eq!(permission(Serial(5), 9, 10, never), Permission::WaitUntil(10));
        assert_eq!(permission(Serial(0), 10, 10, never), Permission::Granted);
    }

    #[test]
    fn what_left_bits_waits_for_the_leases() {
        let forbidden = || Permission::WaitUntil(77);
        assert_eq!(permission(Serial(5), 10, 10, forbidden), Permission::WaitUntil(77));
        assert_eq!(permission(Serial(5), 10, 10, || Permission::Granted), Permission::Granted);
    }

    #[test]
    fn a_lease_forbids_only_groups_after_its_grant_that_its_holder_has_not_acknowledged() {
        assert!(forbids(3, 3, 4));
        assert!(!forbids(3, 4, 4), "acknowledged");
        assert!(!forbids(4, 3, 4), "granted with the group's bits");
    }
}
