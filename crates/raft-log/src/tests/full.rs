//! Devices that fill up: what is refused, what is kept free, and what a start finds.
//!
//! All runs on one thread whose time is paused, so a seed always gives the same order of operations on all devices.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use openraft::storage::RaftLogStorage;
use sextant_common::ids::PartitionId;
use sextant_environment::rng::{Rng, SeededRng};
use sextant_environment::vfs::{IoKind, OpenMode, Vfs};
use sextant_simulated::ManualClock;

use crate::{PartitionLog, RaftLog, Vote, log_id};

use super::support::{Server, all, append, marked};

const ENOSPC: i32 = 28;
const EMFILE: i32 = 24;
const SEGMENT_BYTES: u64 = 256 << 10;

struct Disks {
    server: Server,
    clock: Arc<ManualClock>,
    /// The last entry.
    last: u64,
}

impl Disks {
    fn new(seed: u64, devices: usize) -> Self {
        let clock = Arc::new(ManualClock::default());
        let mut server = Server::with_devices(seed, devices);
        (server.one_thread, server.clock) = (true, clock.clone());
        server.config.segment_bytes = SEGMENT_BYTES;
        let rng: Arc<dyn Rng> = Arc::new(SeededRng::new(seed ^ 0xd15c));
        let delay = move |kind| (kind == IoKind::Sync).then(|| Duration::from_millis(1 + rng.below(4)));
        server.vfs.set_delay(delay);
        Self { server, clock, last: 0 }
    }

    /// The first device can create no file, with this error.
    fn refuse(&self, error: Option<i32>) {
        *self.server.refused.lock() = error.map(|error| (PathBuf::from("/log0"), error));
    }

    async fn append(&mut self, log: &RaftLog, length: usize) -> Result<(), String> {
        append(&zero(log), vec![marked(0, 1, self.last + 1, length)]).await?;
        self.last += 1;
        Ok(())
    }

    /// Some entries that are queued together.
    async fn append_many(&mut self, log: &RaftLog, count: u64, length: usize) -> Result<(), String> {
        let entries = (self.last + 1..=self.last + count).map(|i| marked(0, 1, i, length)).collect();
        append(&zero(log), entries).await?;
        self.last += count;
        Ok(())
    }

    /// Appends until the disk is full, at last by small steps.
    async fn fill(&mut self, log: &RaftLog, rng: &dyn Rng) {
        for length_max in [30_000, 3_000, 100] {
            let refused = loop {
                if let Err(e) = self.append(log, rng.below(length_max) as usize).await {
                    break e;
                }
            };
            assert!(refused.contains("no space left"), "{refused}");
        }
        self.assert_sound();
    }

    /// Lets time go on until there is room for so many bytes.
    async fn wait_for_room(&self, log: &RaftLog, bytes: u64) {
        let mut seconds = 0;
        while let Err(e) = log.check_room(bytes) {
            seconds += 1;
            assert!(seconds < 60, "{e}");
            self.pass(Duration::from_secs(1)).await;
        }
    }

    async fn pass(&self, time: Duration) {
        self.clock.advance(time);
        tokio::time::sleep(time).await;
    }

    fn assert_sound(&self) {
        let fatals = self.server.fatals.0.lock();
        assert!(fatals.is_empty(), "{fatals:?}");
    }
}

fn zero(log: &RaftLog) -> PartitionLog {
    log.partition(PartitionId(0))
}

