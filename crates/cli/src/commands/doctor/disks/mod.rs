//! The directories that servers keep things in: whose they are, how much room is left, how long an fsync takes.

mod place;
mod trial;

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::time::Duration;

use sextant_environment::Env;
use sextant_environment::env::Party;

use super::Patient;
use super::figures::{bytes, duration, median, percentile};
use super::report::{Check, Finding};
use place::Place;
use trial::{SEQUENTIAL_BYTES, Trial, WRITE_BYTES};

/// A disk that says nothing of itself for so long hangs.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// One on which writing takes longer is not waited for.
const TRIAL_MAX: Duration = Duration::from_secs(30);

const FREE_MIN_BYTES: u64 = 512 << 20;
const FREE_ENOUGH_BYTES: u64 = 4 << 30;
const INODES_MIN: u64 = 1_000;
/// A write waits for an fsync on a majority of logs.
const FSYNC_MAX_NS: u64 = 10_000_000;
/// By default a leader whose log stands still for so long hands over (`tuning.disk_stall_ms`).
const STALL_NS: u64 = 1_000_000_000;
/// A flush writes what was taken in since the last one.
const SEQUENTIAL_MIN_BYTES_PER_S: u64 = 20 << 20;

/// `running`: a server of this host that is not to be held up by many bytes.
pub async fn check(patients: &[Patient], running: Option<Party>) -> Vec<Check> {
    let mut checks = Vec::new();
    let mut tried = BTreeSet::new();
    for patient in patients {
        for dir in patient.file.directories() {
            let subject = format!("directory {} of {}", dir.display(), patient.party());
            let Some(place) = answered(&patient.env, ANSWER_MAX, move || Place::of(&dir)).await else {
                checks.push(hangs().about(subject));
                continue;
            };
            checks.push(place.judge().about(subject));
            if tried.insert(place.there.clone()) {
                checks.extend(place_checks(&patient.env, &place, running).await);
            }
        }
    }
    checks
}

fn hangs() -> Finding {
    Finding::bad(format!("its disk did not answer within {} s: it hangs", ANSWER_MAX.as_secs()))
}

/// What a disk says; `None`: not in time. Whoever still waits for it then has a thread of its own, which ends with this process.
async fn answered<T: Send + 'static>(
    env: &Env,
    within: Duration,
    ask: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (tx, rx) = tokio::sync::oneshot::channel();
    let asking = async move { drop(tx.send(ask())) };
    env.dedicated("disk", asking);
    tokio::time::timeout(within, rx).await.ok()?.ok()
}

async fn place_checks(env: &Env, place: &Place, running: Option<Party>) -> Vec<Check> {
    let there = place.there.display();
    let Some(space) = place.space.as_ref().filter(|_| place.is_writable) else { return Vec::new() };
    let mut checks = vec![
        judge_space(space)
            .about(format!("space at {there}"))
            .with("free_bytes", space.free_bytes)
            .with("total_bytes", space.total_bytes)
            .with("free_inodes", space.free_inodes),
    ];
    let has_room = space.free_bytes > FREE_MIN_BYTES;
    match try_out(env, &place.there, running.is_none() && has_room).await {
        None => {
            let why = format!("writing and fsync took longer than {} s", TRIAL_MAX.as_secs());
            checks.push(Finding::bad(why).about(format!("fsync at {there}")));
        }
        Some(Err(why)) => checks.push(Finding::bad(why.to_string()).about(format!("writing at {there}"))),
        Some(Ok(trial)) => checks.extend(trial_checks(&trial, &place.there, running)),
    }
    checks
}

async fn try_out(env: &Env, dir: &Path, with_sequential: bool) -> Option<io::Result<Trial>> {
    let (disk, dir) = (env.clone(), dir.to_owned());
    answered(env, TRIAL_MAX, move || trial::run(&disk, &dir, with_sequential)).await
}

fn trial_checks(trial: &Trial, dir: &Path, running: Option<Party>) -> Vec<Check> {
    let dir = dir.display();
    let (middle_ns, end_ns) = (median(&trial.fsync_ns), percentile(&trial.fsync_ns, 99));
    let fsync = judge_fsync(&trial.fsync_ns).about(format!("fsync at {dir}"));
    let mut checks = vec![
        fsync
            .with("writes", trial.fsync_ns.len())
            .with("median_us", middle_ns / 1_000)
            .with("p99_us", end_ns / 1_000),
    ];
    let subject = format!("throughput at {dir}");
    let found = match (trial.sequential_ns, running) {
        (Some(ns), _) => {
            let per_s = per_second(SEQUENTIAL_BYTES, ns);
            judge_throughput(per_s).about(subject).with("bytes_per_s", per_s)
        }
        (None, Some(party)) => {
            Finding::ok(format!("not tried: it would hold up {party}, which seems to run")).about(subject)
        }
        (None, None) => Finding::warning("not tried: too little space").about(subject),
    };
    checks.push(found);
    checks
}

