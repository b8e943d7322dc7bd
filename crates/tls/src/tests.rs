use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;
use sextant_common::error::ErrorKind;
use sextant_common::ids::NodeId;
use sextant_environment::Env;
use sextant_environment::config::{ClientCertificates, TlsConfig};
use sextant_environment::env::{Connection, Door, Holder, Identity, Network, Party, PartyRole, Whom};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::authority::{Authority, Issued};
use crate::{ClientFiles, TlsNetwork};

const MEMTABLE: Party = Party { role: PartyRole::Memtable, id: NodeId(1) };
const SSTABLE: Party = Party { role: PartyRole::Sstable, id: NodeId(2) };
const PNODE: Party = Party { role: PartyRole::PNode, id: NodeId(1) };
const YEAR: u64 = 365;

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

/// How handshakes ended at this server: `door outcome` with their numbers.
fn handshakes(net: &TlsNetwork) -> Vec<String> {
    let mut registry = Registry::default();
    net.register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    let mut lines: Vec<_> = text
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

    let expired = desk.issue(Holder::Server(SSTABLE), now_s() - 10 * 86_400, 1);
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
    for (from_s, why) in [(now_s() + YEAR * 86_400, "not valid yet"), (now_s() - 5 * 86_400, "expired")] {
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
