//! Who is kept out: a cluster of processes that speaks TLS on every port, and those who knock at them.
//! `docs/security.md` says what is promised.

#[path = "security/running.rs"]
mod running;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use sextant_client::{Client, ClientOptions, Credentials, ScanOptions};
use sextant_common::ErrorKind;
use sextant_common::ids::NodeId;
use sextant_environment::Env;
use sextant_environment::config::{ClientCertificates, ClusterConfig, LeaseConfig, Server, TlsConfig};
use sextant_environment::env::{Holder, Party, PartyRole, Whom, cluster_channel, free_addrs};
use sextant_proto::v1;
use sextant_proto::v1::admin_client::AdminClient;
use sextant_proto::v1::raft_client::RaftClient;
use sextant_tls::authority::Authority;
use sextant_tls::{ClientFiles, TlsNetwork};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// For whatever takes time on a busy machine, and would otherwise hang.
const PATIENCE: Duration = Duration::from_secs(60);
/// What who speaks no TLS hears.
const TLS_ALERT: u8 = 0x15;
const HALF_OPEN: usize = 1000;

const MEMTABLE: Party = Party { role: PartyRole::Memtable, id: NodeId(1) };
const SSTABLE: Party = Party { role: PartyRole::Sstable, id: NodeId(1) };
const PNODE: Party = Party { role: PartyRole::PNode, id: NodeId(1) };

struct Servers {
    dir: TempDir,
    config: ClusterConfig,
    /// Name and address of every port.
    ports: Vec<(&'static str, String)>,
    /// That of another cluster of the same house: all servers trust it.
    other: Authority,
    children: Vec<Child>,
}

impl Drop for Servers {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn sextant() -> Command {
    Command::new(env!("CARGO_BIN_EXE_sextant"))
}

/// The command's output, which succeeds.
fn run(args: &[&str]) -> String {
    let output = sextant().args(args).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{args:?}: {printed}{}", String::from_utf8_lossy(&output.stderr));
    printed
}

fn now_s() -> u64 {
    Env::real().clock.wall_guess_ns() / 1_000_000_000
}

impl Servers {
    /// A server of each tier, ready; certificates by `sextant cert`.
    async fn start(clients: &str) -> Self {
        Self::start_with(clients, "").await
    }