fn per_second(bytes: u64, ns: u64) -> u64 {
    let per_s = u128::from(bytes) * 1_000_000_000 / u128::from(ns.max(1));
    u64::try_from(per_s).unwrap_or(u64::MAX)
}

/// How much of a file system is left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Space {
    pub free_bytes: u64,
    pub total_bytes: u64,
    pub free_inodes: u64,
    /// 0: it makes them as it needs them.
    pub total_inodes: u64,
}

fn judge_space(space: &Space) -> Finding {
    let mut figures = format!("{} of {} free", bytes(space.free_bytes), bytes(space.total_bytes));
    if space.total_inodes > 0 {
        figures.push_str(&format!(", {} inodes", space.free_inodes));
    }
    let lacks_inodes = space.total_inodes > 0 && space.free_inodes < INODES_MIN;
    match space.free_bytes {
        _ if lacks_inodes => Finding::bad(format!("{figures}: no room for files")),
        0..FREE_MIN_BYTES => Finding::bad(format!("{figures}: the log would soon be full")),
        FREE_MIN_BYTES..FREE_ENOUGH_BYTES => Finding::warning(format!("{figures}: that is little")),
        free if free < space.total_bytes / 10 => Finding::warning(format!("{figures}: nearly full")),
        _ => Finding::ok(figures),
    }
}

fn judge_fsync(fsync_ns: &[u64]) -> Finding {
    let middle_ns = median(fsync_ns);
    let figures = format!(
        "median {}, p99 {} ({} writes of {})",
        duration(middle_ns),
        duration(percentile(fsync_ns, 99)),
        fsync_ns.len(),
        bytes(WRITE_BYTES as u64)
    );
    match middle_ns {
        _ if fsync_ns.iter().any(|ns| *ns > STALL_NS) => {
            Finding::warning(format!("{figures}: one took longer than a leader's log may stand still"))
        }
        ns if ns > FSYNC_MAX_NS => Finding::warning(format!("{figures}: every write waits for so long")),
        _ => Finding::ok(figures),
    }
}

fn judge_throughput(bytes_per_s: u64) -> Finding {
    let figures = format!("{}/s ({} and one fsync)", bytes(bytes_per_s), bytes(SEQUENTIAL_BYTES));
    match bytes_per_s {
        0..SEQUENTIAL_MIN_BYTES_PER_S => Finding::warning(format!("{figures}: flushes will not keep up")),
        _ => Finding::ok(figures),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::report::Verdict::{Bad, Ok, Warning};

    const MS: u64 = 1_000_000;

    #[tokio::test]
    async fn a_disk_that_hangs_is_given_up() {
        let (release, held) = std::sync::mpsc::channel::<()>();
        let asked = answered(&Env::real(), Duration::from_millis(1), move || held.recv()).await;
        assert!(asked.is_none(), "{asked:?}");
        drop(release);
        assert_eq!(hangs(), Finding::bad("its disk did not answer within 10 s: it hangs"));
    }

    #[tokio::test]
    async fn a_disk_that_answers_is_not_given_up() {
        assert_eq!(answered(&Env::real(), ANSWER_MAX, || 7).await, Some(7));
    }

    #[test]
    fn little_space_is_noticed() {
        let verdict = |free_bytes, free_inodes| {
            let space = Space { free_bytes, total_bytes: 100 << 30, free_inodes, total_inodes: 1 << 20 };
            judge_space(&space).verdict
        };
        assert_eq!(verdict(50 << 30, 1 << 19), Ok);
        assert_eq!([9 << 30, 3 << 30, 1 << 20].map(|free| verdict(free, 1 << 19)), [Warning, Warning, Bad]);
        assert_eq!(verdict(50 << 30, 10), Bad);
        let made_when_needed =
            Space { free_bytes: 50 << 30, total_bytes: 100 << 30, free_inodes: 0, total_inodes: 0 };
        assert_eq!(judge_space(&made_when_needed), Finding::ok("50.0 GiB of 100 GiB free"));
    }

    #[test]
    fn a_slow_fsync_is_noticed_and_so_is_one_that_hangs() {
        assert_eq!(judge_fsync(&[MS; 100]).verdict, Ok);
        assert_eq!(judge_fsync(&[11 * MS; 100]).verdict, Warning);
        let mut one_hangs = [MS; 100];
        one_hangs[50] = 1_001 * MS;
        assert_eq!(judge_fsync(&one_hangs).verdict, Warning);
        assert_eq!(judge_fsync(&[MS; 100]).why, "median 1.0 ms, p99 1.0 ms (100 writes of 4.0 KiB)");
    }

    #[test]
    fn throughput_is_bytes_by_time() {
        assert_eq!(per_second(64 << 20, 500 * MS), 128 << 20);
        assert_eq!(per_second(u64::MAX, 0), u64::MAX);
        assert_eq!([128 << 20, 19 << 20].map(|rate| judge_throughput(rate).verdict), [Ok, Warning]);
    }
}
