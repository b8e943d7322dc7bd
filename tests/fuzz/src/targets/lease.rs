use std::collections::HashMap;
use std::sync::Arc;

use prost::Message;
use sextant_common::ids::{Epoch, Generation, ManifestVersion, PartitionId, Serial, TableId};
use sextant_common::manifest::Manifest;
use sextant_environment::clock::WallInterval;
use sextant_environment::config::LeaseMode;
use sextant_memtable_server::lease::desk::{Answer, LeaseDesk, Position};
use sextant_memtable_server::lease::grantor::{HolderId, Now};
use sextant_memtable_server::lease::ring::Run;
use sextant_memtable_server::publication::Permission;
use sextant_proto::v1;
use sextant_simulated::ManualClock;

use super::wire::{PROTOBUF_BASE, PROTOBUF_PER_BYTE};
use crate::input::Input;
use crate::memory::bounded;

const TERM: u64 = 3;
const LEASE_NS: u64 = 300_000_000;

/// What was promised, kept in the simplest way.
#[derive(Default)]
struct Promises {
    /// Holder, serial, expiry.
    grants: Vec<(HolderId, u64, u64)>,
    acknowledged: HashMap<HolderId, u64>,
}

impl Promises {
    fn forbid(&self, serial: u64, now_ns: u64) -> bool {
        self.grants.iter().any(|(holder, at, expiry)| {
            *at < serial
                && now_ns < *expiry
                && self.acknowledged.get(holder).is_none_or(|acknowledged| *acknowledged < serial)
        })
    }
}

/// Steps at a lease desk: pulls with any position, bf-log entries, time, and questions whether a group may be published.
pub fn pulls(data: &[u8]) {
    let epoch = Epoch { term: TERM, incarnation: 1 };
    let desk = LeaseDesk::default();
    desk.open(epoch, LeaseMode::Ack, 500);
    let mut manifest = Manifest::empty(PartitionId(0));
    desk.set_manifest(Arc::new(manifest.clone()).into());
    let mut promises = Promises::default();
    let mut now_ns = 1_000_000_000;
    let mut input = Input::new(data);
    while !input.is_empty() {
        let now = Now { mono_ns: now_ns, wall: WallInterval::UNSYNCHRONISED };
        let newest = desk.serial().0;
        match input.u8() % 8 {
            0 => now_ns += u64::from(input.u16()) * 10_000,
            1 => {
                let entries = 0..input.u8() % 8;
                let (table, generation) = (TableId(1), Generation(1));
                desk.push([match input.u8() % 4 {
                    0 => Run::Freeze { table, generation },
                    1 => Run::Invalidated { slots: entries.map(u32::from).collect() },
                    _ => Run::Bits { table, generation, hashes: entries.map(u64::from).collect() },
                }]);
            }
            2 => {
                manifest.version.0 += 1;
                desk.set_manifest(Arc::new(manifest.clone()).into());
            }
            3 => {
                let serial = newest.saturating_sub(u64::from(input.u8() % 4));
                if desk.may_publish(Serial(serial), now) == Permission::Granted {
                    assert!(!promises.forbid(serial, now_ns), "serial {serial} against a live lease");
                }
            }
            4 => {
                let holder = [input.u8() % 4; 16];
                desk.release(holder);
                promises.grants.retain(|(of, ..)| *of != holder);
            }
            _ => pull(&desk, &mut input, now, &mut promises),
        }
    }
}

fn pull(desk: &LeaseDesk, input: &mut Input<'_>, now: Now, promises: &mut Promises) {
    let holder = [input.u8() % 4; 16];
    let newest = desk.serial();
    let shape = input.u8();
    // Mostly a position that fits; sometimes any.
    let serial =
        if shape & 1 == 0 { newest.0.saturating_sub(u64::from(input.u8() % 8)) } else { input.u64() };
    let incarnation = if shape & 6 == 6 { input.u64() } else { 1 };
    let version = if shape & 8 == 0 { 0 } else { input.u64() };
    let position = Position {
        epoch: Epoch { term: TERM, incarnation },
        serial: Serial(serial),
        manifest: ManifestVersion(version),
        digest: None,
        has_filters: shape & 48 != 48,
    };
    desk.hear(holder, &position, now);
    if position.has_filters && incarnation == 1 {
        let acknowledged = promises.acknowledged.entry(holder).or_default();
        *acknowledged = (*acknowledged).max(serial.min(newest.0));
        // A holder that has moved on gives up what it was granted further back.
        let acknowledged = *acknowledged;
        promises.grants.retain(|(of, at, _)| *of != holder || *at >= acknowledged);
    }
    let length = if shape & 64 == 0 { LEASE_NS } else { u64::from(input.u32()) };
    let Answer::News(news) = desk.answer(holder, &position, Some((TERM, length)), now) else { return };
    let serials: u64 = news.runs.iter().map(Run::serials).sum();
    assert_eq!(news.from.0 + serials, news.to.0, "the entries do not lead where the answer says");
    assert_eq!((news.from, news.to), (position.serial, newest));
    if let Some(lease) = news.lease {
        assert!(lease.expiry_mono_ns >= now.mono_ns);
        promises.grants.push((holder, news.to.0, lease.expiry_mono_ns));
    }
}

