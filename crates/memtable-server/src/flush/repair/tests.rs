//! What is an orphan, what a new server waits for, and who is waited for.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sextant_common::cut::{Cut, CutTable};
use sextant_common::ids::{LogPosition, ManifestVersion, PartitionId, TableId};
use sextant_common::manifest::TableManifest;
use sextant_environment::config::Zone;

use super::*;
use crate::flush::fakes::{HANGS, Tier};
use crate::partition::testing;

pub fn sst(counter: u32, replicas: &[u64]) -> SstMeta {
    let replicas = replicas.iter().map(|id| NodeId(*id)).collect();
    SstMeta { checksum: u64::from(counter), replicas, ..testing::sst(counter) }
}

pub fn held(sst: &SstMeta) -> Held {
    Held { id: sst.id, checksum: sst.checksum, damaged: false, lineage: Some(7) }
}

pub fn manifest(ssts: Vec<SstMeta>) -> Manifest {
    let version = ManifestVersion(1);
    Manifest {
        partition: PartitionId(0),
        version,
        tables: vec![TableManifest {
            table: TableId(1),
            name: "t".into(),
            options: Default::default(),
            flushed_generation: Default::default(),
            last_flush_version: version,
            persisted: LogPosition::default(),
            ssts: ssts.into(),
        }],
        recent_flushes: Vec::new(),
        flushes_known_after: version,
    }
}

#[test]
fn nothing_is_deleted_while_copies_of_what_the_manifest_names_are_missing() {
    let (compacted, other) = (sst(9, &[1, 2, 3]), sst(4, &[1, 2]));
    let manifest = manifest(vec![other.clone(), compacted.clone()]);
    let both = || vec![held(&other), held(&compacted)];
    let judged = |servers: [Option<Vec<Held>>; 3]| {
        let ids = (1..).map(NodeId);
        let answered: Vec<(NodeId, Vec<Held>)> =
            ids.zip(servers).filter_map(|(id, held)| Some((id, held?))).collect();
        let answered: Vec<(NodeId, &[Held])> =
            answered.iter().map(|(id, held)| (*id, held.as_slice())).collect();
        all_copies_are_there(&manifest, &answered, 2)
    };
    assert!(judged([Some(both()), Some(both()), Some(vec![held(&compacted)])]));
    // One server has the only copy of a compaction's result.
    assert!(!judged([Some(both()), Some(vec![held(&other)]), Some(vec![])]));
    assert!(judged([Some(both()), Some(both()), Some(vec![])]), "the third one may have no room for its own");
    // A damaged copy is none, nor is one with another checksum.
    let damaged = vec![held(&other), Held { damaged: true, ..held(&compacted) }];
    assert!(!judged([Some(both()), Some(vec![held(&other)]), Some(damaged)]));
    let another = vec![Held { checksum: 1, ..held(&compacted) }];
    assert!(!judged([Some(both()), Some(vec![held(&other)]), Some(another)]));
    // A server that is away holds nothing up, unless too few copies are known to be there without it.
    assert!(judged([Some(both()), Some(both()), None]));
    assert!(
        !judged([Some(both()), None, Some(vec![held(&compacted)])]),
        "one copy of the other table is known"
    );
    assert!(!judged([Some(both()), None, None]));
}

fn server(id: u64, held: Option<&[Held]>) -> Found<'_> {
    let zone = Zone::Own(NodeId(id));
    Found { id: NodeId(id), zone, held, is_lost: false, is_draining: false, is_failing: false }
}

#[test]
fn a_new_server_does_not_wait_for_who_is_lost_or_cannot_copy_but_for_itself() {
    let manifest = manifest(vec![sst(1, &[1, 2, 3]), sst(2, &[1, 2, 3])]);
    let one = [held(&sst(1, &[]))];
    let both = [held(&sst(1, &[])), held(&sst(2, &[]))];
    let waits = |found: &[Found<'_>]| {
        let told = waited_for(&manifest, found, 3);
        found.iter().map(|server| told[&server.id]).collect::<Vec<u32>>()
    };
    let (first, new) = (server(1, Some(&both)), server(2, Some(&both)));
    assert_eq!(waits(&[first, new, server(3, None)]), [2, 2, 2], "it may come back");
    assert_eq!(waits(&[first, new, Found { is_lost: true, ..server(3, None) }]), [0, 0, 0]);
    // Its disk is full; of what it has, it counts.
    let full = Found { is_failing: true, ..server(3, Some(&one)) };
    assert_eq!(waits(&[first, new, full]), [0, 0, 1]);
    assert_eq!(waits(&[first, server(2, Some(&[])), full]), [2, 2, 2]);
    // Who is silent has failed because of that.
    assert_eq!(waits(&[first, new, Found { is_failing: true, ..server(3, None) }]), [2, 2, 2]);
    // What is nowhere else may be on a lost one: for that all wait.
    let (here, lost) = (server(1, Some(&one)), Found { is_lost: true, ..server(3, None) });
    assert_eq!(waits(&[here, server(2, Some(&one)), lost]), [1, 1, 1]);
    assert_eq!(waits(&[here, server(2, Some(&[])), lost]), [2, 2, 2]);
    // A server that is to become empty is there until it is.
    assert_eq!(waits(&[first, new, Found { is_draining: true, ..server(3, Some(&one)) }]), [1, 1, 1]);
}

