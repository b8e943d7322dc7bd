use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use sextant_common::error::ErrorKind;
use sextant_common::ids::NodeId;
use sextant_environment::clock::{Clock, WallInterval};
use sextant_environment::config::{ClientCertificates, TlsConfig};
use sextant_environment::env::{Connection, Door, Holder, Identity, Network, Party, PartyRole, Whom};
use sextant_environment::http::{self, HttpState};
use sextant_environment::{Env, shutdown};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::mpsc;

use crate::authority::{Authority, Issued};
use crate::handshakes::PER_ORIGIN_MAX;
use crate::{ClientFiles, TlsNetwork};

const MEMTABLE: Party = Party { role: PartyRole::Memtable, id: NodeId(1) };
const SSTABLE: Party = Party { role: PartyRole::Sstable, id: NodeId(2) };
const PNODE: Party = Party { role: PartyRole::PNode, id: NodeId(1) };
const YEAR: u64 = 365;
const DAY_S: u64 = 86_400;

fn now_s() -> u64 {
    Env::real().clock.wall_guess_ns() / 1_000_000_000
}

/// Files of one authority.
struct Desk {
    dir: TempDir,
    authority: Authority,
}

impl Desk {
    fn new(cluster: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let Issued { cert, key } = Authority::create(cluster, now_s(), YEAR).unwrap();
        std::fs::write(dir.path().join("ca.pem"), &cert).unwrap();
        Self { dir, authority: Authority::load(&cert, &key).unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn ca(&self) -> PathBuf {
        self.path("ca.pem")
    }

    /// Certificate and key of `holder`, valid for `days` from `from_s` on.
    fn issue(&self, holder: Holder, from_s: u64, days: u64) -> (PathBuf, PathBuf) {
        let issued = self.authority.issue(holder.clone(), &[], from_s, days).unwrap();
        let name = match holder {
            Holder::Server(party) => party.to_string(),
            Holder::User(user) => user,
        };
        let (cert, key) = (self.path(&format!("{name}.pem")), self.path(&format!("{name}.key")));
        std::fs::write(&cert, issued.cert).unwrap();
        std::fs::write(&key, issued.key).unwrap();
        (cert, key)
    }

    fn config(&self, me: Party, clients: ClientCertificates) -> TlsConfig {
        let (cert, key) = self.issue(Holder::Server(me), now_s(), YEAR);
        TlsConfig { ca: self.ca(), cert, key, clients }
    }

    fn server(&self, me: Party, clients: ClientCertificates) -> TlsNetwork {
        let cluster = self.authority.cluster();
        TlsNetwork::server(Env::real(), &self.config(me, clients), cluster, me).unwrap()
    }

    /// One that accepts the certificates of the authority in `ca`.
    fn client(&self, ca: &Path, holder: Option<Holder>) -> TlsNetwork {
        let shown = holder.map(|holder| self.issue(holder, now_s(), YEAR));
        let files = ClientFiles { ca: ca.to_owned(), shown };
        TlsNetwork::client(Env::real(), files, self.authority.cluster()).unwrap()
    }
}

fn user(name: &str) -> Option<Holder> {
    Some(Holder::User(name.to_owned()))
}

/// Answers every connection with who it is taken for.
async fn doorkeeper(net: &TlsNetwork, door: Door) -> SocketAddr {
    let mut listener = net.bind("127.0.0.1:0".into(), door).await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let connection = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut connection = connection.established().await?;
                let shown = connection.identity.as_ref().map_or("nobody".to_owned(), |who| who.to_string());
                connection.write_all(shown.as_bytes()).await?;
                connection.shutdown().await
            });
        }
    });
    addr
}

/// What the doorkeeper says.
async fn knock(net: &TlsNetwork, addr: SocketAddr, whom: Whom) -> io::Result<String> {
    let mut connection = net.connect(addr.to_string(), whom).await?;
    let mut said = String::new();
    connection.read_to_string(&mut said).await?;
    Ok(said)
}

fn metrics(net: &TlsNetwork) -> String {
    let mut registry = Registry::default();
    net.register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    text
}

/// How handshakes ended at this server: `door outcome` with their numbers.
fn handshakes(net: &TlsNetwork) -> Vec<String> {
    let mut lines: Vec<_> = metrics(net)
        .lines()
        .filter_map(|line| line.strip_prefix("sextant_tls_handshakes_total"))
        .map(|line| line.replace(['{', '}', '"'], "").replace("door=", "").replace(",outcome=", " "))
        .collect();
    lines.sort();
    lines
}

