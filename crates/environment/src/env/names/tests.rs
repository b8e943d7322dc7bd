//! Against a name server of the test's own.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use hickory_resolver::proto::op::{Message, MessageType, ResponseCode};
use hickory_resolver::proto::rr::rdata::{A, AAAA, CNAME};
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};
use parking_lot::Mutex;
use sextant_common::error::ErrorKind;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, UdpSocket};

use super::*;
use crate::env::cannot_listen;
use crate::env::dialing::dial;

/// What a name server says, and has been asked.
#[derive(Default)]
struct Zone {
    records: HashMap<&'static str, Vec<RData>>,
    /// Answers that do not fit into a datagram.
    is_large: bool,
    /// Datagrams that are lost first.
    lost: usize,
    /// It answers, and knows nothing for the moment.
    fails: bool,
    asked: Vec<String>,
}

impl Zone {
    fn answer(&mut self, question: &[u8], over_udp: bool) -> Option<Vec<u8>> {
        let mut message = Message::from_vec(question).unwrap();
        let query = message.queries[0].clone();
        let name = query.name().to_string().to_lowercase();
        self.asked.push(format!("{name} {} {}", query.query_type(), if over_udp { "udp" } else { "tcp" }));
        if self.lost > 0 {
            self.lost -= 1;
            return None;
        }
        message.metadata.message_type = MessageType::Response;
        message.metadata.recursion_available = true;
        match self.records.get(&*name) {
            _ if self.fails => message.metadata.response_code = ResponseCode::ServFail,
            None => message.metadata.response_code = ResponseCode::NXDomain,
            Some(_) if self.is_large && over_udp => message.metadata.truncation = true,
            Some(records) => {
                for data in records {
                    let is_asked_for = [query.query_type(), RecordType::CNAME].contains(&data.record_type());
                    if is_asked_for {
                        // For an hour, if somebody believed it.
                        message.add_answer(Record::from_rdata(query.name().clone(), 3600, data.clone()));
                    }
                    if let RData::CNAME(CNAME(target)) = data {
                        let known = self.records.get(&*target.to_string()).into_iter().flatten();
                        let known = known.filter(|data| data.record_type() == query.query_type());
                        message.add_answers(
                            known.map(|data| Record::from_rdata(target.clone(), 3600, data.clone())),
                        );
                    }
                }
            }
        }
        Some(message.to_vec().unwrap())
    }
}

struct Server {
    names: Names,
    zone: Arc<Mutex<Zone>>,
    dir: tempfile::TempDir,
}

impl Server {
    /// Answers on a port of loopback, which the files name.
    async fn start() -> Self {
        let zone = Arc::new(Mutex::new(Zone::default()));
        let (udp, tcp) = loop {
            let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            if let Ok(tcp) = TcpListener::bind(udp.local_addr().unwrap()).await {
                break (udp, tcp);
            }
        };
        let dns_port = udp.local_addr().unwrap().port();
        let dir = tempfile::tempdir().unwrap();
        let names =
            Names { hosts: dir.path().join("hosts"), resolv_conf: dir.path().join("resolv.conf"), dns_port };
        let of_udp = zone.clone();
        tokio::spawn(async move {
            let mut question = [0; 512];
            loop {
                let (length, from) = udp.recv_from(&mut question).await.unwrap();
                let answer = of_udp.lock().answer(&question[..length], true);
                if let Some(answer) = answer {
                    udp.send_to(&answer, from).await.unwrap();
                }
            }
        });
        let of_tcp = zone.clone();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = tcp.accept().await.unwrap();
                let zone = of_tcp.clone();
                tokio::spawn(async move {
                    while let Ok(length) = stream.read_u16().await {
                        let mut question = vec![0; usize::from(length)];
                        stream.read_exact(&mut question).await.unwrap();
                        let answer = zone.lock().answer(&question, false).unwrap();
                        stream.write_u16(u16::try_from(answer.len()).unwrap()).await.unwrap();
                        stream.write_all(&answer).await.unwrap();
                    }
                });
            }
        });
        let server = Self { names, zone, dir };
        server.resolv_conf("nameserver 127.0.0.1\n");
        server
    }

    fn resolv_conf(&self, text: &str) {
        std::fs::write(self.dir.path().join("resolv.conf"), text).unwrap();
    }

    fn hosts(&self, text: &str) {
        std::fs::write(self.dir.path().join("hosts"), text).unwrap();
    }

    fn set(&self, name: &'static str, records: &[&str]) {
        let parse = |text: &&str| match (text.parse::<Ipv4Addr>(), text.parse::<Ipv6Addr>()) {
            (Ok(ip), _) => RData::A(A(ip)),
            (_, Ok(ip)) => RData::AAAA(AAAA(ip)),
            _ => RData::CNAME(CNAME(Name::from_ascii(text).unwrap())),
        };
        self.zone.lock().records.insert(name, records.iter().map(parse).collect());
    }

    /// Resolves; what was found, sorted.
    async fn found(&self, addr: &str) -> Vec<String> {
        let mut found: Vec<_> =
            self.names.resolve(addr).await.unwrap().iter().map(SocketAddr::to_string).collect();
        found.sort();
        found
    }

    async fn refused(&self, addr: &str) -> io::Error {
        self.names.resolve(addr).await.unwrap_err()
    }

    /// Names that were asked for since the last time, each once.
    fn asked(&self) -> Vec<String> {
        let asked = std::mem::take(&mut self.zone.lock().asked);
        let mut names: Vec<String> =
            asked.iter().map(|line| line.split(' ').next().unwrap().to_owned()).collect();
        names.dedup();
        names
    }
}

