//! `DevCluster` with processes of the real binary: what fault tests build on.

use std::time::Duration;

use sextant_client::{Client, ClientOptions};
use sextant_dev_cluster::{DevCluster, DevOptions, Role};
use sextant_environment::Env;

#[tokio::test(flavor = "multi_thread")]
async fn servers_are_killed_paused_and_started_again() {
    let dir = tempfile::tempdir().unwrap();
    let options = DevOptions {
        processes: Some(env!("CARGO_BIN_EXE_sextant").into()),
        partitions: Some(1),
        ..DevOptions::on_free_ports(dir.path())
    };
    let mut cluster = DevCluster::start(Env::real(), options).await.unwrap();
    // A busy machine is no error.
    let patient = ClientOptions { deadline: Duration::from_secs(60), ..ClientOptions::default() };
    let client = Client::connect_in(Env::real(), cluster.grpc_addrs(), patient).await.unwrap();
    client.put("", "k", "v").await.unwrap();

    for role in [Role::PNode, Role::Sstable, Role::Memtable] {
        let before = cluster.pid(role, 0).unwrap().unwrap();
        cluster.kill(role, 0).await.unwrap();
        assert_eq!(cluster.pid(role, 0).unwrap(), None);
        assert_eq!(client.get("", "k").await.unwrap().unwrap().value, "v", "without {role:?} 0");
        cluster.restart(role, 0).await.unwrap();
        assert_ne!(cluster.pid(role, 0).unwrap(), Some(before));
    }

    // A paused p-node is noticed by its silence; a server that is stopped while it is paused stops all the same.
    cluster.pause(Role::PNode, 0).await.unwrap();
    client.put("", "k", "w").await.unwrap();
    cluster.resume(Role::PNode, 0).await.unwrap();
    cluster.pause(Role::Memtable, 2).await.unwrap();
    assert_eq!(client.get("", "k").await.unwrap().unwrap().value, "w");

    // Somebody else's signal is noticed.
    let pid = cluster.pid(Role::Sstable, 2).unwrap().unwrap();
    // SAFETY: kill has no memory effects.
    assert_eq!(unsafe { libc::kill(pid as i32, libc::SIGKILL) }, 0);
    let death = cluster.next_death().await;
    assert_eq!((death.name.as_str(), death.how.as_str()), ("sstable-3", "was ended by signal 9"));
    cluster.shutdown().await.unwrap();
}