pub fn pull_seeds() -> Vec<Vec<u8>> {
    vec![
        // Entries, a pull that fits, more entries, and the question before and after the expiry.
        vec![1, 3, 1, 5, 0, 0, 0, 1, 2, 1, 3, 0, 0, 255, 255, 3, 0],
        // Two holders; one acknowledges.
        vec![1, 4, 0, 5, 1, 0, 0, 5, 2, 0, 0, 1, 1, 1, 5, 1, 0, 0, 3, 0, 4, 2, 3, 0],
        // Positions beyond everything.
        vec![1, 2, 1, 5, 0, 1, 255, 255, 255, 255, 255, 255, 255, 255, 5, 0, 9, 1, 0, 0, 0, 0, 0, 0, 0, 9, 9],
    ]
}

/// Messages of a stream of pull replies: length u16 (little-endian), `PullReply`.
pub fn replies(data: &[u8]) {
    let mut input = Input::new(data);
    let mut replies = Vec::new();
    while !input.is_empty() {
        let length = usize::from(input.u16());
        if let Ok(reply) = v1::PullReply::decode(input.take(length)) {
            replies.push(reply);
        }
    }
    // Filters start at 3 KiB a memtable that an entry names, whatever the number of its entries.
    bounded(data.len(), PROTOBUF_BASE, PROTOBUF_PER_BYTE + 4096, || {
        sextant_pnode::fuzzing::take_replies(&ManualClock::default(), replies);
    });
}

pub fn reply_seeds() -> Vec<Vec<u8>> {
    let run = |generation: u64, freeze: bool, hashes: &[u64]| v1::BfRun {
        table: 1,
        generation,
        freeze,
        hashes: hashes.iter().flat_map(|hash| hash.to_le_bytes()).collect::<Vec<_>>().into(),
        ..v1::BfRun::default()
    };
    let invalidated = |slots: &[u32]| v1::BfRun {
        slots: slots.iter().flat_map(|slot| slot.to_le_bytes()).collect::<Vec<_>>().into(),
        ..v1::BfRun::default()
    };
    let ticks = |ticks: u64| v1::BfRun { tick: 1_700_000_000_100, ticks, ..v1::BfRun::default() };
    let epoch = Some(v1::Epoch { term: 3, incarnation: 1 });
    let update = |status: v1::PartitionStatus, from: u64, to: u64, runs| v1::PartitionUpdate {
        partition: 3,
        status: status.into(),
        epoch,
        serial_from: from,
        serial_to: to,
        runs,
        manifest: Some((&super::wire::sample_manifest(PartitionId(3))).into()),
        lease: Some(v1::LeaseGrant {
            manifest_version: 5,
            expiry_mono_ns: 1 << 40,
            expiry_wall_ns: 0,
            drift_ppm: 500,
            mode: v1::LeaseMode::Ack.into(),
        }),
        leader: Some(v1::LeaderHint { partition: 3, node: 1, term: 3 }),
        published_tick: 1_700_000_000_000 + from,
        manifest_news: Some(v1::ManifestNews {
            partition: 3,
            version: 6,
            digest: 1,
            changes: vec![(&super::wire::sample_change()).into()],
        }),
    };
    let reply = |pull: u64, updates| v1::PullReply {
        pull,
        parked_ns: 1000,
        server_mono_ns: 1 << 39,
        updates,
        server_boot: 7,
    };
    use v1::PartitionStatus as S;
    let messages = [
        reply(1, vec![update(S::PartitionNeedFilters, 0, 10, vec![])]),
        reply(2, vec![update(S::PartitionOk, 10, 12, vec![run(3, false, &[5, 6])])]),
        reply(3, vec![update(S::PartitionOk, 12, 14, vec![run(4, true, &[]), run(4, false, &[7])])]),
        reply(3, vec![update(S::PartitionOk, 14, 16, vec![invalidated(&[1, 70])])]),
        reply(3, vec![update(S::PartitionOk, 16, 16 + 2, vec![ticks(2)])]),
        reply(3, vec![update(S::PartitionOk, 16, 16, vec![ticks(u64::MAX), ticks(1)])]),
        reply(
            4,
            vec![update(S::PartitionThrottled, 16, 16, vec![]), update(S::PartitionNotLeader, 0, 0, vec![])],
        ),
    ];
    let mut extreme = reply(5, vec![update(S::PartitionOk, 10, u64::MAX, vec![run(u64::MAX, true, &[])])]);
    (extreme.parked_ns, extreme.server_mono_ns) = (u64::MAX, 0);
    for update in &mut extreme.updates {
        update.lease = Some(v1::LeaseGrant {
            drift_ppm: 500,
            manifest_version: u64::MAX,
            expiry_mono_ns: u64::MAX,
            expiry_wall_ns: u64::MAX,
            mode: v1::LeaseMode::Timed.into(),
        });
        update.serial_from = u64::MAX;
    }
    let framed = |message: &v1::PullReply| {
        let bytes = message.encode_to_vec();
        [&(bytes.len() as u16).to_le_bytes()[..], &bytes].concat()
    };
    let stream: Vec<u8> = messages.iter().flat_map(framed).collect();
    let mut seeds: Vec<Vec<u8>> = messages.iter().map(framed).collect();
    seeds.push([stream.clone(), framed(&extreme)].concat());
    seeds.push(stream);
    seeds
}
