//! What becomes of compactions whose servers fail.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use sextant_common::ids::{Epoch, LogPosition, TableId};
use sextant_common::key_range::KeyRange;
use sextant_common::manifest::{Generations, Origin};

use super::*;
use crate::flush::fakes::{HANGS, SERVERS, Tier};
use crate::partition::testing::sst;

fn job() -> CompactionJob {
    let input = SstMeta { replicas: (1..=SERVERS).map(NodeId).collect(), file_bytes: 1000, ..sst(1) };
    CompactionJob {
        term: 3,
        epoch: Epoch { term: 3, incarnation: 1 },
        table: TableId(1),
        options: Default::default(),
        inputs: vec![input],
        plan: LogPosition { term: 3, index: 9 },
        expired_by: Default::default(),
        origin: Origin {
            lineage: 7,
            name: "t".into(),
            generations: Generations::new(1, 1),
            range: KeyRange::all(),
        },
        drops_tombstones: true,
        cuts: Vec::new(),
        output_bytes: 1000,
    }
}

#[tokio::test]
async fn another_worker_uses_other_ids_since_the_first_may_still_write_what_it_was_told() {
    let mut tier = Tier::start(1).await;
    let outputs = run(&tier.background, &job()).await.unwrap();
    let asked = tier.told.compactions.lock().clone();
    let [first, second] = &asked[..] else { panic!("{asked:?}") };
    assert!(first.iter().all(|id| !second.contains(id)), "{asked:?}");
    assert_eq!((outputs.len(), outputs[0].id), (1, second[0]));
    assert_eq!(tier.pending(), [second[0]], "of the others nobody waits for anything");
    assert_eq!(tier.deleted_of(1).await, first.iter().copied().collect());
}

#[test]
fn there_are_ids_for_what_ends_for_its_bytes_and_for_what_ends_for_its_hashes() {
    let with = |records, filter_prefix, output_bytes| {
        let mut job = CompactionJob { output_bytes, ..job() };
        job.inputs[0].records = records;
        job.options.filter_prefix = filter_prefix;
        outputs_max(&job)
    };
    // A thousand bytes, four thousand if they were compressed.
    assert_eq!(with(0, 0, 0), 1);
    assert_eq!(with(0, 0, 1000), 4 + IDS_TO_SPARE);
    // A byte a record.
    assert_eq!(with(1000, 0, 1000), 4 + 64 + IDS_TO_SPARE);
    assert_eq!(with(500, 9, 1000), 4 + 64 + IDS_TO_SPARE);
    assert_eq!(with(1000, 0, 100), COMPACTION_OUTPUTS_MAX);
}

#[tokio::test]
async fn what_no_worker_has_made_is_given_up() {
    let mut tier = Tier::start(usize::MAX).await;
    assert!(run(&tier.background, &job()).await.unwrap_err().message.contains("too few sstable servers"));
    let asked = tier.told.compactions.lock().clone();
    let all: BTreeSet<SstId> = asked.iter().flatten().copied().collect();
    assert_eq!(asked.len(), SERVERS as usize);
    assert_eq!(all.len(), asked.iter().map(Vec::len).sum::<usize>(), "no id was given twice");
    assert_eq!(tier.pending(), []);
    assert_eq!(tier.background.failing().len(), SERVERS as usize, "others are asked first, next time");
    assert_eq!(tier.deleted_of(asked.len()).await, all);
}

#[tokio::test]
async fn a_server_that_hangs_holds_no_compaction_up_and_is_not_asked_first_again() {
    let tier = Tier::start(0).await;
    // Whichever does it, it is not the one that hangs: the order of the servers goes by the output's id.
    for server in 1..=SERVERS {
        tier.told.hangs.store(server, Ordering::SeqCst);
        let outputs = tokio::time::timeout(HANGS, run(&tier.background, &job())).await.unwrap().unwrap();
        let named: Vec<u64> = outputs[0].replicas.iter().map(|id| id.0).collect();
        assert_eq!(named.len(), SERVERS as usize, "it is repaired later: {named:?}");
    }
    let failing: BTreeSet<u64> = tier.background.failing().iter().map(|id| id.0).collect();
    assert!(!failing.is_empty(), "those that hung and were not the worker");
}

#[tokio::test]
async fn busy_servers_are_no_failure_and_ids_that_they_refused_are_forgotten() {
    let tier = Tier::busy(usize::MAX, 0).await;
    let busy = run(&tier.background, &job()).await.unwrap_err();
    assert_eq!(busy.kind, ErrorKind::Overloaded, "{busy}");
    assert!(busy.message.contains("server 1: others are running"), "{busy}");
    assert_eq!((tier.told.compactions.lock().len(), tier.pending()), (SERVERS as usize, vec![]));
    // Of one that has failed nobody knows; what was refused is nobody's.
    let mut tier = Tier::busy(1, usize::MAX).await;
    let failed = run(&tier.background, &job()).await.unwrap_err();
    assert_eq!(failed.kind, ErrorKind::Unavailable, "{failed}");
    let asked = tier.told.compactions.lock().clone();
    let failed: BTreeSet<SstId> = asked[1..].iter().flatten().copied().collect();
    assert_eq!(tier.deleted_of(asked.len() - 1).await, failed);
    assert_eq!(tier.pending(), []);
    assert!(tier.deleted.try_recv().is_err(), "nothing is deleted of what was refused");
}
