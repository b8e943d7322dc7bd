use proptest::prelude::*;

use super::*;
use crate::ids::{Epoch, NodeId, PartitionId};
use crate::key_range::KeyRange;
use crate::manifest::{Expiring, Generations};

const T: TableId = TableId(1);
const U: TableId = TableId(2);

pub fn sst(counter: u32, range: KeyRange) -> SstMeta {
    let id =
        SstId { partition: PartitionId(0), plan: LogPosition::default(), epoch: Epoch::default(), counter };
    SstMeta {
        id,
        table: T,
        records: 1,
        tombstones: 0,
        min_key: Bytes::from_static(b"a"),
        max_key: Bytes::from_static(b"z"),
        min_seq: 1,
        max_seq: 2,
        file_bytes: 100,
        checksum: u64::from(counter),
        generations: Generations::default(),
        range,
        expiring: Expiring::default(),
        replicas: vec![NodeId(1)],
    }
}

/// What a command does to a manifest.
#[derive(Clone, Debug)]
enum Step {
    Flush(bool),
    /// So many entries from a place on become so many.
    Compact(usize, usize, usize),
    /// Apart: entries at two places go, and one comes.
    CompactApart(usize, usize),
    Place(usize, u64),
    Create,
    /// Everything at once: a list that shares nothing with the one before.
    Rebuild(usize),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => any::<bool>().prop_map(Step::Flush),
        2 => (0usize..400, 0usize..9, 0usize..9).prop_map(|(at, out, new)| Step::Compact(at, out, new)),
        2 => (0usize..400, 0usize..400).prop_map(|(a, b)| Step::CompactApart(a, b)),
        2 => (0usize..400, 1u64..9).prop_map(|(at, node)| Step::Place(at, node)),
        1 => Just(Step::Create),
        1 => (0usize..400).prop_map(Step::Rebuild),
    ]
}

fn stepped(before: &Manifest, step: &Step, counter: &mut u32) -> Manifest {
    let mut new = || {
        *counter += 1;
        sst(*counter, KeyRange::all())
    };
    let mut next = before.clone();
    next.version.0 += 1;
    let version = next.version;
    let ids = next.tables.len() as u32;
    let table = next.table_mut(T).unwrap();
    let len = table.ssts.len();
    match *step {
        Step::Flush(is_empty) => {
            let added = (!is_empty).then(&mut new);
            table.flushed_generation.0 += 1;
            table.last_flush_version = version;
            table.persisted.index += 7;
            let id = added.as_ref().map(|sst| sst.id);
            added.into_iter().for_each(|sst| table.ssts.insert(0, sst));
            next.remember_flush(FlushRecord { version, table: T, id });
        }
        Step::Compact(at, out, added) => {
            let added: Vec<_> = (0..added).map(|_| Arc::new(new())).collect();
            table.ssts.splice(at.min(len), out, added);
        }
        Step::CompactApart(a, b) if a < b && b < len => {
            table.ssts.splice(b, 1, [Arc::new(new())]);
            table.ssts.splice(a, 1, []);
        }
        Step::Place(at, node) if at < len => {
            let mut moved = table.ssts[at].clone();
            moved.replicas.push(NodeId(node));
            table.ssts.splice(at, 1, [Arc::new(moved)]);
        }
        Step::Create => {
            next.tables.push(TableManifest::new(
                TableId(ids + 1),
                format!("t{ids}"),
                TableOptions::default(),
            ));
        }
        Step::Rebuild(at) => table.ssts.edit(|all| {
            let middle = at.min(all.len());
            all.rotate_left(middle);
            all.truncate(300);
        }),
        _ => {}
    }
    next
}

fn founded(ssts: usize) -> Manifest {
    let mut manifest = Manifest::empty(PartitionId(0));
    let mut table = TableManifest::new(T, "default".into(), TableOptions::default());
    table.ssts = (0..ssts as u32).map(|at| sst(1_000_000 + at, KeyRange::all())).collect();
    manifest.tables.push(table);
    manifest
}

