//! A cluster in this process: started, parts of it restarted, all of it restarted.

use sextant_client::{Client, ClientOptions};
use sextant_common::ErrorKind;
use sextant_dev_cluster::{DevCluster, DevOptions, Role};
use sextant_environment::Env;
use sextant_environment::env::Door;

async fn client(cluster: &DevCluster) -> Client {
    Client::connect_in(Env::real(), cluster.grpc_addrs(), ClientOptions::default()).await.unwrap()
}

async fn value(client: &Client, key: &'static str) -> Option<String> {
    client.get("", key).await.unwrap().map(|r| String::from_utf8(r.value.to_vec()).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn data_survives_the_restart_of_any_server_and_of_all() {
    let dir = tempfile::tempdir().unwrap();
    let options = DevOptions::on_free_ports(dir.path());
    let mut cluster = DevCluster::start(Env::real(), options.clone()).await.unwrap();
    assert_eq!(cluster.count(Role::PNode), 2);
    assert_eq!(cluster.pid(Role::Memtable, 0).unwrap(), Some(std::process::id()));
    let first = client(&cluster).await;
    first.put("", "a", "1").await.unwrap();
    first.flush(None).await.unwrap();
    first.put("", "b", "2").await.unwrap();

    for (role, index) in [(Role::Memtable, 0), (Role::Sstable, 1), (Role::PNode, 0)] {
        cluster.stop(role, index).await.unwrap();
        assert_eq!(cluster.pid(role, index).unwrap(), None);
        assert_eq!(value(&first, "a").await.as_deref(), Some("1"), "without {role:?} {index}");
        cluster.restart(role, index).await.unwrap();
    }
    assert_eq!(value(&first, "b").await.as_deref(), Some("2"));
    let line = cluster.ready_line();
    let file = std::fs::read_to_string(dir.path().join("ready.json")).unwrap();
    assert_eq!(file.trim_end(), line.json());

    assert_eq!(cluster.kill(Role::PNode, 0).await.unwrap_err().kind, ErrorKind::Invalid, "no process");
    cluster.shutdown().await.unwrap();
    assert!(!dir.path().join("ready.json").exists());

    let cluster = DevCluster::start(Env::real(), options).await.unwrap();
    assert_eq!(cluster.ready_line(), line, "the same ids and addresses");
    // The client of before finds the p-nodes where they were.
    assert_eq!(value(&first, "a").await.as_deref(), Some("1"));
    assert_eq!(value(&client(&cluster).await, "b").await.as_deref(), Some("2"));
    cluster.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_taken_port_is_named_and_nothing_is_left_running() {
    let dir = tempfile::tempdir().unwrap();
    let env = Env::real();
    let listener = env.net.bind("127.0.0.1:0".into(), Door::Members).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let options = DevOptions { grpc_port: port, pnodes: 1, ..DevOptions::on_free_ports(dir.path()) };
    let error = DevCluster::start(env, options).await.err().expect("it cannot start");
    assert!(error.message.contains(&format!("port {port} (gRPC of pnode-1")), "{error}");
}
