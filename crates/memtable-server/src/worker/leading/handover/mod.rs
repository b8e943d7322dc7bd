//! When a leader lets go: on request, because the log's device hangs, or because the log is full. How it does is
//! [`crate::worker::resignation`].

mod full_log;
mod letting_go;

use sextant_common::error::{Error, Result};
use tokio::sync::oneshot;

pub(in crate::worker) use full_log::FullLog;

/// How long what is in flight may take to be published, and the successor to have the whole log. After that the leader stays.
const CATCH_UP_NS: u64 = 3_000_000_000;
/// A successor that lacks no more entries than so many has the whole log soon: nothing new is written from then on.
const NEAR_ENTRIES: u64 = 16;
/// A leader does not give up because of its device sooner than so many times the limit after its election: if all devices are
/// slow, leadership would go round and nobody would be served.
const TENURE_LIMITS: u64 = 5;

/// Why a leader lets go that was asked to.
pub(in crate::worker) const TRANSFERRED: &str = "leadership is transferred";

/// Told the term that ended here.
type Done = oneshot::Sender<Result<u64>>;

/// A transfer that was asked for.
pub(in crate::worker) struct Handover {
    to: u64,
    until_ns: u64,
    /// The successor has come near: no new groups are formed until it is done or given up.
    has_stopped: bool,
    why: &'static str,
    done: Done,
}

impl Handover {
    pub fn fail(self, e: Error) {
        let _ = self.done.send(Err(e));
    }
}

/// What a transfer does next.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Go,
    Wait,
    GiveUp,
}

/// `is_ready`: everything is published, and the successor has the whole log.
fn next_step(is_ready: bool, now_ns: u64, until_ns: u64) -> Step {
    match is_ready {
        true => Step::Go,
        false if now_ns >= until_ns => Step::GiveUp,
        false => Step::Wait,
    }
}

/// Leadership is to end here now.
pub(in crate::worker) struct Parting {
    pub heir: u64,
    pub why: &'static str,
    pub done: Option<Done>,
}

/// What decides whether a leader gives up because of its log's device.
#[derive(Clone, Copy, Debug)]
struct DeviceLook {
    /// How long the oldest write to the log has been under way.
    stalled_ns: u64,
    limit_ns: u64,
    tenure_ns: u64,
    committed: u64,
    /// Entries that are appended and not committed.
    in_flight: usize,
}

/// A leader whose log device hangs can go on for a while, because its followers commit without it; but it no longer counts
/// as a copy, its queue grows, and it cannot help to elect anybody. So it lets go, if the others are fine: where nothing
/// is committed meanwhile, they would not be able to elect anybody either.
///
/// `before`: what was committed when the stall was noticed; kept here between looks. Whether it is time.
fn is_hopeless(before: &mut Option<u64>, look: DeviceLook) -> bool {
    if look.stalled_ns < look.limit_ns / 2 || look.tenure_ns < TENURE_LIMITS * look.limit_ns {
        *before = None;
        return false;
    }
    let noticed_at = *before.get_or_insert(look.committed);
    let others_are_fine = look.committed > noticed_at || look.in_flight == 0;
    look.stalled_ns >= look.limit_ns && others_are_fine
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_goes_when_the_successor_is_ready_and_is_given_up_when_it_takes_too_long() {
        assert_eq!(next_step(true, 99, 10), Step::Go);
        assert_eq!(next_step(false, 9, 10), Step::Wait);
        assert_eq!(next_step(false, 10, 10), Step::GiveUp);
    }

    const LOOK: DeviceLook =
        DeviceLook { stalled_ns: 0, limit_ns: 1000, tenure_ns: 9000, committed: 7, in_flight: 3 };

    #[test]
    fn a_leader_whose_device_hangs_lets_go_only_when_the_others_commit_without_it() {
        let mut before = None;
        assert!(!is_hopeless(&mut before, LOOK));
        assert!(!is_hopeless(&mut before, DeviceLook { stalled_ns: 600, ..LOOK }));
        assert_eq!(before, Some(7));
        assert!(!is_hopeless(&mut before, DeviceLook { stalled_ns: 1200, ..LOOK }), "nothing was committed");
        assert!(is_hopeless(&mut before, DeviceLook { stalled_ns: 1200, committed: 8, ..LOOK }));
        assert!(is_hopeless(&mut before, DeviceLook { stalled_ns: 1200, in_flight: 0, ..LOOK }));
        assert!(!is_hopeless(&mut before, DeviceLook { stalled_ns: 100, ..LOOK }));
        assert_eq!(before, None, "it is well again");
    }

    #[test]
    fn a_fresh_leader_stays_even_if_its_device_hangs() {
        let mut before = None;
        let fresh = DeviceLook { stalled_ns: 5000, tenure_ns: 4999, committed: 9, ..LOOK };
        assert!(!is_hopeless(&mut before, fresh) && before.is_none());
    }
}
