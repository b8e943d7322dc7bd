//! What replies to pulls do to a view, whatever they say.

use sextant_common::expiry::Tick;
use sextant_common::ids::Serial;
use sextant_environment::Clock;
use sextant_proto::v1;

use super::copy::{Run, Verdict, WholeFilters, apply, install_whole};
use super::wire;
use crate::lease::{Drift, PullTimes};
use crate::view::PartitionView;

/// Applies replies one after the other. Whole filters (empty ones) are taken whenever they are called for.
///
/// # Panics
/// If a view breaks a rule: it claims a serial whose bits it lacks, goes back within an epoch, or has a lease of a newer
/// version than its SSTables.
pub fn take_replies(clock: &dyn Clock, replies: Vec<v1::PullReply>) {
    let mut view = PartitionView::empty();
    for reply in replies.into_iter().map(wire::reply) {
        let now_ns = clock.holder_ns();
        let times = PullTimes {
            sent_ns: now_ns,
            received_ns: now_ns,
            parked_ns: reply.parked_ns,
            server_mono_ns: reply.server_mono_ns,
            server_boot: reply.server_boot,
        };
        for reply in reply.partitions {
            let partition = reply.partition;
            let Ok(update) = reply.update else { continue };
            let (epoch, to, runs) = (update.epoch, update.serial_to, update.runs.clone());
            let before = view.copies.as_ref().map(|c| (c.epoch, c.serial));
            let (manifest, told) = (update.manifest.clone(), update.told.clone());
            let (next, verdict) = apply(&view, update, times, Drift::of_each_clock(500));
            if let Some(next) = next {
                view = next;
            }
            check(&view, clock, before);
            if verdict == Verdict::Current
                && let Some(copies) = &view.copies
            {
                assert_eq!((copies.epoch, copies.serial), (epoch, to));
                for run in runs {
                    let Run::Hashes { table, generation, hashes } = run else { continue };
                    let flushed =
                        view.manifest.table(table).is_some_and(|t| generation <= t.flushed_generation);
                    for hash in hashes.chunks_exact(8).filter(|_| !flushed) {
                        let hash = u64::from_le_bytes(hash.try_into().unwrap_or_default());
                        assert!(copies.contains(table, hash), "a bit is missing");
                    }
                }
            }
            if verdict == Verdict::NeedFilters {
                let whole = WholeFilters {
                    epoch,
                    serial: Serial(to.0),
                    manifest,
                    told,
                    filters: Vec::new(),
                    registration_slots: 64,
                    tick: Tick(to.0),
                };
                let before = view.copies.as_ref().map(|c| (c.epoch, c.serial));
                if let Some(next) = install_whole(&view, whole) {
                    view = next;
                }
                check(&view, clock, before);
            }
            wire::Position::in_use(partition, &view, clock);
        }
    }
}

fn check(view: &PartitionView, clock: &dyn Clock, before: Option<(sextant_common::ids::Epoch, Serial)>) {
    view.leased_copies(clock);
    if let Some(lease) = &view.lease {
        assert!(lease.manifest_version <= view.manifest.version, "a lease without its tables");
        assert!(view.copies.is_some(), "a lease without filters");
    }
    assert!(view.copies.as_ref().map(|c| (c.epoch, c.serial)) >= before, "a view went back");
}