/// The digest of the same content, put together anew.
fn computed(manifest: &Manifest) -> ManifestDigest {
    let mut anew = manifest.clone();
    anew.tables.iter_mut().for_each(|table| table.ssts = table.ssts.to_vec().into());
    anew.digest()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whoever_follows_changes_has_the_leaders_manifest(
        ssts in 0usize..500,
        steps in prop::collection::vec(any_step(), 1..40),
    ) {
        let (mut leader, mut counter) = (founded(ssts), 0);
        let mut follower = leader.clone();
        for step in &steps {
            let next = stepped(&leader, step, &mut counter);
            let change = ManifestChange::between(&leader, &next).unwrap();
            follower = follower.changed(&change).unwrap();
            prop_assert_eq!(&follower, &next);
            prop_assert_eq!(follower.digest(), computed(&next));
            prop_assert_eq!(follower.changed(&change), Err(Mismatch::OtherVersion), "twice");
            leader = next;
        }
    }

    #[test]
    fn a_change_for_another_manifest_is_noticed(
        ssts in 1usize..300,
        ours in any_step(),
        theirs in any_step(),
        next in any_step(),
    ) {
        let (founded, mut counter) = (founded(ssts), 0);
        let leader = stepped(&founded, &ours, &mut counter);
        let other = stepped(&founded, &theirs, &mut counter);
        let next = stepped(&leader, &next, &mut counter);
        let change = ManifestChange::between(&leader, &next).unwrap();
        match other.changed(&change) {
            // (A change may replace all that is different.)
            Ok(changed) => prop_assert_eq!(&changed, &next),
            Err(_) => prop_assert_ne!(&other, &leader),
        }
    }

    #[test]
    fn equal_digests_are_of_equal_manifests(
        ssts in 0usize..200,
        one in prop::collection::vec(any_step(), 1..6),
        two in prop::collection::vec(any_step(), 1..6),
    ) {
        let made = |steps: &[Step]| {
            let mut counter = 0;
            steps.iter().fold(founded(ssts), |before, step| stepped(&before, step, &mut counter))
        };
        let (one, two) = (made(&one), made(&two));
        prop_assert_eq!(one == two, one.digest() == two.digest());
    }
}

#[test]
fn the_order_of_a_list_is_in_its_digest() {
    let (mut one, mut two) = (founded(3), founded(3));
    assert_eq!(one.digest(), two.digest());
    two.tables[0].ssts.edit(|all| all.swap(0, 1));
    assert_ne!(one.digest(), two.digest());
    one.tables[0].ssts.edit(|all| all.swap(0, 1));
    assert_eq!(one.digest(), two.digest());
}

#[test]
fn a_flush_among_many_is_a_small_change() {
    let before = founded(10_000);
    let change = ManifestChange::between(&before, &stepped(&before, &Step::Flush(false), &mut 0)).unwrap();
    assert_eq!(change.tables[0].edits.len(), 1);
    assert!(change.weight() < 1000, "{}", change.weight());
}

#[test]
fn what_is_not_there_is_not_changed() {
    let before = founded(3);
    let mut change =
        ManifestChange::between(&before, &stepped(&before, &Step::Flush(false), &mut 0)).unwrap();
    let sound = change.clone();
    for (place, removed) in [(4, 0), (3, 1), (usize::MAX, 1), (0, usize::MAX)] {
        let edit = &mut change.tables[0].edits[0];
        (edit.place, edit.removed) = (place, removed);
        assert_eq!(before.changed(&change), Err(Mismatch::DoesNotFit));
    }
    let overlapping = ManifestChange {
        tables: vec![TableChange {
            edits: [(1, 1), (0, 2)]
                .map(|(place, removed)| ListEdit { place, removed, added: vec![] })
                .to_vec(),
            ..sound.tables[0].clone()
        }],
        ..sound.clone()
    };
    assert_eq!(before.changed(&overlapping), Err(Mismatch::DoesNotFit));
    let unknown = TableChange { table: U, ..sound.tables[0].clone() };
    assert_eq!(
        before.changed(&ManifestChange { tables: vec![unknown], ..sound.clone() }),
        Err(Mismatch::DoesNotFit)
    );
    let forgotten = ManifestChange { flushes_forgotten: 1, ..sound };
    assert_eq!(before.changed(&forgotten), Err(Mismatch::DoesNotFit));
}

#[test]
fn a_table_that_is_gone_is_no_change() {
    let before = founded(1);
    let after = Manifest { version: ManifestVersion(1), tables: vec![], ..before.clone() };
    assert_eq!(ManifestChange::between(&before, &after), None);
}
