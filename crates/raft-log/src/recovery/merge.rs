//! Putting the batches of all devices into one order, and cutting it where it is no longer complete.
//!
//! Pure. The rules:
//!
//! 1. A run begins, on every device, with a checkpoint at the lsn up to which the runs before it were recovered. Their
//!    batches beyond it are void, whatever device they are on.
//! 2. A checkpoint is usable if all records from its floor up to its own lsn are there. The newest usable one counts.
//! 3. From its floor on, records are recovered up to the first lsn that no device has. What lies beyond was never
//!    acknowledged, since that lsn was not durable: so a truncation that got lost takes the entries that followed it along.
//! 4. If a header states a higher lsn to be durable on all devices, something acknowledged is lost: an error.

use std::collections::BTreeMap;

use sextant_common::{Error, Result};

use crate::format::batch::BatchKind;
use crate::format::checkpoint::Checkpoint;

use super::scan::DeviceScan;

#[derive(Debug)]
pub(crate) struct Plan {
    /// The last record that is recovered. 0: none.
    pub last_lsn: u64,
    /// Where replay starts, and the state that it must come to.
    pub checkpoint: Option<(u64, Checkpoint)>,
    /// Batches with records from the floor to the last lsn, in order: device, and position in its batches.
    pub batches: Vec<(usize, usize)>,
    pub next_run: u32,
    /// Bytes of whole batches that are beyond the cut from now on.
    pub void_bytes: u64,
}

pub(crate) fn plan(devices: &[DeviceScan]) -> Result<Plan> {
    let starts = run_starts(devices);
    // The lsn beyond which a run's batches are void.
    let cut_of = |run: u32| starts.range(run + 1..).map(|(_, lsn)| *lsn).min().unwrap_or(u64::MAX);
    let mut live = Vec::new();
    for (device, scan) in devices.iter().enumerate() {
        for (at, batch) in scan.batches.iter().enumerate() {
            let header = &batch.header;
            if header.kind != BatchKind::Records || header.records == 0 {
                continue;
            }
            if header.next_lsn() - 1 <= cut_of(header.run) {
                live.push((header.first_lsn, header.next_lsn(), device, at));
            }
        }
    }
    live.sort_unstable();
    if let Some(pair) = live.windows(2).find(|pair| pair[1].0 < pair[0].1) {
        let place = |(_, _, device, at): (u64, u64, usize, usize)| {
            let scan = &devices[device];
            let batch = &scan.batches[at];
            format!("{} at offset {}", scan.chain[batch.segment].path.display(), batch.header.offset)
        };
        let what = format!("{} and {} hold the same records", place(pair[0]), place(pair[1]));
        return Err(Error::corrupt(what));
    }
    let mut checkpoints: Vec<_> = devices
        .iter()
        .flat_map(|scan| &scan.checkpoints)
        .filter(|found| found.lsn <= cut_of(found.run))
        .collect();
    checkpoints.sort_by_key(|found| std::cmp::Reverse((found.lsn, found.run, found.checkpoint.floor)));
    let usable = checkpoints.iter().find_map(|found| {
        let (reach, range) = contiguous(&live, found.checkpoint.floor);
        (reach >= found.lsn).then_some((*found, reach, range))
    });
    let (last_lsn, range) = match &usable {
        Some((found, reach, range)) => ((*reach).max(found.lsn), range.clone()),
        None if live.is_empty() => (0, 0..0),
        None => {
            let (first, ..) = live[0];
            return Err(lost(devices, format!("no checkpoint fits; the first record found has lsn {first}")));
        }
    };
    let durable_lsn = devices.iter().map(|scan| scan.durable_lsn).max().unwrap_or(0);
    if last_lsn < durable_lsn {
        let what = format!("records {} to {durable_lsn} were acknowledged and are not there", last_lsn + 1);
        return Err(lost(devices, what));
    }
    let beyond = live[range.end..].iter().map(|(_, _, device, at)| &devices[*device].batches[*at].header);
    let void_bytes = beyond.map(|header| header.end() - u64::from(header.offset)).sum();
    Ok(Plan {
        last_lsn,
        checkpoint: usable.map(|(found, ..)| (found.lsn, found.checkpoint.clone())),
        batches: live[range].iter().map(|(_, _, device, at)| (*device, *at)).collect(),
        next_run: devices.iter().map(|scan| scan.max_run).max().unwrap_or(0) + 1,
        void_bytes,
    })
}

/// Where each run began: the lsn of its first checkpoint on the device that has the earliest.
fn run_starts(devices: &[DeviceScan]) -> BTreeMap<u32, u64> {
    let mut starts = BTreeMap::new();
    for batch in devices.iter().flat_map(|scan| &scan.batches) {
        let lsn = batch.header.first_lsn.saturating_sub(1);
        starts.entry(batch.header.run).and_modify(|start: &mut u64| *start = lsn.min(*start)).or_insert(lsn);
    }
    starts
}

/// How far records are there without a gap, from `floor` on: the last lsn, and the positions of their batches.
fn contiguous(live: &[(u64, u64, usize, usize)], floor: u64) -> (u64, std::ops::Range<usize>) {
    let start = live.partition_point(|(_, next, ..)| *next <= floor);
    let (mut reach, mut end) = (floor.saturating_sub(1), start);
    for (first, next, ..) in &live[start..] {
        if *first > reach + 1 {
            break;
        }
        reach = next - 1;
        end += 1;
    }
    (reach, start..end)
}

fn lost(devices: &[DeviceScan], what: String) -> Error {
    let mut message = what;
    for scan in devices {
        message += &format!("; whole batches end in {}", scan.end_place());
        if let Some(missing) = &scan.missing {
            message += &format!("; {missing}");
        }
        for path in &scan.unreadable {
            message += &format!("; {} at offset 0: unreadable header", path.display());
        }
    }
    Error::corrupt(message)
}
