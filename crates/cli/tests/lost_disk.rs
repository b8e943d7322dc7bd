//! A memtable server whose disk was replaced, on real processes: it votes for nobody, so nothing that was acknowledged is lost, and
//! it is let in again, by the leader itself or by an operator.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sextant_client::{Client, ClientOptions, http};
use sextant_common::error::{Error, ErrorKind};
use sextant_common::ids::{NodeId, PartitionId};
use sextant_dev_cluster::{DevCluster, DevOptions, Role};
use sextant_environment::Env;

const WRITES: usize = 200;
const SERVERS: usize = 3;
/// Far more than anybody has to wait: a busy machine is no error.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// How often is looked: for two minutes.
const LOOKS: usize = 2400;
/// How often something is tried that a change of leaders, as on a busy machine, makes come to nothing.
const TRIES: usize = 5;

struct Cluster {
    env: Env,
    dev: DevCluster,
    client: Client,
    dir: tempfile::TempDir,
}

impl Cluster {
    async fn start(rejoin: &str) -> Self {
        let env = Env::real();
        let dir = tempfile::tempdir().unwrap();
        let mut options = DevOptions {
            processes: Some(env!("CARGO_BIN_EXE_sextant").into()),
            partitions: Some(1),
            ..DevOptions::on_free_ports(dir.path())
        };
        options.tuning.memtable = toml::from_str(&format!("[tuning]\nrejoin = \"{rejoin}\"")).unwrap();
        let dev = DevCluster::start(env.clone(), options).await.unwrap();
        let patient = ClientOptions { deadline: PATIENCE, ..ClientOptions::default() };
        let client = Client::connect_in(env.clone(), dev.grpc_addrs(), patient).await.unwrap();
        Self { env, dev, client, dir }
    }

    /// A memtable server's view of the one partition; nothing while it is down.
    async fn view(&self, index: usize) -> serde_json::Value {
        let Ok(addr) = self.dev.http(Role::Memtable, index) else { return Default::default() };
        let answer = http::get(&self.env, addr, "/status", Duration::from_secs(2)).await;
        let text = answer.map(|a| a.text().to_string()).unwrap_or_default();
        let status: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        status["partitions"][0].clone()
    }

    async fn is_ready(&self, index: usize) -> bool {
        let Ok(addr) = self.dev.http(Role::Memtable, index) else { return false };
        let answer = http::get(&self.env, addr, "/health/ready", Duration::from_secs(2)).await;
        answer.is_ok_and(|a| a.status == 200)
    }