#[tokio::test(start_paused = true)]
async fn when_all_devices_are_full_appends_are_refused_and_the_log_goes_on_after_restarts_and_purges() {
    for seed in 0..20 {
        let rng: Arc<dyn Rng> = Arc::new(SeededRng::new(seed));
        let devices = 2 + seed as usize % 2;
        let mut disks = Disks::new(seed, devices);
        // One of them has two files at least: a purge frees none that is being written.
        let capacity = (devices as u64 + 1) * SEGMENT_BYTES + rng.below(4 * SEGMENT_BYTES);
        disks.server.vfs.set_capacity(Some(capacity));
        let mut log = disks.server.open().await.unwrap();
        for round in 0..4 {
            disks.fill(&log, &*rng).await;
            for restart in 0..2 {
                zero(&log).save_vote(&Vote::new(2 * round + restart + 1, 1)).await.unwrap();
                log.shutdown().await;
                log = disks.server.open().await.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
                // It was full before, and nothing that comes first makes it fail.
                let _ = disks.append(&log, 200_000).await;
                disks.assert_sound();
            }
            let entries = all(&zero(&log)).await;
            assert_eq!(entries.last().map(|entry| entry.log_id.index), Some(disks.last), "seed {seed}");
            zero(&log).purge(log_id(1, disks.last)).await.unwrap();
            disks.wait_for_room(&log, 100_000).await;
            disks.append(&log, 90_000).await.unwrap();
            disks.assert_sound();
        }
        log.shutdown().await;
        disks.assert_sound();
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_device_beside_one_that_is_not_keeps_room_for_the_next_start() {
    for seed in 0..8 {
        let mut disks = Disks::new(seed, 2);
        let mut log = disks.server.open().await.unwrap();
        disks.refuse(Some(ENOSPC));
        for round in 0..3 {
            for _ in 0..100 {
                disks.append_many(&log, 3, 10_000).await.unwrap();
            }
            // Once both devices are idle, the full one could take what is small.
            disks.pass(Duration::from_secs(1)).await;
            for _ in 0..200 {
                disks.append_many(&log, 1 + seed, 10).await.unwrap();
            }
            disks.assert_sound();
            log.shutdown().await;
            let opened = disks.server.open().await;
            log = opened.unwrap_or_else(|e| panic!("seed {seed}, round {round}: {e}"));
            assert_eq!(log.report().entries, disks.last);
        }
        log.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_start_makes_a_small_file_if_there_is_no_space_for_a_large_one() {
    let mut disks = Disks::new(1, 1);
    let log = disks.server.open().await.unwrap();
    disks.append_many(&log, 10, 1_000).await.unwrap();
    log.shutdown().await;
    // The current segment has no room left, as if others had taken what a full disk had.
    let (segments, vfs) = (disks.server.segments(0), disks.server.vfs.clone());
    let end = disks.server.scan(0).unwrap().chain[0].end;
    segments[1..].iter().for_each(|path| vfs.remove_file(path).unwrap());
    disks.server.file(&segments[0]).set_len(end).unwrap();
    vfs.set_capacity(Some(vfs.used_bytes() + 8_000));
    let log = disks.server.open().await.unwrap();
    assert_eq!(log.report().entries, disks.last);
    zero(&log).save_vote(&Vote::new(1, 1)).await.unwrap();
    disks.append(&log, 10).await.unwrap_err();
    vfs.set_capacity(None);
    disks.wait_for_room(&log, 100_000).await;
    disks.append(&log, 10_000).await.unwrap();
    log.shutdown().await;
    disks.assert_sound();
}

#[tokio::test(start_paused = true)]
async fn a_start_on_a_full_disk_knows_it_before_it_takes_anything() {
    let rng: Arc<dyn Rng> = Arc::new(SeededRng::new(1));
    let mut disks = Disks::new(1, 1);
    disks.server.vfs.set_capacity(Some(2 * SEGMENT_BYTES + 1_000));
    let log = disks.server.open().await.unwrap();
    disks.fill(&log, &*rng).await;
    log.shutdown().await;
    let log = disks.server.open().await.unwrap();
    let refused = disks.append(&log, 100_000).await.unwrap_err();
    assert!(refused.contains("no space left"), "{refused}");
    log.shutdown().await;
    disks.assert_sound();
}

/// A process that was killed while it made a file on a full disk has left a part of one.
#[tokio::test(start_paused = true)]
async fn the_largest_file_that_is_there_becomes_the_next_segment() {
    let mut disks = Disks::new(1, 1);
    let log = disks.server.open().await.unwrap();
    // So much of the first segment is used that there is a file for the next one.
    disks.append_many(&log, 3, 30_000).await.unwrap();
    disks.append(&log, 10).await.unwrap();
    log.shutdown().await;
    assert_eq!(disks.server.segments(0).len(), 2);
    let (dir, vfs) = (disks.server.config.devices[0].clone(), disks.server.vfs.clone());
    for (name, bytes) in [("segment-000800.log", 20_000), ("segment-000900.log", 4_100)] {
        let file = vfs.open(&dir.join(name), OpenMode::CreateNew).unwrap();
        file.write_all_at(&vec![0; bytes], 0).unwrap();
    }
    vfs.set_capacity(Some(vfs.used_bytes()));
    let log = disks.server.open().await.unwrap();
    assert!(!vfs.exists(&dir.join("segment-000900.log")), "it would hold hardly more than a header");
    vfs.set_capacity(Some(vfs.used_bytes()));
    // More than the small file could take; two segments in all.
    let mut refused = false;
    while !refused {
        refused = disks.append(&log, 30_000).await.is_err();
    }
    disks.assert_sound();
    assert!(disks.last > 10, "{}", disks.last);
    log.shutdown().await;
    let log = disks.server.open().await.unwrap();
    assert_eq!(log.report().entries, disks.last);
    log.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_written_to_a_new_segment_at_once_is_no_longer_than_its_file() {
    const FILE_BYTES: u64 = 4 << 20;
    let mut disks = Disks::new(1, 1);
    disks.server.config.segment_bytes = 4 * FILE_BYTES;
    disks.server.open().await.unwrap().shutdown().await;
    let path = disks.server.config.devices[0].join("segment-000900.log");
    let file = disks.server.vfs.open(&path, OpenMode::CreateNew).unwrap();
    file.set_len(FILE_BYTES).unwrap();
    let log = disks.server.open().await.unwrap();
    disks.append_many(&log, 10_000, 1_000).await.unwrap();
    log.shutdown().await;
    let scan = disks.server.scan(0).unwrap();
    assert_eq!(scan.chain[1].path, path);
    let records = scan.batches.iter().find(|batch| batch.segment == 1 && batch.header.records > 0);
    let end = records.unwrap().header.end();
    assert!((FILE_BYTES - 2_000..=FILE_BYTES).contains(&end), "{end}");
}

#[tokio::test(start_paused = true)]
async fn a_process_with_too_many_open_files_goes_on_in_the_segment_that_it_has() {
    let mut disks = Disks::new(1, 1);
    disks.refuse(None);
    let log = disks.server.open().await.unwrap();
    disks.refuse(Some(EMFILE));
    disks.append(&log, 100).await.unwrap();
    // The file for the next segment was there before, the one after it is refused.
    let mut refused = false;
    while !refused {
        refused = disks.append(&log, 10_000).await.is_err();
    }
    disks.assert_sound();
    zero(&log).save_vote(&Vote::new(1, 1)).await.unwrap();
    disks.refuse(None);
    disks.wait_for_room(&log, 2 * SEGMENT_BYTES).await;
    disks.append(&log, 100_000).await.unwrap();
    log.shutdown().await;
    disks.assert_sound();
}

#[tokio::test(start_paused = true)]
async fn files_that_a_purge_has_freed_are_tried_for_at_once() {
    let rng: Arc<dyn Rng> = Arc::new(SeededRng::new(1));
    let mut disks = Disks::new(1, 1);
    disks.server.vfs.set_capacity(Some(6 * SEGMENT_BYTES));
    let log = disks.server.open().await.unwrap();
    disks.fill(&log, &*rng).await;
    zero(&log).purge(log_id(1, disks.last)).await.unwrap();
    // One file is certain, whatever else there may be; the log's clock stands.
    let mut tries = 0;
    while log.check_room(2 * SEGMENT_BYTES).is_err() {
        tries += 1;
        assert!(tries < 1000, "it still counts as full");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    log.shutdown().await;
    disks.assert_sound();
}

#[tokio::test(start_paused = true)]
async fn space_that_returns_is_found_though_little_is_written_to_the_segment() {
    let mut disks = Disks::new(5, 1);
    disks.server.vfs.set_capacity(Some(3 * SEGMENT_BYTES));
    let log = disks.server.open().await.unwrap();
    disks.fill(&log, &SeededRng::new(5)).await;
    disks.refuse(Some(ENOSPC));
    disks.server.vfs.set_capacity(None);
    // What a purge has given back is the next segment, and is hardly used.
    zero(&log).purge(log_id(1, disks.last)).await.unwrap();
    disks.wait_for_room(&log, 20_000).await;
    disks.append(&log, 10_000).await.unwrap();
    disks.pass(Duration::from_secs(30)).await;
    assert!(log.check_room(2 * SEGMENT_BYTES).is_err(), "there is no file but this one");
    disks.refuse(None);
    disks.wait_for_room(&log, 2 * SEGMENT_BYTES).await;
    disks.assert_sound();
    log.shutdown().await;
}
