//! A server with a new directory, and who may tell it what.

use super::*;

fn config(dir: &std::path::Path) -> SstServerConfig {
    let http = Some("127.0.0.1:0".into());
    let cluster = cluster_config(&["a:1"]);
    SstServerConfig { http, ..SstServerConfig::new(NodeId(1), cluster, "127.0.0.1:0", dir.join("sst")) }
}

fn of_a_leader(partition: u32, tables_lacking: Option<u32>) -> InventoryRequest {
    let order = Some(Order { term: 1, number: 1, lineage: 0 });
    InventoryRequest { partition, order, unix_us: 0, tables_lacking }
}

async fn readiness(env: &Env, server: &SstServer) -> String {
    http_get(env, server.http_addr().unwrap(), "/health/ready").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_began_with_nothing_is_ready_when_no_leader_finds_copies_lacking() {
    let dir = tempfile::tempdir().unwrap();
    let (env, config) = (Env::real(), config(dir.path()));
    let server = SstServer::start(env.clone(), config.clone()).await.unwrap();
    let answer = readiness(&env, &server).await;
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("new directory"), "{answer}");
    let mut leader = client(&env, &server.addr().to_string());
    for lacking in [None, Some(2)] {
        leader.inventory(of_a_leader(0, lacking)).await.unwrap();
    }
    // (A p-node asks as well, and says nothing.)
    leader.inventory(InventoryRequest { order: None, ..of_a_leader(0, Some(0)) }).await.unwrap();
    let answer = readiness(&env, &server).await;
    assert!(
        answer.starts_with("HTTP/1.1 503") && answer.contains("partition 0: 2 tables lack copies"),
        "{answer}"
    );
    server.shutdown().await;

    // It goes on waiting after a restart.
    let server = SstServer::start(env.clone(), config.clone()).await.unwrap();
    assert!(readiness(&env, &server).await.starts_with("HTTP/1.1 503"));
    let mut leader = client(&env, &server.addr().to_string());
    for (partition, lacking) in (0..4).flat_map(|partition| [(partition, None), (partition, Some(0))]) {
        leader.inventory(of_a_leader(partition, lacking)).await.unwrap();
    }
    assert!(readiness(&env, &server).await.starts_with("HTTP/1.1 200"));
    server.shutdown().await;

    // And is ready at once from then on.
    let server = SstServer::start(env.clone(), config).await.unwrap();
    assert!(readiness(&env, &server).await.starts_with("HTTP/1.1 200"));
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_no_memtable_server_neither_orders_nor_votes() {
    let node = Node::start().await;
    let as_a = |from: Party| {
        let cluster = cluster_config(&[]);
        SstClient::new(cluster_channel(&node.env.net, &node.addr(), &cluster, from, None))
    };
    let denied = |status: tonic::Status, why: &str| {
        assert_eq!(status.code(), tonic::Code::PermissionDenied, "{status}");
        assert!(status.message().contains(why), "{status}");
    };
    let (mut memtable, mut pnode) = (as_a(Party::memtable(NodeId(1))), as_a(Party::pnode(NodeId(1))));
    memtable.inventory(of_a_leader(1, None)).await.unwrap();
    denied(pnode.inventory(of_a_leader(1, None)).await.unwrap_err(), "not give orders");
    pnode.inventory(InventoryRequest { order: None, ..of_a_leader(1, None) }).await.unwrap();
    denied(pnode.delete(DeleteRequest::default()).await.unwrap_err(), "pnode-1 may not call Sst.Delete");
    let mut sstable = as_a(Party::sstable(NodeId(2)));
    denied(sstable.get(GetBatch::default()).await.unwrap_err(), "sstable-2 may not call Sst.Get");
}