    /// Waits until a server's view is as wanted.
    async fn until(&self, index: usize, what: &str, wanted: impl Fn(&serde_json::Value) -> bool) {
        let mut view = serde_json::Value::Null;
        for _ in 0..LOOKS {
            view = self.view(index).await;
            if wanted(&view) {
                return;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        panic!("memtable server {}: {what}: {view}", index + 1);
    }

    /// Waits until the view of whoever leads is as wanted.
    async fn until_leader(&self, what: &str, wanted: impl Fn(&serde_json::Value) -> bool) {
        for _ in 0..LOOKS {
            let leader = self.leader().await;
            if wanted(&self.view(leader).await) {
                return;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        panic!("the leader: {what}");
    }

    /// Asks for these voters until what came of it is as wanted.
    async fn change_voters<T>(
        &self,
        voters: &[NodeId],
        wanted: impl Fn(Result<Vec<NodeId>, Error>) -> Option<T>,
    ) -> T {
        for _ in 0..LOOKS {
            let changed = self.client.change_voters(PartitionId(0), voters).await;
            let told = format!("{changed:?}");
            if let Some(done) = wanted(changed) {
                return done;
            }
            eprintln!("{voters:?}: {told}");
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        panic!("the voters {voters:?}");
    }

    async fn leader(&self) -> usize {
        for _ in 0..LOOKS {
            for index in 0..SERVERS {
                if self.view(index).await["serving"] == true {
                    return index;
                }
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        panic!("nobody leads");
    }

    fn data(&self, index: usize) -> PathBuf {
        self.dir.path().join(format!("memtable-{}", index + 1))
    }

    /// Writes that are on the leader and one follower only, the other one is stopped meanwhile: (leader, has them, lacks them).
    async fn write_to_two(&self) -> (usize, usize, usize) {
        self.client.put("", "before", "x").await.unwrap();
        let leader = self.leader().await;
        let (follower, lacking) = ((leader + 1) % SERVERS, (leader + 2) % SERVERS);
        self.dev.pause(Role::Memtable, lacking).await.unwrap();
        for n in 0..WRITES {
            self.client.put("", format!("key{n}"), format!("value{n}")).await.unwrap();
        }
        (leader, follower, lacking)
    }

    /// How many of the acknowledged writes cannot be read any more.
    async fn lost(&self) -> usize {
        let mut lost = 0;
        for n in 0..WRITES {
            let record = loop {
                match self.client.get("", format!("key{n}")).await {
                    Ok(record) => break record,
                    Err(e) if e.kind == ErrorKind::Unavailable => {}
                    Err(e) => panic!("{e}"),
                }
            };
            lost += usize::from(record.is_none_or(|r| r.value != format!("value{n}")));
        }
        lost
    }

    /// Puts an older copy of its disk in a server's place, and starts it; returns the log of its end.
    async fn put_back(&mut self, index: usize, backup: &Path) -> String {
        for _ in 0..TRIES {
            let term = self.term().await;
            // (It may have ended meanwhile.)
            let _ = self.dev.kill(Role::Memtable, index).await;
            std::fs::remove_dir_all(self.data(index)).unwrap();
            copy(backup, &self.data(index));
            self.dev.relaunch(Role::Memtable, index).await.unwrap();
            for _ in 0..LOOKS {
                if let Ok(death) = tokio::time::timeout(LOOK_AGAIN, self.dev.next_death()).await {
                    return std::fs::read_to_string(&death.log).unwrap();
                }
                // A leader that is new, as on a busy machine, has not heard what this server had: it has, next time.
                let leader = self.leader().await;
                let (own, newest) = (self.view(index).await, self.view(leader).await);
                let has_all = own["last_index"].as_u64() >= newest["last_index"].as_u64();
                if newest["term"].as_u64() > Some(term) && own["last_index"].is_u64() && has_all {
                    break;
                }
            }
        }
        panic!("memtable server {}: the older copy of its disk is not noticed", index + 1);
    }

    /// Of whoever leads.
    async fn term(&self) -> u64 {
        for _ in 0..LOOKS {
            let leader = self.leader().await;
            if let Some(term) = self.view(leader).await["term"].as_u64() {
                return term;
            }
        }
        panic!("nobody leads");
    }

    /// Waits until a server ends by itself; returns its log.
    async fn last_words(&mut self) -> String {
        let death = tokio::time::timeout(PATIENCE, self.dev.next_death()).await.unwrap();
        std::fs::read_to_string(&death.log).unwrap()
    }

    /// Starts a server that has noticed what its disk is: it is let in as a new one, and nothing was lost.
    async fn finish_with(mut self, index: usize) {
        self.dev.relaunch(Role::Memtable, index).await.unwrap();
        self.until_voter_again(index).await;
        assert_eq!(self.lost().await, 0);
        self.dev.shutdown().await.unwrap();
    }

    async fn until_voter_again(&self, index: usize) {
        self.until(index, "is let in again", |v| {
            v["lost_memory"] == false
                && v["voters"] == serde_json::json!([1, 2, 3])
                && v["learners"] == serde_json::json!([])
        })
        .await;
        for _ in 0..LOOKS {
            if self.is_ready(index).await {
                return;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        panic!("memtable server {} does not become ready", index + 1);
    }
}

/// The last server that knows of 200 acknowledged writes crashes while the other one that had them has come back empty, and a third
/// one that never had them campaigns.
async fn a_wiped_voter(rejoin: &str) -> (Cluster, usize) {
    let mut c = Cluster::start(rejoin).await;
    let (leader, wiped, lacking) = c.write_to_two().await;
    c.dev.kill(Role::Memtable, wiped).await.unwrap();
    c.dev.kill(Role::Memtable, leader).await.unwrap();
    std::fs::remove_dir_all(c.data(wiped)).unwrap();
    c.dev.resume(Role::Memtable, lacking).await.unwrap();
    c.dev.relaunch(Role::Memtable, wiped).await.unwrap();
    c.until(wiped, "is asked for its vote and finds that it has lost its memory", |v| {
        v["lost_memory"] == true
    })
    .await;
    assert!(!c.is_ready(wiped).await, "it waits to be let in");
    for index in [wiped, lacking] {
        // (One that campaigns without a majority is a follower again and again.)
        c.until(index, "nobody leads without a majority", |v| {
            assert_ne!(v["serving"], true, "{v}");
            v["serving"] == false && v["role"] == "follower"
        })
        .await;
    }
    // With the one that remembers there is a majority again.
    c.dev.relaunch(Role::Memtable, leader).await.unwrap();
    assert_eq!(c.lost().await, 0, "of {WRITES} acknowledged writes");
    c.client.put("", "after", "x").await.unwrap();
    (c, wiped)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_voter_loses_nothing_and_is_let_in_again() {
    let (mut c, wiped) = a_wiped_voter("automatic").await;
    c.until_voter_again(wiped).await;
    // Now it counts: with one of the others gone, it is half of the majority.
    let leader = c.leader().await;
    let other = (0..SERVERS).find(|i| *i != leader && *i != wiped).unwrap_or(leader);
    c.dev.kill(Role::Memtable, other).await.unwrap();
    c.client.put("", "with it", "x").await.unwrap();
    assert_eq!(c.lost().await, 0);
    c.dev.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_lets_a_wiped_voter_in_again() {
    let (c, wiped) = a_wiped_voter("manual").await;
    let id = wiped as u64 + 1;
    c.until_leader("raises an alarm", |v| v["lost_members"] == serde_json::json!([id])).await;
    let ids = |of: &[u64]| of.iter().map(|id| NodeId(*id)).collect::<Vec<_>>();
    let all = ids(&[1, 2, 3]);
    let rest: Vec<NodeId> = all.iter().copied().filter(|n| n.0 != id).collect();
    c.change_voters(&all, |changed| match changed {
        // (Nothing was changed: of a server that is too slow to say what it is, nothing is known.)
        Ok(_) => None,
        Err(e) => e.message.contains("has lost its memory").then_some(()),
    })
    .await;
    c.until_leader("has not let it in", |v| v["lost_members"] == serde_json::json!([id])).await;
    c.change_voters(&rest, |changed| changed.ok()).await;
    // Its former self is let go first.
    c.change_voters(&all, |changed| changed.ok()).await;
    c.until_voter_again(wiped).await;
    assert_eq!(c.lost().await, 0);
    c.dev.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directories_that_do_not_belong_together_are_refused_until_all_are_empty() {
    let mut c = Cluster::start("automatic").await;
    c.client.put("", "a", "x").await.unwrap();
    c.client.flush(None).await.unwrap();
    let leader = c.leader().await;
    let victim = (leader + 1) % SERVERS;
    let data = c.data(victim);
    for lost in ["log", "data"] {
        c.dev.kill(Role::Memtable, victim).await.unwrap();
        if lost == "log" {
            std::fs::remove_dir_all(data.join("log")).unwrap();
        } else {
            for entry in std::fs::read_dir(&data).unwrap().flatten().filter(|e| e.path().is_file()) {
                std::fs::remove_file(entry.path()).unwrap();
            }
        }
        c.dev.relaunch(Role::Memtable, victim).await.unwrap();
        let log = c.last_words().await;
        let line =
            log.lines().rev().find(|l| l.contains("was lost or replaced")).unwrap_or_else(|| panic!("{log}"));
        assert!(line.contains("empty all of its directories"), "{line}");
        // As it says.
        std::fs::remove_dir_all(&data).unwrap();
        c.dev.relaunch(Role::Memtable, victim).await.unwrap();
        c.until_voter_again(victim).await;
        c.client.put("", "b", "x").await.unwrap();
    }
    c.dev.shutdown().await.unwrap();
}

/// Copies a directory as a snapshot of its volume would: while nobody writes.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_copy_of_a_disk_is_noticed_and_let_in_as_a_new_server() {
    let mut c = Cluster::start("automatic").await;
    c.client.put("", "a", "x").await.unwrap();
    let leader = c.leader().await;
    let victim = (leader + 1) % SERVERS;
    let (data, backup) = (c.data(victim), c.dir.path().join("backup"));
    c.dev.kill(Role::Memtable, victim).await.unwrap();
    copy(&data, &backup);
    c.dev.restart(Role::Memtable, victim).await.unwrap();
    for n in 0..WRITES {
        c.client.put("", format!("key{n}"), format!("value{n}")).await.unwrap();
    }
    let last = std::cell::Cell::new(None);
    c.until(leader, "says what it has", |v| {
        last.set(v["last_index"].as_u64());
        last.get().is_some()
    })
    .await;
    let index = last.get().unwrap();
    c.until(victim, "has everything", |v| v["last_index"].as_u64().is_some_and(|at| at >= index)).await;
    let log = c.put_back(victim, &backup).await;
    assert!(log.contains("its directories are an older copy"), "{log}");
    c.finish_with(victim).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_a_disk_from_before_its_server_was_wiped_is_noticed_too() {
    let mut c = Cluster::start("automatic").await;
    c.client.put("", "a", "x").await.unwrap();
    let victim = (c.leader().await + 1) % SERVERS;
    let (data, backup) = (c.data(victim), c.dir.path().join("backup"));
    c.dev.kill(Role::Memtable, victim).await.unwrap();
    copy(&data, &backup);
    // It comes back as a new one, and is one for some time.
    std::fs::remove_dir_all(&data).unwrap();
    c.dev.relaunch(Role::Memtable, victim).await.unwrap();
    c.until_voter_again(victim).await;
    for n in 0..WRITES {
        c.client.put("", format!("key{n}"), format!("value{n}")).await.unwrap();
    }
    let log = c.put_back(victim, &backup).await;
    assert!(log.contains("the group has let it in as") && log.contains("an older copy"), "{log}");
    c.finish_with(victim).await;
}