#[tokio::test]
async fn addresses_need_nobody_and_nonsense_asks_nobody() {
    let server = Server::start().await;
    assert_eq!(server.found("10.0.0.1:7300").await, ["10.0.0.1:7300"]);
    assert_eq!(server.found("[::1]:7300").await, ["[::1]:7300"]);
    for nonsense in ["", "a", "a b:1", "10.0.0:1", "a:99999", "[x]:1", ":1"] {
        assert_eq!(server.refused(nonsense).await.kind(), io::ErrorKind::InvalidInput, "{nonsense}");
    }
    assert!(server.asked().is_empty());
}

#[tokio::test]
async fn a_name_has_addresses_of_both_kinds() {
    let server = Server::start().await;
    server.set("both.example.org.", &["10.0.0.1", "10.0.0.2", "fd00::1"]);
    server.set("four.example.org.", &["10.0.0.4"]);
    server.set("six.example.org.", &["fd00::6"]);
    server.set("alias.example.org.", &["six.example.org."]);
    assert_eq!(server.found("both.example.org:1").await, ["10.0.0.1:1", "10.0.0.2:1", "[fd00::1]:1"]);
    assert_eq!(server.found("four.example.org:1").await, ["10.0.0.4:1"]);
    assert_eq!(server.found("six.example.org:1").await, ["[fd00::6]:1"]);
    assert_eq!(server.found("alias.example.org:1").await, ["[fd00::6]:1"]);
}