    /// `access`: a section of the p-node's configuration.
    async fn start_with(clients: &str, access: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let addrs = free_addrs(&Env::real(), 7).await.unwrap();
        let [memtable, memtable_http, sstable, sstable_http, grpc, resp, http] =
            <[String; 7]>::try_from(addrs).unwrap();
        let [admin] = <[String; 1]>::try_from(free_addrs(&Env::real(), 1).await.unwrap()).unwrap();
        let shared = format!(
            "id = \"prod\"\npartitions = 2\nmemtable = [{{ id = 1, addr = \"{memtable}\" }}]\n\
             sstable = [{{ id = 1, addr = \"{sstable}\" }}]\n"
        );
        std::fs::write(dir.path().join("cluster.toml"), shared).unwrap();
        let data = |name: &str| format!("data_dir = {:?}\n", dir.path().join("data").join(name));
        let ports = [
            (
                "memtable",
                format!("listen = \"{memtable}\"\nhttp = \"{memtable_http}\"\n{}", data("memtable")),
            ),
            ("sstable", format!("listen = \"{sstable}\"\nhttp = \"{sstable_http}\"\n{}", data("sstable"))),
            (
                "pnode",
                format!(
                    "grpc = \"{grpc}\"\nresp = \"{resp}\"\nhttp = \"{http}\"\nadmin = \"{admin}\"\n\
                     grpc_unix = {:?}\nresp_unix = {:?}\nunix_mode = \"0660\"\nslow_ms = 1\n",
                    dir.path().join("grpc.sock"),
                    dir.path().join("resp.sock")
                ),
            ),
        ];
        for (role, listens) in ports {
            let tls = format!(
                "[tls]\nca = \"certs/ca.pem\"\ncert = \"certs/{role}-1.pem\"\nkey = \"certs/{role}-1.key\"\n\
                 clients = \"{clients}\"\n"
            );
            let text = format!("role = \"{role}\"\nid = 1\ncluster = \"cluster.toml\"\n{listens}{tls}");
            let text = if role == "pnode" { text + access } else { text };
            std::fs::write(dir.path().join(format!("{role}-1.toml")), text).unwrap();
        }
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let certs = path("certs");
        run(&["cert", "init", "--cluster", "prod", "--dir", &certs]);
        let files = ["memtable", "sstable", "pnode"].map(|role| path(&format!("{role}-1.toml")));
        run(&["cert", "server", &files[0], &files[1], &files[2], "--dir", &certs]);
        run(&["cert", "user", "alice", "--dir", &certs]);
        let other = Authority::create("other", now_s(), 1).unwrap();
        let both = std::fs::read_to_string(dir.path().join("certs/ca.pem")).unwrap() + &other.cert;
        std::fs::write(dir.path().join("certs/ca.pem"), both).unwrap();
        let other = Authority::load(&other.cert, &other.key).unwrap();
        let server = |addr: &str| vec![Server::new(1, addr)];
        let config = ClusterConfig {
            id: "prod".into(),
            partitions: 2,
            memtable: server(&memtable),
            sstable: server(&sstable),
            lease: LeaseConfig::default(),
        };
        let ports = vec![
            ("memtable", memtable),
            ("memtable http", memtable_http),
            ("sstable", sstable),
            ("sstable http", sstable_http),
            ("grpc", grpc),
            ("resp", resp),
            ("http", http),
            ("admin", admin),
        ];
        let mut servers = Servers { dir, config, ports, other, children: Vec::new() };
        for (role, file) in ["memtable", "sstable", "pnode"].iter().zip(&files) {
            let mut command = sextant();
            let log = std::fs::File::create(servers.dir.path().join(format!("{role}.log"))).unwrap();
            command.args([role, "--config", file]).stdout(Stdio::null()).stderr(log);
            servers.children.push(command.spawn().unwrap());
        }
        let ready = async {
            for file in &files {
                while !sextant().args(["health", "--config", file]).output().unwrap().status.success() {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        };
        tokio::time::timeout(PATIENCE, ready).await.expect("all servers are ready");
        servers
    }

    fn cert(&self, name: &str) -> PathBuf {
        self.dir.path().join("certs").join(name)
    }

    fn addr(&self, port: &str) -> &str {
        &self.ports.iter().find(|(name, _)| *name == port).unwrap().1
    }

    /// The address of a socket of the p-node's.
    fn unix(&self, name: &str) -> String {
        format!("unix:{}", self.dir.path().join(name).display())
    }

    fn files(&self, name: &str) -> Option<(PathBuf, PathBuf)> {
        Some((self.cert(&format!("{name}.pem")), self.cert(&format!("{name}.key"))))
    }

    /// The environment of somebody who trusts this cluster's authority, and shows this.
    fn who_shows(&self, shown: Option<(PathBuf, PathBuf)>) -> Env {
        let files = ClientFiles { ca: self.cert("ca.pem"), shown };
        let net = TlsNetwork::client(Env::real(), files, "prod").unwrap();
        Env { net: Arc::new(net), ..Env::real() }
    }

    async fn client(&self, env: Env) -> Client {
        let options = ClientOptions { deadline: PATIENCE, ..ClientOptions::default() };
        Client::connect_in(env, vec![self.addr("grpc").to_owned()], options).await.unwrap()
    }

    async fn user(&self, env: Env, user: &str, password: &str) -> Client {
        let credentials = Some(Credentials { user: user.into(), password: password.into() });
        let options = ClientOptions { deadline: PATIENCE, credentials, ..ClientOptions::default() };
        Client::connect_in(env, vec![self.addr("grpc").to_owned()], options).await.unwrap()
    }

    /// `/metrics` of a server.
    async fn metrics(&self, port: &str) -> String {
        let env = self.who_shows(self.files("user-alice"));
        sextant_client::http::get(&env, self.addr(port), "/metrics", PATIENCE).await.unwrap().text()
    }
}

/// Certificate and key of `holder`, of this authority.
fn issue(authority: &Authority, dir: &Path, holder: Holder, from_s: u64) -> Option<(PathBuf, PathBuf)> {
    let issued = authority.issue(holder, &[], from_s, 1).unwrap();
    let at = std::fs::read_dir(dir).unwrap().count();
    let (cert, key) = (dir.join(format!("{at}.pem")), dir.join(format!("{at}.key")));
    std::fs::write(&cert, issued.cert).unwrap();
    std::fs::write(&key, issued.key).unwrap();
    Some((cert, key))
}

/// Whether anything comes back on a new connection to `addr` after `said`.
async fn is_answered(env: &Env, addr: &str, said: &[u8]) -> bool {
    let asked = async {
        let mut connection = env.net.connect(addr.to_owned(), Whom::Host).await?;
        connection.write_all(said).await?;
        let mut first = [0];
        connection.read_exact(&mut first).await?;
        std::io::Result::Ok(first[0])
    };
    let first = tokio::time::timeout(PATIENCE, asked).await.expect("an answer or a refusal");
    first.is_ok_and(|first| first != TLS_ALERT)
}

/// What makes any server say something: a command, a request, the beginning of HTTP/2.
fn first_words(port: &str) -> &'static [u8] {
    match port {
        "resp" => b"PING\r\n",
        "http" | "memtable http" | "sstable http" => b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n",
        _ => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_comes_in_at_any_port_without_a_good_certificate() {
    let servers = Servers::start("required").await;
    let read = |name: &str| std::fs::read_to_string(servers.cert(name)).unwrap();
    let authority = Authority::load(&read("ca.pem"), &read("ca.key")).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let stranger = Authority::create("prod", now_s(), 1).unwrap();
    let stranger = Authority::load(&stranger.cert, &stranger.key).unwrap();
    let alice = || Holder::User("alice".into());

    let good = servers.who_shows(servers.files("user-alice"));
    let strangers = [
        ("no TLS", Env::real()),
        ("no certificate", servers.who_shows(None)),
        ("expired", servers.who_shows(issue(&authority, elsewhere.path(), alice(), now_s() - 5 * 86_400))),
        ("unknown authority", servers.who_shows(issue(&stranger, elsewhere.path(), alice(), now_s()))),
        (
            "unknown authority, of a server",
            servers.who_shows(issue(&stranger, elsewhere.path(), Holder::Server(PNODE), now_s())),
        ),
        ("another cluster", servers.who_shows(issue(&servers.other, elsewhere.path(), alice(), now_s()))),
        (
            "another cluster, of a server",
            servers.who_shows(issue(&servers.other, elsewhere.path(), Holder::Server(PNODE), now_s())),
        ),
    ];
    for (port, addr) in &servers.ports {
        for (who, env) in &strangers {
            assert!(!is_answered(env, addr, first_words(port)).await, "{who} is answered at {port}");
        }
        let members_only = ["memtable", "sstable"].contains(port);
        assert_eq!(is_answered(&good, addr, first_words(port)).await, !members_only, "alice at {port}");
        if members_only {
            let member = servers.who_shows(servers.files("pnode-1"));
            assert!(is_answered(&member, addr, first_words(port)).await, "a p-node at {port}");
        }
    }
    let open = ["get", "a", "--server", servers.addr("grpc"), "--deadline-ms", "1000"];
    // (Mostly: the connection may be closed before the client has read why.)
    let says_why = (0..20).any(|_| {
        let told = sextant().args(open).output().unwrap();
        String::from_utf8_lossy(&told.stderr).contains("does the port ask for TLS?")
    });
    assert!(says_why);
    let metrics = servers.metrics("http").await;
    let outcomes = [
        ("resp", "no_certificate"),
        ("grpc", "expired"),
        ("admin", "unknown_authority"),
        ("http", "not_of_the_cluster"),
    ];
    for (door, outcome) in outcomes {
        let counted = format!("sextant_tls_handshakes_total{{door=\"{door}\",outcome=\"{outcome}\"}}");
        assert!(metrics.contains(&counted), "{counted} is not in {metrics}");
    }
    // Every server shows them, under the same names.
    for port in ["http", "memtable http", "sstable http"] {
        let metrics = servers.metrics(port).await;
        for sample in ["handshakes_total{", "certificate_expires_seconds 1", "reload_failed 0\n"] {
            assert!(metrics.contains(&format!("\nsextant_tls_{sample}")), "{port}: {sample}: {metrics}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_only_who_its_certificate_names() {
    let servers = Servers::start("required").await;
    let pnode = servers.who_shows(servers.files("pnode-1"));
    let addr = servers.addr("memtable");
    let ask = |from: Party, to: Option<Party>| {
        let mut admin = AdminClient::new(cluster_channel(&pnode.net, addr, &servers.config, from, to));
        async move { admin.status(v1::StatusRequest {}).await.map(|_| ()) }
    };
    ask(PNODE, Some(MEMTABLE)).await.unwrap();
    let refused = ask(SSTABLE, Some(MEMTABLE)).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::PermissionDenied);
    assert!(refused.message().contains("its certificate says sextant://prod/pnode/1"), "{refused}");
    // What it may ask for is its role's.
    let as_itself = cluster_channel(&pnode.net, addr, &servers.config, PNODE, Some(MEMTABLE));
    let refused = RaftClient::new(as_itself).vote(v1::VoteRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::PermissionDenied);
    assert!(refused.message().contains("pnode-1 may not call Raft.Vote"), "{refused}");
    // And a server that is not the one that was meant is not spoken to.
    let meant = ask(PNODE, Some(Party::memtable(NodeId(2)))).await.unwrap_err();
    assert_eq!(meant.code(), tonic::Code::Unavailable);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_says_nothing_is_no_harm_to_others() {
    let servers = Servers::start("optional").await;
    let client = servers.client(servers.who_shows(None)).await;
    client.put("", "k", "v").await.unwrap();
    let mut silent = Vec::new();
    for at in 0..HALF_OPEN {
        let (_, addr) = &servers.ports[at % servers.ports.len()];
        if let Ok(mut connection) = tokio::net::TcpStream::connect(addr).await {
            // Some begin a handshake, and leave it at that.
            if at % 2 == 0 {
                let _ = connection.write_all(b"\x16\x03\x01\x02\0\x01\0").await;
            }
            silent.push(connection);
        }
    }
    for i in 0..50 {
        client.put("", "k", format!("{i}")).await.unwrap();
        assert_eq!(client.get("", "k").await.unwrap().unwrap().value, format!("{i}"));
    }
    // A new client comes in too.
    let other = servers.client(servers.who_shows(servers.files("user-alice"))).await;
    assert_eq!(other.get("", "k").await.unwrap().unwrap().value, "49");
    let cut_off = async {
        for connection in &mut silent {
            while connection.read(&mut [0; 64]).await.is_ok_and(|read| read > 0) {}
        }
    };
    tokio::time::timeout(PATIENCE, cut_off).await.expect("all silent ones are cut off");
    let metrics = servers.metrics("http").await;
    assert!(metrics.contains("outcome=\"timeout\""), "{metrics}");
}

/// A connection of a Redis client.
struct Resp(sextant_environment::env::Connection);

impl Resp {
    async fn connect(env: &Env, addr: &str) -> Self {
        Self(env.net.connect(addr.to_owned(), Whom::Host).await.unwrap())
    }

    async fn line(&mut self) -> std::io::Result<String> {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            line.push(self.0.read_u8().await?);
        }
        Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
    }

    /// The first line of the answer to an inline command; of a bulk string, its first.
    async fn say(&mut self, command: &str) -> String {
        let answer = async {
            self.0.write_all(format!("{command}\r\n").as_bytes()).await?;
            let line = self.line().await?;
            match line.starts_with('$') && line != "$-1" {
                true => self.line().await,
                false => Ok(line),
            }
        };
        let answer = tokio::time::timeout(PATIENCE, answer).await.expect("an answer");
        answer.unwrap_or_else(|e| format!("(closed: {e})"))
    }

    /// Says it again until the answer begins so.
    async fn say_until(&mut self, command: &str, begins: &str) {
        let said = async {
            while !self.say(command).await.starts_with(begins) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, said).await.unwrap_or_else(|_| panic!("{command}: never {begins}"));
    }
}

/// The hash of this password, by the command.
fn hash_of(password: &str) -> String {
    use std::io::Write;

    let mut hashing =
        sextant().args(["user", "hash"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    hashing.stdin.take().unwrap().write_all(password.as_bytes()).unwrap();
    let output = hashing.wait_with_output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn users_may_do_what_their_rules_say_and_nobody_else_anything() {
    let access = format!("[access.superusers]\nroot = \"{}\"\nalice = \"\"\n", hash_of("r00t"));
    let servers = Servers::start_with("optional", &access).await;
    let (plain, alice) = (servers.who_shows(None), servers.who_shows(servers.files("user-alice")));
    let resp_addr = servers.addr("resp");

    // Nobody may do nothing, but say who it is.
    let mut nobody = Resp::connect(&plain, resp_addr).await;
    for command in ["GET a", "SET a 1", "DEL a", "PING", "INFO", "CLIENT LIST", "ACL LIST", "CONFIG GET *"] {
        let answer = nobody.say(command).await;
        assert!(answer.starts_with("-NOAUTH"), "{command}: {answer}");
    }
    for wrong in ["AUTH root wrong", "AUTH wrong", "AUTH nobody r00t", "AUTH alice x", "HELLO 3 AUTH root x"]
    {
        // The list may not be known yet.
        nobody.say_until(wrong, "-WRONGPASS").await;
    }
    assert!(nobody.say("HELLO 3").await.starts_with("-NOAUTH"));
    // What comes behind in a pipeline is not looked at before the password is.
    assert_eq!(nobody.say("AUTH root r00t\r\nACL WHOAMI").await, "+OK");
    assert_eq!(nobody.say("").await, "root");
    let mut root = Resp::connect(&plain, resp_addr).await;
    assert_eq!(root.say("AUTH root r00t").await, "+OK");
    root.say_until("SET app:1 one", "+OK").await;
    assert_eq!(root.say("SET other 1").await, "+OK");

    // A certificate is as good as a password, and both have the rules' rights.
    let mut by_certificate = Resp::connect(&alice, resp_addr).await;
    assert_eq!(by_certificate.say("ACL SETUSER bob on >b0b ~app:* +@read +@write -@write").await, "+OK");
    let mut bob = Resp::connect(&plain, resp_addr).await;
    assert_eq!(bob.say("AUTH bob b0b").await, "+OK");
    for (command, begins) in [
        ("GET app:1", "one"),
        ("GET other", "-NOPERM this user has no permissions to access one of the keys used as arguments"),
        ("MGET app:1 other", "-NOPERM this user has no permissions"),
        ("SET app:1 x", "-NOPERM this user has no permissions to run the 'set' command"),
        ("DEL app:1", "-NOPERM"),
        ("CONFIG GET *", "-NOPERM"),
        ("CLIENT LIST", "-NOPERM"),
        ("CLIENT KILL SKIPME no ID 1", "-NOPERM"),
        ("ACL LIST", "-NOPERM"),
        ("ACL SETUSER bob +@all", "-NOPERM"),
        ("SELECT 1", "-NOPERM No permissions to access database 1"),
        ("GET app:1", "one"),
    ] {
        let answer = bob.say(command).await;
        assert!(answer.starts_with(begins), "{command}: {answer}");
    }
    let one_database = "ACL SETUSER carol on >c4rol ~* resettables table=db1 +@all";
    assert_eq!(by_certificate.say(one_database).await, "+OK");
    let mut carol = Resp::connect(&plain, resp_addr).await;
    for (command, begins) in [
        ("AUTH carol c4rol", "+OK"),
        ("GET app:1", "-NOPERM this user has no permissions to access one of the keys used as arguments"),
        ("SELECT 2", "-NOPERM No permissions to access database 2"),
        ("SELECT 1", "+OK"),
        ("GET app:1", "$-1"),
        ("SET app:1 other", "+OK"),
        ("FLUSHALL", "-NOPERM No permissions to empty database 0"),
        ("GET app:1", "other"),
        ("FLUSHDB", "+OK"),
        ("DBSIZE", ":0"),
    ] {
        let answer = carol.say(command).await;
        assert!(answer.starts_with(begins), "{command}: {answer}");
    }
    // Who only reads makes none.
    assert_eq!(by_certificate.say("ACL SETUSER dave on >d4ve ~* alltables +@read").await, "+OK");
    let mut dave = Resp::connect(&plain, resp_addr).await;
    for (command, begins) in [
        ("AUTH dave d4ve", "+OK"),
        ("SELECT 1", "+OK"),
        ("GET app:1", "$-1"),
        ("SELECT 9", "-NOPERM No permissions to make database 9"),
        ("DBSIZE", ":0"),
    ] {
        let answer = dave.say(command).await;
        assert!(answer.starts_with(begins), "{command}: {answer}");
    }

    // The same over gRPC.
    let bob_calls = servers.user(plain.clone(), "bob", "b0b").await;
    assert_eq!(bob_calls.get("", "app:1").await.unwrap().unwrap().value, "one");
    let refused = [
        bob_calls.get("", "other").await.map(|_| ()),
        bob_calls.put("", "app:1", "x").await.map(|_| ()),
        bob_calls.get("sextant.access", "users").await.map(|_| ()),
        bob_calls.multi_get("", vec!["app:1".into(), "other".into()]).await.map(|_| ()),
        bob_calls.create_table("t", &Default::default()).await.map(|_| ()),
        bob_calls.flush(None).await.map(|_| ()),
        bob_calls.status().await.map(|_| ()),
        bob_calls.users().await.map(|_| ()),
        bob_calls.set_user("bob", &["+@all".to_owned()]).await,
    ];
    for (at, refused) in refused.into_iter().enumerate() {
        assert_eq!(refused.unwrap_err().kind, ErrorKind::Denied, "{at}");
    }
    let scanned = bob_calls.scan("", ScanOptions::prefix("a")).collect_records().await;
    assert_eq!(scanned.unwrap_err().kind, ErrorKind::Denied);
    let scanned = bob_calls.scan("", ScanOptions::prefix("app:")).collect_records().await;
    assert_eq!(scanned.unwrap().len(), 1);
    for (user, password) in [("bob", "wrong"), ("nobody", "b0b")] {
        let error = servers.user(plain.clone(), user, password).await.get("", "app:1").await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unauthenticated, "{user}");
    }
    let error = servers.client(plain.clone()).await.get("", "app:1").await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unauthenticated);
    // Not even who may do everything reads hashes.
    let root_calls = servers.client(alice.clone()).await;
    let error = root_calls.get("sextant.access", "users").await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Denied);

    // Users are users on Unix sockets, too, where nothing is encrypted: with TLS' network or without, and by the command.
    let (grpc_unix, resp_unix) = (servers.unix("grpc.sock"), servers.unix("resp.sock"));
    let mode = std::fs::metadata(servers.dir.path().join("grpc.sock")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    for env in [Env::real(), plain.clone(), alice.clone()] {
        let mut over_unix = Resp::connect(&env, &resp_unix).await;
        assert!(over_unix.say("GET app:1").await.starts_with("-NOAUTH"), "a certificate shows nothing here");
        assert_eq!(over_unix.say("AUTH bob b0b").await, "+OK");
        assert_eq!(over_unix.say("GET app:1").await, "one");
        assert!(over_unix.say("GET other").await.starts_with("-NOPERM"));
        let anybody =
            Client::connect_in(env, vec![grpc_unix.clone()], ClientOptions::default()).await.unwrap();
        assert_eq!(anybody.get("", "app:1").await.unwrap_err().kind, ErrorKind::Unauthenticated);
    }
    let over_unix = Client::builder(&grpc_unix).user("bob", "b0b").connect().await.unwrap();
    assert_eq!(over_unix.get("", "app:1").await.unwrap().unwrap().value, "one");
    assert_eq!(over_unix.get("", "other").await.unwrap_err().kind, ErrorKind::Denied);
    let hasty = over_unix.with_deadline(Duration::from_millis(300));
    assert_eq!(hasty.status().await.unwrap_err().kind, ErrorKind::Unavailable, "administration has TLS");
    let get = |server: &str| {
        let mut get = sextant();
        get.args(["get", "app:1", "--server", server, "--user", "bob"]).env("SEXTANT_PASSWORD", "b0b");
        get.output().unwrap()
    };
    assert_eq!(String::from_utf8_lossy(&get(&grpc_unix).stdout).trim(), "one");
    for (server, why) in [("unix:", "no path"), ("unix:/nowhere/s.sock", "/nowhere/s.sock")] {
        let output = get(server);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(why), "{server}: {said}");
    }

    // What is taken away is taken from connections that are there, too.
    root_calls.set_user("bob", &["off".to_owned()]).await.unwrap();
    let listed = root_calls.users().await.unwrap();
    assert!(listed.iter().any(|(name, rules)| name == "bob" && rules.starts_with("off")), "{listed:?}");
    assert!(!format!("{listed:?}").contains("argon2"));
    bob.say_until("GET app:1", "-NOAUTH").await;
    assert!(root_calls.remove_user("bob").await.unwrap());
    let mut bob = Resp::connect(&plain, resp_addr).await;
    assert_eq!(bob.say("AUTH bob b0b").await.split(' ').next(), Some("-WRONGPASS"));
    let metrics = servers.metrics("http").await;
    assert!(metrics.contains("sextant_access_authentications_total{outcome=\"wrong\"}"), "{metrics}");

    // The audit log: what was refused (of many at once, the first) and what was done; no secret.
    let log = std::fs::read_to_string(servers.dir.path().join("pnode.log")).unwrap();
    for line in
        ["audit: refused to nobody: get;", "audit: wrong password for root", "audit: alice changed user bob"]
    {
        assert!(log.contains(line), "{line}: {log}");
    }
    for secret in ["r00t", "b0b", "argon2"] {
        assert!(!log.contains(secret), "{secret}: {log}");
    }
}

/// All that comes back until the connection ends.
async fn all_that_is_said(env: &Env, addr: &str, said: &[u8]) -> String {
    let asked = async {
        let mut connection = env.net.connect(addr.to_owned(), Whom::Host).await.unwrap();
        // The end may come before all is sent.
        let _ = connection.write_all(said).await;
        let mut answer = Vec::new();
        let _ = connection.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    };
    tokio::time::timeout(PATIENCE, asked).await.expect("an answer or the end of the connection")
}

#[tokio::test(flavor = "multi_thread")]
async fn tricks_with_paths_and_sizes_get_nobody_further() {
    let access = format!("[access.superusers]\nroot = \"{}\"\n", hash_of("r00t"));
    let servers = Servers::start_with("optional", &access).await;
    let plain = servers.who_shows(None);

    // HTTP: there are four paths, and nothing beside them; no file is behind any.
    let alice = servers.who_shows(servers.files("user-alice"));
    let head = "host: x\r\nconnection: close\r\n";
    for port in ["http", "memtable http", "sstable http"] {
        let ask = |request: String| {
            let (env, addr) = (&alice, servers.addr(port));
            async move { all_that_is_said(env, addr, request.as_bytes()).await }
        };
        assert!(ask(format!("GET /metrics HTTP/1.1\r\n{head}\r\n")).await.starts_with("HTTP/1.1 200"));
        for path in [
            "/../../../../etc/passwd",
            "/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
            "/status/../../certs/ca.key",
            "/status%2f..%2fmetrics",
            "//status",
            "/metrics%00",
            "/metrics/",
            "/.",
        ] {
            let answer = ask(format!("GET {path} HTTP/1.1\r\n{head}\r\n")).await;
            let begins = ["HTTP/1.1 404", "HTTP/1.1 400"].iter().any(|status| answer.starts_with(status));
            assert!(begins && !answer.contains("root:"), "{port} {path}: {answer}");
        }
        let long = "x".repeat(20_000);
        for (request, status) in [
            (format!("GET /{long} HTTP/1.1\r\n{head}\r\n"), "HTTP/1.1 4"),
            (format!("GET /status HTTP/1.1\r\n{head}long: {long}\r\n\r\n"), "HTTP/1.1 431"),
            (format!("POST /status HTTP/1.1\r\n{head}content-length: 1\r\n\r\nx"), "HTTP/1.1 405"),
            (format!("DELETE /metrics HTTP/1.1\r\n{head}\r\n"), "HTTP/1.1 405"),
        ] {
            let answer = ask(request).await;
            assert!(answer.starts_with(status), "{port}: {answer:.100} instead of {status}");
        }
    }

    // RESP: who is nobody announces much, or sends more than a name and a password have.
    let many = format!("*1048576\r\n{}", "$1\r\na\r\n".repeat(10_000));
    let value = "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$8388608\r\n";
    for announced in [&many, "*2\r\n$536870912\r\n", value] {
        let answer = all_that_is_said(&plain, servers.addr("resp"), announced.as_bytes()).await;
        let is_refused = answer.starts_with("-NOAUTH") || answer.starts_with("-ERR Protocol");
        assert!(is_refused, "{announced:.40}: {answer}");
    }
    for malformed in ["*-5\r\n*x\r\n", "*1\r\n$-7\r\n", "*99999999999999999999\r\n"] {
        let answer = all_that_is_said(&plain, servers.addr("resp"), malformed.as_bytes()).await;
        assert!(answer.starts_with("-ERR Protocol error"), "{malformed:?}: {answer}");
    }
    let long = [b"AUTH ".as_slice(), &[b'x'; 100_000], b"\r\n"].concat();
    assert!(all_that_is_said(&plain, servers.addr("resp"), &long).await.starts_with('-'));

    // gRPC: refused for who asks, then for what is asked.
    let nobody = servers.client(plain.clone()).await;
    let huge = vec![b'x'; 9 << 20];
    let error = nobody.put("", "k", huge.clone()).await.unwrap_err();
    assert_ne!(error.kind, ErrorKind::OutcomeUnknown, "{}", error.message);
    let root = servers.user(plain, "root", "r00t").await;
    assert_eq!(root.put("", "k", huge).await.unwrap_err().kind, ErrorKind::Invalid);
    assert_eq!(root.put("", vec![b'k'; 17 << 10], "v").await.unwrap_err().kind, ErrorKind::Invalid);
    for table in ["../../etc", "a/b", "a\0b", &"t".repeat(129)] {
        let made = root.create_table(table, &Default::default()).await;
        assert_eq!(made.unwrap_err().kind, ErrorKind::Invalid, "{table:?}");
    }
    assert_eq!(root.get("", "k").await.unwrap(), None);
    root.put("", "k", "v").await.unwrap();
    assert_eq!(root.get("", "k").await.unwrap().unwrap().value, "v");
}

#[test]
fn a_server_that_others_can_reach_is_not_open_by_mistake() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let out = path("config");
    run(&[
        "config",
        "init",
        "--memtable",
        "a",
        "--sstable",
        "b",
        "--pnode",
        "c",
        "--out",
        &out,
        "--data",
        &path("d"),
    ]);
    for role in ["memtable", "sstable", "pnode"] {
        let file = format!("{out}/{role}-1.toml");
        let output = sextant().args([role, "--config", &file]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("0.0.0.0") && said.contains("--insecure") && said.contains("[tls]"), "{said}");
    }
}

#[test]
fn a_server_with_a_certificate_of_another_time_is_to_be_started_again_one_with_wrong_files_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (out, certs) = (path("config"), path("certs"));
    let hosts = ["--memtable", "a", "--sstable", "b", "--pnode", "c"];
    run(&[&["config", "init", "--out", &out, "--tls", &certs][..], &hosts[..]].concat());
    let file = format!("{out}/pnode-1.toml");
    run(&["cert", "init", "--dir", &certs]);
    run(&["cert", "server", &file, "--dir", &certs]);
    let ends = |code: i32, why: &str| {
        let output = sextant().args(["pnode", "--config", &file]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(code) && said.contains(why), "{said}");
        assert!(said.contains("pnode-1.toml: tls: ") && said.contains("pnode-1.pem"), "{said}");
    };
    let text = |name: &str| std::fs::read_to_string(Path::new(&certs).join(name)).unwrap();
    let authority = Authority::load(&text("ca.pem"), &text("ca.key")).unwrap();
    let day_s = 86_400;
    for (from_s, why) in [(now_s() + 5 * day_s, "not valid yet"), (now_s() - 5 * day_s, "expired")] {
        let issued = authority.issue(Holder::Server(PNODE), &[], from_s, 1).unwrap();
        std::fs::write(Path::new(&certs).join("pnode-1.pem"), issued.cert).unwrap();
        std::fs::write(Path::new(&certs).join("pnode-1.key"), issued.key).unwrap();
        ends(3, why);
    }
    std::fs::write(Path::new(&certs).join("pnode-1.pem"), "nothing").unwrap();
    ends(2, "no certificate in it");
}

#[test]
fn keys_are_for_their_owner_and_nothing_is_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let certs = dir.path().join("certs");
    let certs = certs.to_str().unwrap();
    run(&["cert", "init", "--dir", certs]);
    run(&["cert", "user", "bob", "--dir", certs]);
    for key in ["ca.key", "user-bob.key"] {
        let mode = std::fs::metadata(Path::new(certs).join(key)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{key}");
    }
    let refuse = |args: &[&str], why: &str| {
        let output = sextant().args(args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(why), "{args:?}: {said}");
    };
    refuse(&["cert", "init", "--dir", certs], "exists already");
    refuse(&["cert", "user", "bob", "--dir", certs], "exists already");
    refuse(&["cert", "user", "../bob", "--dir", certs], "a user's name");
    refuse(&["cert", "user", "eve", "--dir", certs, "--days", "0"], "days: 1 to");
    refuse(&["cert", "user", "eve", "--dir", "/nowhere"], "/nowhere/ca.pem");
    run(&["cert", "user", "bob", "--dir", certs, "--renew"]);
}

#[test]
fn a_renewed_certificate_has_the_host_names_of_the_one_before() {
    let dir = tempfile::tempdir().unwrap();
    let (config, certs) = (dir.path().join("config"), dir.path().join("certs"));
    let (config, certs) = (config.to_str().unwrap(), certs.to_str().unwrap());
    run(&["config", "init", "--memtable", "a,b,c", "--sstable", "d,e,f", "--pnode", "g", "--out", config]);
    run(&["cert", "init", "--dir", certs]);
    let file = format!("{config}/pnode-1.toml");
    let path = Path::new(certs).join("pnode-1.pem");
    let names = || {
        let mut names = sextant_tls::host_names(&std::fs::read_to_string(&path).unwrap()).unwrap();
        names.sort();
        names
    };
    run(&["cert", "server", &file, "--dir", certs, "--host", "db.example.org"]);
    let before = std::fs::read(&path).unwrap();
    assert_eq!(names(), ["db.example.org", "localhost"]);
    run(&["cert", "server", &file, "--dir", certs, "--renew", "--host", "g"]);
    assert_ne!(std::fs::read(&path).unwrap(), before);
    assert_eq!(names(), ["db.example.org", "g", "localhost"]);
    std::fs::write(&path, "nothing").unwrap();
    let output = sextant().args(["cert", "server", &file, "--dir", certs, "--renew"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "what it was for is not known");
}

/// The type that the files above are written as.
#[test]
fn the_section_tls_is_what_the_documents_say() {
    let tls: TlsConfig = toml::from_str("ca = \"a\"\ncert = \"b\"\nkey = \"c\"\n").unwrap();
    assert_eq!(tls.clients, ClientCertificates::Required);
    assert!(
        toml::from_str::<TlsConfig>("ca = \"a\"\ncert = \"b\"\nkey = \"c\"\nclients = \"no\"\n").is_err()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_talks_as_the_server_would() {
    let servers = Servers::start("required").await;
    let file = servers.dir.path().join("memtable-1.toml");
    let doctor = || {
        let output = sextant().args(["doctor", "--config"]).arg(&file).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (_, printed) = doctor();
    let (memtable, sstable) = (servers.addr("memtable"), servers.addr("sstable"));
    for line in [
        "ok       certificate of memtable-1: it is good for ".to_owned(),
        format!("ok       port {memtable} (members) of memtable-1: in use by this server, which runs "),
        format!("ok       server of sstable-1 ({sstable}): version "),
    ] {
        assert!(printed.lines().any(|printed| printed.starts_with(&line)), "{line}: {printed}");
    }
    let connection = format!("connection of sstable-1 ({sstable}): ");
    let is_encrypted = |line: &str| line.contains(&connection) && line.contains(", and TLS ");
    assert!(printed.lines().any(is_encrypted), "{printed}");

    // With a certificate of somebody else nobody would talk to it.
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("certs/memtable-1.", "certs/sstable-1.")).unwrap();
    let (code, printed) = doctor();
    let why = printed.lines().find(|line| line.starts_with("bad      certificate of memtable-1: "));
    assert_eq!((code, why.is_some_and(|why| why.contains("/sstable/1"))), (Some(1), true), "{printed}");
    assert!(printed.contains("cannot be told: its certificate is no good"), "{printed}");
}
