//! The replicated configuration, and changes of it under load.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sextant_common::ErrorKind;
use sextant_environment::Env;
use sextant_environment::config::LeaseConfig;
use sextant_environment::env::error_of;
use sextant_memtable_server::Tuning;
use sextant_proto::v1;

use crate::servers::*;
use crate::support::eventually;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_configuration_is_replicated_and_outlives_the_files() {
    let mut c = Cluster::start(1).await;
    c.create_table(0).await;
    let configure = async |c: &Cluster, request: v1::ConfigureRequest| {
        eventually(async || {
            let leader = c.leader(0).await;
            match c.admin(leader).configure(request.clone()).await.map_err(error_of) {
                Ok(reply) if reply.get_ref().done == [0] => Some(Ok(reply.into_inner())),
                Err(e) if e.kind == ErrorKind::Invalid => Some(Err(e)),
                _ => None,
            }
        })
        .await
    };
    // Whether all servers say so.
    let agreed =
        async |c: &Cluster, revision: u64, lease_ms: u64, leader_lease_ms: u64, memory_bytes: u64| {
            eventually(async || {
                let same = (0..3).all(|i| {
                    let status = c.status(i);
                    let is = |name: &str| status["partitions"][0]["configuration"][name].as_u64().unwrap();
                    is("revision") == revision
                        && is("lease_ms") == lease_ms
                        && is("leader_lease_ms") == leader_lease_ms
                        && is("memory_bytes") == memory_bytes
                });
                same.then_some(())
            })
            .await
        };
    let memory = Tuning::default().memory_bytes;
    // The second settles the format.
    agreed(&c, 2, 300, 400, memory).await;
    let shorter =
        v1::ConfigureRequest { lease_ms: Some(150), leader_lease_ms: Some(200), ..Default::default() };
    assert!(configure(&c, shorter).await.unwrap().errors.is_empty());
    agreed(&c, 3, 150, 200, memory).await;
    let longer = v1::ConfigureRequest { leader_lease_ms: Some(500), ..Default::default() };
    assert!(configure(&c, longer).await.unwrap().errors.is_empty());
    agreed(&c, 4, 150, 500, memory).await;
    let refused = v1::ConfigureRequest { lease_ms: Some(501), ..Default::default() };
    let refused = configure(&c, refused).await.unwrap_err();
    assert!(refused.message.contains("lease_ms"), "{refused}");
    let smaller = v1::ConfigureRequest { memory_bytes: Some(1 << 20), ..Default::default() };
    assert!(configure(&c, smaller).await.unwrap().errors.is_empty());
    agreed(&c, 5, 150, 500, 1 << 20).await;
    assert_eq!(c.write(put(0, "k", "v")).await.status(), v1::WriteStatus::WriteOk);
    for i in 0..3 {
        c.stop_one(i).await;
    }
    for i in 0..3 {
        c.start_one(i).await;
    }
    // The files still say 300, 400 and the default.
    agreed(&c, 5, 150, 500, 1 << 20).await;
    assert_eq!(c.read(0, "k").await.value, bytes("v"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_mode_and_drift_bound_under_load_hold_up_no_publication() {
    // Each change begins a new ring. The group that was on its way into the log just then kept its serial of the old one, and
    // waited for holders to acknowledge what the new ring might reach in days.
    const PARTITIONS: u32 = 2;
    const WRITERS: u32 = 12;
    let env = Env { probe: Some(Arc::new(HoldsUpProposals)), ..Env::real() };
    // There is nearly always a group on its way, also when the change is committed.
    let tuning = Tuning { groups_in_flight: 64, ..Tuning::default() };
    let c = Cluster::start_on(vec![env; 3], PARTITIONS, tuning, LeaseConfig::default()).await;
    for partition in 0..PARTITIONS {
        c.create_table(partition).await;
    }
    let held: Vec<Held> = (0..PARTITIONS).map(|_| Held::default()).collect();
    let written: Vec<AtomicU64> = (0..PARTITIONS).map(|_| AtomicU64::new(0)).collect();
    let (mut holders, mut writers) = (Vec::new(), Vec::new());
    for partition in 0..PARTITIONS {
        let at = partition as usize;
        holders.push(c.hold(partition, &held[at]));
        writers.extend((0..WRITERS).map(|w| c.keep_writing(partition, w, &written[at])));
    }
    let changes = async {
        for round in 0..9 {
            // Each differs from the one before.
            let mode = if round % 3 == 2 { v1::LeaseMode::Timed } else { v1::LeaseMode::Ack };
            let drift_ppm = if round % 2 == 0 { 600 } else { 500 };
            let change = v1::ConfigureRequest {
                lease_mode: Some(mode.into()),
                drift_ppm: Some(drift_ppm),
                ..Default::default()
            };
            eventually(async || {
                let mut done = BTreeSet::new();
                for i in 0..3 {
                    done.extend(c.admin(i).configure(change.clone()).await.ok()?.into_inner().done);
                }
                (done.len() == PARTITIONS as usize).then_some(())
            })
            .await;
            let before: Vec<u64> = written.iter().map(|w| w.load(Ordering::Relaxed)).collect();
            eventually(async || {
                let goes_on = |(now, before): (&AtomicU64, &u64)| now.load(Ordering::Relaxed) > before + 60;
                written.iter().zip(&before).all(goes_on).then_some(())
            })
            .await;
            // The mode travels with the leases.
            let told = |h: &Held| h.mode.load(Ordering::Relaxed) == mode as i32;
            eventually(async || held.iter().all(told).then_some(())).await;
        }
        assert!(held.iter().all(|h| h.acknowledged.load(Ordering::Relaxed) > 0), "somebody was waited for");
    };
    tokio::select! {
        () = changes => {}
        _ = futures::future::join_all(holders) => unreachable!("they hold for ever"),
        _ = futures::future::join_all(writers) => unreachable!("they write for ever"),
    }
}