#[test]
fn a_new_server_waits_for_what_can_be_copied_and_for_who_is_silent() {
    let manifest = manifest(vec![sst(1, &[1, 2]), sst(2, &[1, 2])]);
    let (one, other) = (held(&sst(1, &[])), held(&sst(2, &[])));
    let both = vec![one.clone(), other.clone()];
    let waits = |servers: [Option<&[Held]>; 2], replicas| {
        let found: Vec<Found<'_>> = (1..).zip(servers).map(|(id, held)| server(id, held)).collect();
        let told = waited_for(&manifest, &found, replicas);
        assert_eq!(told[&NodeId(1)], told[&NodeId(2)], "each waits for all");
        told[&NodeId(1)]
    };
    assert_eq!(waits([Some(&both), Some(&[])], 2), 2);
    assert_eq!(waits([Some(&both), Some(std::slice::from_ref(&one))], 2), 1);
    assert_eq!(waits([Some(&both), Some(&both)], 2), 0);
    assert_eq!(waits([Some(&both), Some(&both)], 3), 0, "there are no more servers");
    // Damaged wherever it was: nobody can copy it. But who is silent may have it.
    let damaged = vec![one.clone(), Held { damaged: true, ..other.clone() }];
    assert_eq!(waits([Some(&damaged), Some(&damaged)], 2), 0);
    assert_eq!(waits([Some(&damaged), None], 2), 2);
}

#[tokio::test]
async fn a_server_that_hangs_is_left_for_another_round_and_the_others_copy_meanwhile() {
    let tier = Tier::start(0).await;
    tier.told.hangs.store(2, Ordering::SeqCst);
    let (one, two) = (sst(1, &[1, 2, 3]), sst(2, &[1, 2, 3]));
    let manifest = manifest(vec![one.clone(), two.clone()]);
    let all = [held(&one), held(&two)];
    let copied = async |memory: &mut Memory, with_first: bool| {
        let failing = tier.background.failing();
        let of =
            |id: u64, held| Found { is_failing: failing.contains(&NodeId(id)), ..server(id, Some(held)) };
        let found = [of(1, if with_first { &all[..] } else { &[] }), of(2, &[]), of(3, &all)];
        tokio::time::timeout(HANGS, memory.copy(&tier.background, &manifest, &found)).await.unwrap();
        let mut copied = tier.told.copies.lock();
        std::mem::take(&mut *copied)
    };
    let mut memory = Memory { term: tier.background.shared.serving().unwrap(), ..Memory::default() };
    let first = copied(&mut memory, false).await;
    assert_eq!(first.iter().filter(|(server, _)| *server == 1).count(), 2, "{first:?}");
    // As long as others have to copy, it is not waited for; then it is asked again.
    memory.rests_until_ns = 0;
    let second = copied(&mut memory, false).await;
    assert!(second.len() == 2 && second.iter().all(|(server, _)| *server == 1), "{second:?}");
    tier.told.hangs.store(0, Ordering::SeqCst);
    let third = copied(&mut memory, true).await;
    assert!(third.len() == 2 && third.iter().all(|(server, _)| *server == 2), "{third:?}");
}

/// (A new server that heard of nothing that is lacking would believe for good that it has what it needs.)
#[tokio::test]
async fn what_a_round_has_found_is_said_once() {
    let tier = Tier::start(0).await;
    let lacking = HashMap::from([(NodeId(1), 0), (NodeId(2), 7)]);
    let mut memory = Memory { term: 1, lacking, ..Memory::default() };
    inventories(&tier.background, &mut memory).await;
    let mut said = std::mem::take(&mut *tier.told.lacking.lock());
    said.sort_unstable();
    assert_eq!(said, [(1, Some(0)), (2, Some(7)), (3, Some(u32::MAX))]);
    // That round came to no end: its leader served no more.
    inventories(&tier.background, &mut memory).await;
    assert!(tier.told.lacking.lock().iter().all(|(_, said)| *said == Some(u32::MAX)));
}

#[test]
fn a_server_is_silent_only_as_long_as_it_is_asked() {
    let mut memory = Memory { silent: HashMap::from([(NodeId(1), 100)]), ..Memory::default() };
    memory.goes_on(200);
    assert_eq!(memory.silent[&NodeId(1)], 100);
    memory.rests_since_ns = Some(300);
    memory.goes_on(1_000);
    memory.goes_on(2_000);
    assert_eq!(memory.silent[&NodeId(1)], 800);
}

#[tokio::test]
async fn what_somebody_else_deleted_is_no_orphan_any_more() {
    let background = Tier::start(0).await.background;
    let (mut orphans, gone) = (HashMap::new(), Held { lineage: None, ..held(&sst(5, &[])) });
    let mut judge = |held: &[Held]| {
        judge_orphans(&background, NodeId(1), u64::MAX, held, &mut orphans, 7);
        orphans.len()
    };
    assert_eq!(judge(&[gone]), 1);
    assert_eq!(judge(&[]), 0);
}

#[test]
fn what_a_cut_names_is_no_orphan_and_no_surplus() {
    let (replaced, moved) = (sst(1, &[1, 2]), sst(2, &[1, 3]));
    let manifest = manifest(vec![sst(2, &[2, 3])]);
    let table = CutTable {
        table: TableId(1),
        name: "t".into(),
        options: Default::default(),
        generation: Default::default(),
        ssts: Some(vec![replaced.clone(), moved.clone()].into()),
    };
    let cut = Cut {
        id: 1,
        at: 1,
        seq: Default::default(),
        tick: Default::default(),
        opened_ms: 0,
        lease_ms: 1,
        tables: vec![table],
        term: 1,
        lineage: 1,
    };
    let mut view = ReadView::empty(Arc::new(manifest).into());
    assert!(!named(&view).contains(&replaced.id));
    view.cuts = Arc::new([cut.into()]);
    let named = named(&view);
    assert!(named.contains(&replaced.id) && named.contains(&moved.id) && !named.contains(&sst(3, &[]).id));
    let cut = &view.cuts[0];
    assert!(cut.names_at(moved.id, NodeId(1)) && !cut.names_at(moved.id, NodeId(2)));
}
