//! Devices that are not equally fast: one writes many segments while another is still at one write, and then power fails.
//!
//! All runs on one thread whose time is paused, so a seed always gives the same order of operations on all devices.

use std::sync::Arc;
use std::time::Duration;

use sextant_environment::rng::{Rng, SeededRng};
use sextant_environment::vfs::IoKind;
use sextant_simulated::CrashMode;

use super::crashes::{Run, Step};
use super::support::Server;

/// Most operations take a millisecond or two; one in some takes as long as many others.
fn delay(rng: &dyn Rng) -> Duration {
    let ms = if rng.below(12) == 0 { 20 + rng.below(100) } else { 1 + rng.below(2) };
    Duration::from_millis(ms)
}

/// A server whose devices take turns as the seed says.
fn uneven(seed: u64, devices: usize) -> Server {
    let mut server = Server::with_devices(seed, devices);
    server.one_thread = true;
    let rng: Arc<dyn Rng> = Arc::new(SeededRng::new(seed ^ 0xd15c));
    server.vfs.set_delay(move |kind| (kind == IoKind::Sync).then(|| delay(&*rng)));
    server
}

/// Segments fill up with few entries, and purges make nearly all of them unnecessary.
fn step(rng: &dyn Rng) -> Step {
    let partition = rng.below(3) as usize;
    match rng.below(100) {
        0..24 => Step::Append { partition, count: 1, length: 3000 + rng.below(9000) as usize },
        24..44 => {
            Step::Append { partition, count: 1 + rng.below(3) as usize, length: rng.below(200) as usize }
        }
        44..64 => Step::Purge { partition, share: 8 },
        64..66 => Step::Purge { partition, share: 4 + rng.below(4) },
        66..68 => Step::PurgeBeyond { partition },
        68..70 => Step::Truncate { partition, share: rng.below(8) },
        70..72 => Step::Vote { partition },
        72..74 => Step::Settle,
        74..93 => Step::Pause { ms: 1 + rng.below(10) },
        93..95 => Step::CutPower { operation: 1 + rng.below(12) },
        95..96 => Step::Kill,
        96..97 => Step::Reopen,
        _ => Step::Crash,
    }
}

fn mode(seed: u64) -> CrashMode {
    match seed % 3 {
        0 => CrashMode::LoseAll,
        1 => CrashMode::TearWrites,
        _ => CrashMode::TearAll,
    }
}

async fn history(seed: u64, devices: usize) {
    let rng: Arc<dyn Rng> = Arc::new(SeededRng::new(seed));
    let mut run = Run::on(uneven(seed, devices), mode(seed)).await;
    let last = [Step::Crash, Step::Reopen];
    let steps = (0..150).map(|_| step(&*rng)).chain(last);
    for (at, step) in steps.enumerate() {
        let done = run.step(&step).await;
        done.unwrap_or_else(|e| panic!("seed {seed}, {devices} devices, step {at}, {step:?}: {e}"));
    }
}

#[tokio::test(start_paused = true)]
async fn whatever_device_is_behind_when_power_fails_the_log_opens() {
    for devices in 1..=3 {
        for seed in 0..50 {
            history(seed, devices).await;
        }
    }
}

/// One device had the only checkpoint that was of use, in a segment without a record that was needed. It used the segment
/// again while a record that its newer checkpoints spoke for was still on its way to another device, and was then lost.
#[tokio::test(start_paused = true)]
async fn a_segment_with_the_only_usable_checkpoint_is_kept() {
    for seed in [313, 1920] {
        history(seed, 3).await;
    }
}