/// Somebody who listens at one address, and nobody at the same port of the other.
async fn listens_at_one_of(host: &str, other: &str, has_other: bool) -> (TcpListener, Option<TcpSocket>) {
    loop {
        let listener = TcpListener::bind((host, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let closed = SocketAddr::new(other.parse().unwrap(), port);
        let bound = match closed {
            SocketAddr::V4(_) => TcpSocket::new_v4(),
            SocketAddr::V6(_) => TcpSocket::new_v6(),
        }
        .and_then(|socket| socket.bind(closed).map(|()| socket));
        // (If it cannot be had, somebody else may listen there.)
        if bound.is_ok() || !has_other {
            return (listener, bound.ok());
        }
    }
}

#[tokio::test]
async fn a_host_of_both_kinds_is_reached_at_whichever_answers() {
    let server = Server::start().await;
    server.set("both.example.org.", &["127.0.0.1", "::1"]);
    let has_ipv6 = TcpListener::bind("[::1]:0").await.is_ok();
    let (four, six) = ("127.0.0.1", "::1");
    for (host, other, has_other) in [(four, six, has_ipv6), (six, four, true)] {
        if host == six && !has_ipv6 {
            eprintln!("this machine has no IPv6");
            continue;
        }
        let (listener, _closed) = listens_at_one_of(host, other, has_other).await;
        let here = listener.local_addr().unwrap();
        let found = server.names.resolve(&format!("both.example.org:{}", here.port())).await.unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(dial(&found).await.unwrap().peer_addr().unwrap(), here);
    }
}

#[tokio::test]
async fn an_address_that_changes_is_followed_whatever_its_time_to_live_and_so_are_the_files() {
    let server = Server::start().await;
    server.set("memtable_1.", &["10.0.0.1"]);
    assert_eq!(server.found("memtable_1:7300").await, ["10.0.0.1:7300"]);
    server.set("memtable_1.", &["10.0.0.9"]);
    assert_eq!(server.found("memtable_1:7300").await, ["10.0.0.9:7300"]);
    server.hosts("10.0.0.7 memtable_1\n");
    server.asked();
    assert_eq!(server.found("memtable_1:7300").await, ["10.0.0.7:7300"]);
    assert!(server.asked().is_empty(), "the file comes first");
    server.hosts("");
    server.resolv_conf("search example.org\nnameserver 127.0.0.1\n");
    server.set("memtable_1.example.org.", &["10.0.0.8"]);
    assert_eq!(server.found("memtable_1:7300").await, ["10.0.0.8:7300"]);
}

#[tokio::test]
async fn names_are_completed_from_the_search_list_according_to_their_dots() {
    let server = Server::start().await;
    server.resolv_conf(
        "search ns.svc.cluster.local svc.cluster.local\nnameserver 127.0.0.1\noptions ndots:5\n",
    );
    server.set("memtable-1.memtable.ns.svc.cluster.local.", &["10.0.0.1"]);
    server.set("db.example.org.", &["10.0.0.2"]);
    assert_eq!(server.found("memtable-1.memtable:1").await, ["10.0.0.1:1"]);
    assert_eq!(server.asked(), ["memtable-1.memtable.ns.svc.cluster.local."]);
    assert_eq!(server.found("db.example.org:1").await, ["10.0.0.2:1"]);
    let tried =
        ["db.example.org.ns.svc.cluster.local.", "db.example.org.svc.cluster.local.", "db.example.org."];
    assert_eq!(server.asked(), tried);
    assert_eq!(server.found("db.example.org.:1").await, ["10.0.0.2:1"]);
    assert_eq!(server.asked(), ["db.example.org."]);
    // Enough dots: as it is, first.
    server.resolv_conf("search ns.svc\nnameserver 127.0.0.1\noptions ndots:2\n");
    assert_eq!(server.found("db.example.org:1").await, ["10.0.0.2:1"]);
    assert_eq!(server.asked(), ["db.example.org."]);
}

#[tokio::test]
async fn a_name_that_nobody_has_is_told_from_a_name_server_that_is_silent() {
    let server = Server::start().await;
    let unknown = server.refused("memtable-9:7300").await;
    assert_eq!(unknown.kind(), io::ErrorKind::NotFound);
    assert_eq!(unknown.to_string(), "cannot resolve memtable-9: no such host (/etc/hosts, DNS at 127.0.0.1)");
    server.zone.lock().lost = usize::MAX;
    let silent = server.refused("memtable-9:7300").await;
    assert_eq!(silent.kind(), io::ErrorKind::TimedOut, "{silent}");
    assert_eq!(silent.to_string(), "cannot resolve memtable-9: no answer from DNS at 127.0.0.1");
}

#[tokio::test]
async fn where_nobody_tells_an_address_now_a_server_may_listen_later_but_not_at_what_is_no_name() {
    let server = Server::start().await;
    let kind = async |host: &str| {
        let refused = server.refused(&format!("{host}:7300")).await;
        cannot_listen("listen", &refused).kind
    };
    assert_eq!(kind("memtable-9").await, ErrorKind::Unavailable, "nobody has the name");
    server.zone.lock().fails = true;
    assert_eq!(kind("memtable-9").await, ErrorKind::Unavailable, "its servers do not answer");
    for nonsense in ["a b", &"a".repeat(64), "a..b"] {
        assert_eq!(kind(nonsense).await, ErrorKind::Invalid, "{nonsense}");
    }
}

#[tokio::test]
async fn lost_questions_silent_servers_and_large_answers_are_got_over() {
    let server = Server::start().await;
    server.set("a.example.org.", &["10.0.0.1"]);
    server.zone.lock().lost = 2;
    assert_eq!(server.found("a.example.org:1").await, ["10.0.0.1:1"]);
    // Nobody is at the first one.
    server.resolv_conf("nameserver 127.0.0.3\nnameserver 127.0.0.1\n");
    assert_eq!(server.found("a.example.org:1").await, ["10.0.0.1:1"]);
    server.resolv_conf("nameserver 127.0.0.1\n");
    server.zone.lock().is_large = true;
    server.asked();
    assert_eq!(server.found("a.example.org:1").await, ["10.0.0.1:1"]);
    let over_tcp = server.zone.lock().asked.iter().filter(|asked| asked.ends_with("tcp")).count();
    assert!(over_tcp >= 1, "{over_tcp}");
}