/// A client may be done before the server has counted it.
async fn counted_soon(net: &TlsNetwork, line: &str) {
    let counted = async {
        while !handshakes(net).contains(&line.to_owned()) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let counted = tokio::time::timeout(Duration::from_secs(30), counted).await;
    assert!(counted.is_ok(), "{line} is not among {:?}", handshakes(net));
}

#[tokio::test]
async fn who_meets_no_tls_is_told_so() {
    let desk = Desk::new("prod");
    let client = desk.client(&desk.ca(), None);
    // What gRPC without TLS begins with, what Redis answers, and nothing at all.
    for (first_words, why) in [
        (&[0u8, 0, 0, 4, 0, 0, 0, 0, 0][..], "speaks no TLS"),
        (b"-ERR Protocol error\r\n", "speaks no TLS"),
        (b"", "ended during the handshake"),
    ] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let answers = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut hello = [0; 5];
            stream.read_exact(&mut hello).await.unwrap();
            stream.write_all(first_words).await.unwrap();
            stream.shutdown().await.unwrap();
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest).await;
        };
        let ((), told) = tokio::join!(answers, knock(&client, addr, Whom::Host));
        let told = told.unwrap_err().to_string();
        assert!(told.contains(why) && told.contains("not encrypted"), "{told}");
    }
}

#[tokio::test]
async fn servers_of_the_cluster_know_each_other_by_their_certificates() {
    let desk = Desk::new("prod");
    let memtable = desk.server(MEMTABLE, ClientCertificates::Required);
    let sstable = desk.server(SSTABLE, ClientCertificates::Required);
    let addr = doorkeeper(&memtable, Door::Members).await;
    for whom in [Whom::Member(Some(MEMTABLE)), Whom::Member(None), Whom::Host] {
        assert_eq!(knock(&sstable, addr, whom).await.unwrap(), "sextant://prod/sstable/2");
    }
    let connection = sstable.connect(addr.to_string(), Whom::Member(None)).await.unwrap();
    assert_eq!(connection.identity.as_deref(), Some(&Identity::server("prod", MEMTABLE)));
    // Another server than the one that is meant, at its address.
    let refused = knock(&sstable, addr, Whom::Member(Some(PNODE))).await.unwrap_err();
    assert!(
        refused.to_string().contains("names sextant://prod/memtable/1, not pnode-1 of prod"),
        "{refused}"
    );
}

#[tokio::test]
async fn nobody_else_comes_in_by_the_door_of_members() {
    let desk = Desk::new("prod");
    let server = desk.server(MEMTABLE, ClientCertificates::Optional);
    let addr = doorkeeper(&server, Door::Members).await;
    let (other, unknown) = (Desk::new("other"), Desk::new("prod"));
    // Trusts both authorities: another cluster of the same house.
    let both = std::fs::read_to_string(desk.ca()).unwrap() + &std::fs::read_to_string(other.ca()).unwrap();
    std::fs::write(desk.ca(), both).unwrap();
    server.reload().unwrap();

    let expired = desk.issue(Holder::Server(SSTABLE), now_s() - 10 * DAY_S, 1);
    let expired = ClientFiles { ca: desk.ca(), shown: Some(expired) };
    let strangers = [
        (desk.client(&desk.ca(), None), "members no_certificate 1"),
        (desk.client(&desk.ca(), user("alice")), "members not_of_the_cluster 1"),
        (unknown.client(&desk.ca(), Some(Holder::Server(SSTABLE))), "members unknown_authority 1"),
        (other.client(&desk.ca(), Some(Holder::Server(SSTABLE))), "members not_of_the_cluster 2"),
        (TlsNetwork::client(Env::real(), expired, "prod").unwrap(), "members expired 1"),
    ];
    for (stranger, counted) in strangers {
        let said = knock(&stranger, addr, Whom::Host).await;
        assert!(said.as_ref().map_or(true, String::is_empty), "{counted}: {said:?}");
        counted_soon(&server, counted).await;
    }
}

