//! `docs/metrics.md` has the metrics that servers show: none is missing, none is gone, none means something else.

#[path = "../../../xtask/src/metrics/families.rs"]
#[allow(dead_code, reason = "the rest is for writing the page")]
mod families;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use families::{EVERY, Families, PAGE, ROLES};
use sextant_client::{Client, ClientOptions, http};
use sextant_dev_cluster::{DevCluster, DevOptions, Role};
use sextant_environment::Env;

/// For whatever takes time on a busy machine, and would otherwise hang.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(100);
const REPAIR: &str = "run `cargo xtask metrics`";

/// What the page says that servers of each role have, in the order of [`ROLES`].
fn documented() -> Vec<Families> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(PAGE);
    let page = std::fs::read_to_string(path).unwrap();
    let sections = families::read(&page).unwrap_or_else(|e| panic!("{PAGE}: {e}: {REPAIR}"));
    let section = |title: &str| {
        let found = sections.iter().find(|(known, _)| known == title);
        found.unwrap_or_else(|| panic!("{PAGE} has no section {title:?}: {REPAIR}")).1.clone()
    };
    let of_role = |role: &str| {
        let mut families = section(role);
        families.extend(section(EVERY));
        families
    };
    ROLES.into_iter().map(of_role).collect()
}

/// What the servers of a role show, together.
async fn shown(cluster: &DevCluster, role: Role) -> Families {
    let mut all = Families::new();
    for index in 0..cluster.count(role) {
        let addr = cluster.http(role, index).unwrap();
        let answer = http::get(&Env::real(), addr, "/metrics", PATIENCE).await.unwrap();
        assert!(answer.is_ok(), "{role:?} {index}: {}", answer.status);
        families::merge(&mut all, families::exposed(&answer.text()).unwrap());
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_metrics_is_what_servers_show() {
    let dir = tempfile::tempdir().unwrap();
    let options = DevOptions {
        processes: Some(env!("CARGO_BIN_EXE_sextant").into()),
        partitions: Some(1),
        pnodes: 1,
        ..DevOptions::on_free_ports(dir.path())
    };
    let cluster = DevCluster::start(Env::real(), options).await.unwrap();
    let grpc = cluster.grpc_addrs();
    let patient = ClientOptions { deadline: PATIENCE, ..ClientOptions::default() };
    let client = Client::connect_in(Env::real(), grpc.clone(), patient).await.unwrap();
    let admin = |what: &'static str| {
        // Again, if nobody led for a moment.
        let is_done = (0..10).any(|_| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_sextant"));
            command.args(["admin", what, "--deadline-ms", "60000", "--server", &grpc[0]]);
            let output = command.output().unwrap();
            eprintln!("{what}: {}", String::from_utf8_lossy(&output.stderr));
            output.status.success()
        });
        assert!(is_done, "{what}");
    };
    // Tables are received, merged and copied: these are counted by outcome, and not shown before.
    for value in ["1", "2"] {
        client.put("", "k", value).await.unwrap();
        admin("flush");
    }
    admin("compact");

    let documented = documented();
    let expected: BTreeSet<&String> = documented.iter().flat_map(Families::keys).collect();
    let mut by_role = Vec::new();
    let all_are_shown = async {
        loop {
            by_role.clear();
            for role in [Role::PNode, Role::Memtable, Role::Sstable] {
                by_role.push(shown(&cluster, role).await);
            }
            if expected.iter().all(|name| by_role.iter().any(|families| families.contains_key(*name))) {
                return;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    // Those that do not come are named below.
    let _ = tokio::time::timeout(PATIENCE, all_are_shown).await;

    let mut wrong = Vec::new();
    for ((role, documented), shown) in ROLES.iter().zip(&documented).zip(&by_role) {
        for (name, family) in shown {
            match documented.get(name) {
                None => wrong.push(format!("{role}: {PAGE} lacks {name}")),
                Some(known) if known != family => {
                    wrong.push(format!("{role}: {PAGE} says of {name} {known:?}, the server {family:?}"));
                }
                Some(_) => {}
            }
        }
        let gone = documented.keys().filter(|name| !shown.contains_key(*name));
        wrong.extend(gone.map(|name| format!("{role}: no server shows {name}")));
    }
    assert!(by_role.len() == ROLES.len() && wrong.is_empty(), "{REPAIR}:\n{}", wrong.join("\n"));
    cluster.shutdown().await.unwrap();
}
