//! The format of a partition: new ones have the newest, others when an operator raises it and all members can read it.

use sextant_common::ErrorKind;
use sextant_memtable_server::{MemtableServer, Tuning};
use sextant_proto::v1;

use crate::servers::*;
use crate::support::eventually;

fn tuning(format_max: u32) -> Tuning {
    Tuning { threads: 1, log_segment_bytes: 4 << 20, format_max, ..Tuning::default() }
}

/// All servers say that the partition has this format.
async fn agreed(c: &Cluster, format: u64) {
    let says = |i: usize| c.status(i)["partitions"][0]["configuration"]["format"].as_u64();
    eventually(async || (0..3).all(|i| says(i) == Some(format)).then_some(())).await;
}

/// What the leader answers.
async fn raise(c: &Cluster, to: u32, dry_run: bool) -> v1::PartitionFormat {
    eventually(async || {
        let request = v1::RaiseFormatRequest { partitions: Vec::new(), to, dry_run };
        let reply = c.admin(c.leader(0).await).raise_format(request).await.ok()?.into_inner();
        let partition = reply.partitions.into_iter().next()?;
        let again = ["leadership changed", "under way", "are changing", "does not lead"];
        // Servers that are up are slow to answer on a busy machine.
        let is_late = |i: &usize| {
            let silent = format!("server {} does not answer", i + 1);
            c.servers[*i].is_some() && partition.hindrances.iter().any(|why| why.contains(&silent))
        };
        let is_passing =
            again.iter().any(|why| partition.refused.contains(why)) || (0..3).any(|i| is_late(&i));
        (!is_passing).then_some(partition)
    })
    .await
}

async fn restart(c: &mut Cluster, i: usize, format_max: u32) {
    c.stop_one(i).await;
    c.tuning.format_max = format_max;
    c.start_one(i).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_partition_has_the_newest_format_at_once() {
    let c = Cluster::start_with(1, tuning(1)).await;
    agreed(&c, 1).await;
    let told = raise(&c, 0, false).await;
    assert_eq!((told.format, told.possible, told.refused.as_str()), (1, 1, ""), "it is so already");
    let told = raise(&c, 2, false).await;
    assert!(told.refused.contains("format 2") && told.hindrances.len() == 3, "{told:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_format_is_raised_only_when_every_member_can_read_it_and_never_left_again() {
    let mut c = Cluster::start_with(1, tuning(0)).await;
    c.create_table(0).await;
    assert_eq!(c.write(put(0, "k", "v")).await.status(), v1::WriteStatus::WriteOk);
    agreed(&c, 0).await;
    // One after the other is upgraded; the last one is still old.
    restart(&mut c, 0, 1).await;
    restart(&mut c, 1, 1).await;
    eventually(async || {
        let leader = c.leader(0).await;
        let transfer = v1::TransferRequest { partition: 0, to: 1 };
        if leader != 0 {
            c.admin(leader).transfer(transfer).await.ok()?;
        }
        (c.leader(0).await == 0).then_some(())
    })
    .await;
    for dry_run in [true, false] {
        let told = raise(&c, 1, dry_run).await;
        assert_eq!((told.format, told.possible), (0, 0));
        assert_eq!(told.hindrances.len(), 1);
        assert!(told.hindrances[0].contains("server 3 reads formats up to 0"), "{told:?}");
        assert_eq!(told.refused.is_empty(), dry_run, "{told:?}");
    }
    c.stop_one(2).await;
    let told = raise(&c, 1, false).await;
    assert!(told.hindrances[0].contains("server 3 does not answer") && !told.refused.is_empty(), "{told:?}");
    c.tuning.format_max = 1;
    c.start_one(2).await;
    let raised = eventually(async || {
        let told = raise(&c, 0, false).await;
        told.refused.is_empty().then_some(told)
    })
    .await;
    assert_eq!((raised.format, raised.possible), (1, 1));
    agreed(&c, 1).await;
    assert_eq!(raise(&c, 1, false).await.refused, "", "once more is nothing new");
    // Whoever goes back to the old version is told so, before it has promised anything.
    c.stop_one(2).await;
    let old = server_config(&c.config, &tuning(0), c.dir.path(), 2);
    let refused = eventually(async || {
        let refused = MemtableServer::start(c.env.clone(), old.clone()).await.err().expect("it is refused");
        // (It may hold its directories a little longer.)
        (refused.kind != ErrorKind::Unavailable).then_some(refused)
    })
    .await;
    assert!(refused.kind == ErrorKind::Outdated && refused.message.contains("has format 1"), "{refused}");
    c.start_one(2).await;
    agreed(&c, 1).await;
    assert_eq!(c.read(0, "k").await.value, bytes("v"));
}