#[tokio::test]
async fn clients_show_a_certificate_where_that_is_asked_and_a_bad_one_nowhere() {
    let desk = Desk::new("prod");
    let stranger = Desk::new("prod");
    for (clients, without) in
        [(ClientCertificates::Required, None), (ClientCertificates::Optional, Some("nobody"))]
    {
        let server = desk.server(PNODE, clients);
        for door in [Door::Grpc, Door::Resp, Door::Admin, Door::Http] {
            let addr = doorkeeper(&server, door).await;
            let alice = desk.client(&desk.ca(), user("alice"));
            assert_eq!(knock(&alice, addr, Whom::Host).await.unwrap(), "sextant://prod/user/alice");
            let said = knock(&desk.client(&desk.ca(), None), addr, Whom::Host).await;
            assert_eq!(said.as_deref().ok(), without, "{door:?} {said:?}");
            let mallory = stranger.client(&desk.ca(), user("alice"));
            let said = knock(&mallory, addr, Whom::Host).await;
            assert!(said.as_ref().map_or(true, String::is_empty), "{door:?} {said:?}");
        }
    }
}

#[tokio::test]
async fn clients_look_at_the_authority_and_at_the_hosts_name() {
    let (desk, stranger) = (Desk::new("prod"), Desk::new("prod"));
    let server = desk.server(PNODE, ClientCertificates::Optional);
    let addr = doorkeeper(&server, Door::Grpc).await;
    let wary = knock(&stranger.client(&stranger.ca(), None), addr, Whom::Host).await.unwrap_err();
    assert!(wary.to_string().contains("UnknownIssuer"), "{wary}");
    let port = addr.port();
    let client = desk.client(&desk.ca(), None);
    let named = client.connect(format!("localhost:{port}"), Whom::Host).await;
    assert!(named.is_ok(), "{:?}", named.err());
    // An address of this host that the certificate does not name.
    let elsewhere = server.bind("127.0.0.2:0".into(), Door::Grpc).await;
    if let Ok(listener) = elsewhere {
        let addr = listener.local_addr().unwrap().to_string();
        let accepting = tokio::spawn(async move {
            let mut listener = listener;
            drop(listener.accept().await?.established().await);
            io::Result::Ok(())
        });
        let refused = client.connect(addr, Whom::Host).await.err().unwrap();
        assert!(refused.to_string().contains("not valid for name"), "{refused}");
        accepting.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn what_is_not_tls_is_refused() {
    let desk = Desk::new("prod");
    let server = desk.server(PNODE, ClientCertificates::Optional);
    let addr = doorkeeper(&server, Door::Resp).await;
    let mut plain = tokio::net::TcpStream::connect(addr).await.unwrap();
    plain.write_all(b"*1\r\n$4\r\nPING\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"+PONG"), "{answer:?}");
    counted_soon(&server, "resp not_tls 1").await;
}

/// Accepts what it is given.
struct Given(tokio::sync::Mutex<Option<Connection>>);

#[tokio::test(start_paused = true)]
async fn who_says_nothing_is_cut_off_after_a_while() {
    let desk = Desk::new("prod");
    let config = desk.config(PNODE, ClientCertificates::Optional);
    let (near, far) = tokio::io::duplex(1024);
    let given = Given(tokio::sync::Mutex::new(Some(Connection::new(far, None))));
    let net =
        TlsNetwork::server(Env { net: Arc::new(given), ..Env::real() }, &config, "prod", PNODE).unwrap();
    let mut listener = net.bind("anywhere:1".into(), Door::Grpc).await.unwrap();
    let connection = listener.accept().await.unwrap();
    let mut established = std::pin::pin!(connection.established());
    let early = tokio::time::timeout(Duration::from_secs(1), &mut established).await;
    assert!(early.is_err(), "a slow client has a second");
    let refused = established.await.err().unwrap();
    assert_eq!(refused.kind(), io::ErrorKind::TimedOut);
    assert_eq!(handshakes(&net), ["grpc timeout 1"]);
    drop(near);
}

#[tokio::test]
async fn new_files_are_taken_and_bad_ones_are_not() {
    let desk = Desk::new("prod");
    let server = desk.server(PNODE, ClientCertificates::Optional);
    let addr = doorkeeper(&server, Door::Grpc).await;
    let old = desk.client(&desk.ca(), None);
    knock(&old, addr, Whom::Host).await.unwrap();

    let (cert, key) = (desk.path("pnode-1.pem"), desk.path("pnode-1.key"));
    let good = [std::fs::read(&cert).unwrap(), std::fs::read(&key).unwrap()];
    let another = Desk::new("prod");
    let foreign = another.authority.issue(Holder::Server(PNODE), &[], now_s(), YEAR).unwrap();
    let somebody = desk.authority.issue(Holder::Server(MEMTABLE), &[], now_s(), YEAR).unwrap();
    let bad: [(Vec<u8>, Vec<u8>, &str); 5] = [
        (b"rubbish".to_vec(), good[1].clone(), "no certificate in it"),
        (good[0].clone(), Vec::new(), "pnode-1.key"),
        (good[0].clone(), foreign.key.clone().into(), "pnode-1.pem"),
        (foreign.cert.into(), foreign.key.into(), "UnknownIssuer"),
        (somebody.cert.into(), somebody.key.into(), "names somebody else"),
    ];
    for (bad_cert, bad_key, why) in bad {
        std::fs::write(&cert, bad_cert).unwrap();
        std::fs::write(&key, bad_key).unwrap();
        let error = server.reload().unwrap_err();
        assert!(error.message.contains(why), "{error}");
        knock(&old, addr, Whom::Host).await.unwrap();
    }

    // Another authority, and a certificate of it.
    let [ca, issued] = [another.ca(), desk.ca()];
    std::fs::copy(&ca, &issued).unwrap();
    let renewed = another.authority.issue(Holder::Server(PNODE), &[], now_s(), YEAR).unwrap();
    std::fs::write(&cert, renewed.cert).unwrap();
    std::fs::write(&key, renewed.key).unwrap();
    server.reload().unwrap();
    knock(&old, addr, Whom::Host).await.unwrap_err();
    knock(&another.client(&another.ca(), None), addr, Whom::Host).await.unwrap();
}

/// Whether it comes to that within a minute, by a clock that goes on when nobody has anything to do.
async fn comes_to(condition: impl Fn() -> bool) -> bool {
    for _ in 0..60 {
        if condition() {
            return true;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    condition()
}

fn failed_to_reload(net: &TlsNetwork) -> bool {
    metrics(net).contains("\nsextant_tls_reload_failed 1\n")
}

#[tokio::test(start_paused = true)]
async fn changed_files_are_noticed_while_the_server_runs() {
    let desk = Desk::new("prod");
    let server = desk.server(PNODE, ClientCertificates::Optional);
    let watching = tokio::spawn(server.watch());
    let spoil: [(u64, fn(PathBuf)); 2] = [
        (30, |cert| std::fs::write(cert, "rubbish").unwrap()),
        (60, |cert| std::fs::remove_file(cert).unwrap()),
    ];
    for (days, spoil) in spoil {
        let before_s = server.expires_s();
        spoil(desk.path("pnode-1.pem"));
        assert!(comes_to(|| failed_to_reload(&server)).await);
        assert_eq!(server.expires_s(), before_s);
        desk.issue(Holder::Server(PNODE), now_s(), days);
        assert!(comes_to(|| server.expires_s() != before_s && !failed_to_reload(&server)).await);
    }
    assert!(!watching.is_finished());
}

/// Seconds since 1970 that a test says.
struct Said(AtomicU64);

impl Clock for Said {
    fn wall(&self) -> WallInterval {
        WallInterval::UNSYNCHRONISED
    }

    fn wall_guess_ns(&self) -> u64 {
        self.0.load(Ordering::SeqCst) * 1_000_000_000
    }

    fn holder_ns(&self) -> u64 {
        self.wall_guess_ns()
    }

    fn grantor_ns(&self) -> u64 {
        self.wall_guess_ns()
    }
}

#[tokio::test(start_paused = true)]
async fn a_certificate_that_was_not_valid_yet_by_a_clock_that_was_behind_is_taken_when_it_is() {
    let desk = Desk::new("prod");
    let config = desk.config(PNODE, ClientCertificates::Optional);
    let clock = Arc::new(Said(AtomicU64::new(now_s())));
    let env = Env { clock: clock.clone(), ..Env::real() };
    let server = TlsNetwork::server(env, &config, "prod", PNODE).unwrap();
    let watching = tokio::spawn(server.watch());
    let before_s = server.expires_s();
    let from_s = now_s() + 30 * DAY_S;
    desk.issue(Holder::Server(PNODE), from_s, 60);
    assert!(comes_to(|| failed_to_reload(&server)).await);
    // It is looked at again and again.
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(server.expires_s() == before_s && failed_to_reload(&server));
    clock.0.store(from_s, Ordering::SeqCst);
    assert!(comes_to(|| server.expires_s() == from_s + 60 * DAY_S && !failed_to_reload(&server)).await);
    assert!(!watching.is_finished());
}

/// The beginning of a handshake.
const HALF_A_HELLO: &[u8] = b"\x16\x03\x01\x02\0\x01\0";

/// A network in memory: one port, and who comes to it from a host.
#[derive(Clone)]
struct Street {
    host: u8,
    arrive: mpsc::Sender<Connection>,
    port: Arc<Mutex<Option<mpsc::Receiver<Connection>>>>,
}

impl Street {
    fn new() -> Self {
        let (arrive, port) = mpsc::channel(16);
        Self { host: 0, arrive, port: Arc::new(Mutex::new(Some(port))) }
    }

    /// The same, for whoever comes from another host.
    fn of(&self, host: u8) -> Self {
        Self { host, ..self.clone() }
    }

    async fn arrives(&self) -> DuplexStream {
        let (near, far) = tokio::io::duplex(4096);
        let peer = SocketAddr::from(([192, 0, 2, self.host], 1));
        assert!(self.arrive.send(Connection::new(far, Some(peer))).await.is_ok(), "somebody listens");
        near
    }

    fn env(&self) -> Env {
        Env { net: Arc::new(self.clone()), ..Env::real() }
    }

    fn server(&self, desk: &Desk, clock: Arc<dyn Clock>) -> TlsNetwork {
        let config = desk.config(PNODE, ClientCertificates::Optional);
        TlsNetwork::server(Env { clock, ..self.env() }, &config, "prod", PNODE).unwrap()
    }

    /// One who comes from here, and shows nothing.
    fn client(&self, desk: &Desk) -> TlsNetwork {
        let files = ClientFiles { ca: desk.ca(), shown: None };
        TlsNetwork::client(self.env(), files, "prod").unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_keeps_its_share_half_open_keeps_nobody_out_of_the_same_address_either() {
    let (desk, street) = (Desk::new("prod"), Street::new());
    let clock = Arc::new(Said(AtomicU64::new(now_s())));
    let server = street.server(&desk, clock.clone());
    let addr = doorkeeper(&server, Door::Grpc).await;
    let clients = [1, 2].map(|host| street.of(host).client(&desk));
    let mut silent = Vec::new();
    for _ in 0..PER_ORIGIN_MAX {
        silent.push(street.of(1).arrives().await);
    }
    knock(&clients[0], addr, Whom::Host).await.unwrap();
    counted_soon(&server, "grpc ok 1").await;
    assert_eq!(handshakes(&server), ["grpc ok 1"], "all of them are young");
    clock.0.fetch_add(1, Ordering::SeqCst);
    for client in &clients {
        knock(client, addr, Whom::Host).await.unwrap();
    }
    counted_soon(&server, "grpc too_many 1").await;
    assert_eq!(silent[0].read(&mut [0]).await.unwrap(), 0, "the oldest");
    drop(silent);
}

#[tokio::test(start_paused = true)]
async fn a_thousand_half_open_handshakes_keep_nobody_from_asking_for_health() {
    let (desk, street) = (Desk::new("prod"), Street::new());
    let env = Env { net: Arc::new(street.server(&desk, Env::real().clock)), ..Env::real() };
    let state = HttpState {
        registry: Arc::default(),
        ready: Arc::new(|| Ok(())),
        status: Arc::new(|| Box::pin(async { String::new() })),
    };
    let (_running, stops) = shutdown::channel();
    let addr = http::serve(&env, "127.0.0.1:1", state, stops).await.unwrap();
    let mut silent = Vec::new();
    for at in 0..1000 {
        let mut stream = street.of(1).arrives().await;
        if at % 2 == 0 {
            stream.write_all(HALF_A_HELLO).await.unwrap();
        }
        silent.push(stream);
    }
    for host in [1, 2] {
        let client = street.of(host).client(&desk);
        let asked = async {
            let mut connection = client.connect(addr.to_string(), Whom::Host).await.unwrap();
            connection.write_all(b"GET /health/live HTTP/1.0\r\n\r\n").await.unwrap();
            let mut answer = Vec::new();
            connection.read_to_end(&mut answer).await.unwrap();
            String::from_utf8(answer).unwrap()
        };
        let answer = tokio::time::timeout(Duration::from_secs(1), asked).await.expect("nobody waits");
        assert!(answer.ends_with("alive\n"), "{answer}");
    }
    drop(silent);
}

#[tokio::test]
async fn a_server_starts_with_its_own_good_certificate_or_not_at_all() {
    let desk = Desk::new("prod");
    let start =
        |config: &TlsConfig, cluster: &str, me| TlsNetwork::server(Env::real(), config, cluster, me).err();
    let config = desk.config(PNODE, ClientCertificates::Required);
    assert!(start(&config, "prod", PNODE).is_none());
    let foreign = TlsConfig { ca: Desk::new("prod").dir.keep().join("ca.pem"), ..config.clone() };
    let missing = TlsConfig { key: desk.path("none.key"), ..config.clone() };
    let directory = TlsConfig { cert: desk.dir.path().to_owned(), ..config.clone() };
    let mistakes = [
        (&config, "prod", MEMTABLE, "the certificate names sextant://prod/pnode/1"),
        (&config, "test", PNODE, "this is sextant://test/pnode/1"),
        (&foreign, "prod", PNODE, "UnknownIssuer"),
        (&missing, "prod", PNODE, "none.key: No such file"),
        (&directory, "prod", PNODE, "Is a directory"),
    ];
    for (config, cluster, me, why) in mistakes {
        let error = start(config, cluster, me).unwrap();
        assert_eq!(error.kind, ErrorKind::Invalid, "{error}");
        assert!(error.message.starts_with("tls: ") && error.message.contains(why), "{error}");
    }
}

#[tokio::test]
async fn a_certificate_outside_of_its_time_may_be_good_later() {
    let desk = Desk::new("prod");
    let config = desk.config(PNODE, ClientCertificates::Required);
    let server = TlsNetwork::server(Env::real(), &config, "prod", PNODE).unwrap();
    // (A clock that is not set says 1970, or when the machine was built.)
    for (from_s, why) in [(now_s() + YEAR * DAY_S, "not valid yet"), (now_s() - 5 * DAY_S, "expired")] {
        desk.issue(Holder::Server(PNODE), from_s, 1);
        for error in [
            TlsNetwork::server(Env::real(), &config, "prod", PNODE).err().unwrap(),
            server.reload().unwrap_err(),
        ] {
            assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
            assert!(error.message.contains(why) && error.message.contains("pnode-1.pem"), "{error}");
        }
    }
}

#[test]
fn an_authority_issues_for_days_that_make_sense_only() {
    let desk = Desk::new("prod");
    for days in [0, 36_501, u64::MAX] {
        assert!(desk.authority.issue(Holder::Server(PNODE), &[], now_s(), days).is_err());
    }
    let hosts = ["not a host".to_owned(), "ünï".to_owned()];
    assert!(desk.authority.issue(Holder::Server(PNODE), &hosts[1..], now_s(), 1).is_err());
    let Issued { cert, key } = desk.authority.issue(Holder::Server(PNODE), &[], now_s(), 1).unwrap();
    let error = Authority::load(&cert, &key).err().unwrap();
    assert!(error.message.contains("no certificate of an authority"), "{error}");
}

mod given {
    use futures::future::BoxFuture;
    use sextant_environment::env::Listener;

    use super::*;

    struct Once(Option<Connection>);

    struct Port(mpsc::Receiver<Connection>);

    impl Listener for Port {
        fn local_addr(&self) -> io::Result<SocketAddr> {
            Ok(([127, 0, 0, 1], 1).into())
        }

        fn accept(&mut self) -> BoxFuture<'_, io::Result<Connection>> {
            Box::pin(async {
                match self.0.recv().await {
                    Some(connection) => Ok(connection),
                    None => std::future::pending().await,
                }
            })
        }
    }

    impl Network for Street {
        fn bind(&self, _: String, _: Door) -> BoxFuture<'static, io::Result<Box<dyn Listener>>> {
            let port = self.port.lock().take().expect("one listener");
            Box::pin(async { Ok(Box::new(Port(port)) as Box<dyn Listener>) })
        }

        fn connect(&self, _: String, _: Whom) -> BoxFuture<'static, io::Result<Connection>> {
            let street = self.clone();
            Box::pin(async move { Ok(Connection::new(street.arrives().await, None)) })
        }
    }

    impl Listener for Once {
        fn local_addr(&self) -> io::Result<SocketAddr> {
            Ok(([127, 0, 0, 1], 1).into())
        }

        fn accept(&mut self) -> BoxFuture<'_, io::Result<Connection>> {
            let given = self.0.take();
            Box::pin(async { given.ok_or_else(|| io::ErrorKind::NotConnected.into()) })
        }
    }

    impl Network for Given {
        fn bind(&self, _: String, _: Door) -> BoxFuture<'static, io::Result<Box<dyn Listener>>> {
            let given = self.0.try_lock().unwrap().take();
            Box::pin(async { Ok(Box::new(Once(given)) as Box<dyn Listener>) })
        }

        fn connect(&self, _: String, _: Whom) -> BoxFuture<'static, io::Result<Connection>> {
            Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
        }
    }
}
