//! Servers of one cluster recognise each other: every internal call names the cluster, who calls, and who is called. The
//! services between servers answer nobody else. (An address that was reused, or a mistake in a file, must not mix two clusters'
//! data, nor take one server's answers for another's; and what clients may do goes through p-nodes.) By itself it is no
//! authentication. Where connections are encrypted, it is: the caller must be who its certificate says that it is. What it may ask
//! for depends on its [role](super::roles).
//!
//! The names travel in the `user-agent` header, as `sextant-cluster/<fingerprint in hex> sextant-from/<role>-<id>
//! sextant-to/<role>-<id>`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use axum::http::uri::PathAndQuery;
use parking_lot::Mutex;
use tonic::Status;
use tonic::metadata::MetadataMap;

use super::identity::Holder;
use super::net::Caller;
use super::roles;
use crate::config::ClusterConfig;
use sextant_common::error::{Error, ErrorKind};
use sextant_common::ids::NodeId;

const CLUSTER: &str = "sextant-cluster/";
const FROM: &str = "sextant-from/";
const TO: &str = "sextant-to/";

/// What a party of internal calls is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PartyRole {
    Memtable,
    Sstable,
    PNode,
    /// What belongs to no tier: a test, an operator's tool.
    Tool,
}

impl PartyRole {
    const ALL: [Self; 4] = [Self::Memtable, Self::Sstable, Self::PNode, Self::Tool];

    fn name(self) -> &'static str {
        match self {
            Self::Memtable => "memtable",
            Self::Sstable => "sstable",
            Self::PNode => "pnode",
            Self::Tool => "tool",
        }
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }
}

/// As in configuration: `memtable`.
impl fmt::Display for PartyRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Who calls, or is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Party {
    pub role: PartyRole,
    /// Unique among servers of a tier (p-nodes may share one); 0 for what has none (an embedded p-node, a tool).
    pub id: NodeId,
}

impl Party {
    pub const TOOL: Party = Party { role: PartyRole::Tool, id: NodeId(0) };

    pub fn memtable(id: NodeId) -> Self {
        Self { role: PartyRole::Memtable, id }
    }

    pub fn sstable(id: NodeId) -> Self {
        Self { role: PartyRole::Sstable, id }
    }

    pub fn pnode(id: NodeId) -> Self {
        Self { role: PartyRole::PNode, id }
    }

    fn parse(text: &str) -> Option<Self> {
        let (role, id) = text.rsplit_once('-')?;
        Some(Self { role: PartyRole::named(role)?, id: NodeId(id.parse().ok()?) })
    }
}

/// `memtable-1`.
impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.role, self.id)
    }
}

/// What a server of this cluster says in its calls.
pub(super) fn user_agent(cluster: &ClusterConfig, from: Party, to: Option<Party>) -> String {
    let mut agent = format!("{CLUSTER}{:016x} {FROM}{from}", cluster.fingerprint());
    if let Some(to) = to {
        agent.push_str(&format!(" {TO}{to}"));
    }
    agent
}

/// What is called: with a request from [`crate::calls::CallsLayer`] on.
#[derive(Clone, Debug)]
pub(crate) struct CalledPath(pub PathAndQuery);

/// Who is refused is named in the log: so many, each once. They ask again and again.
const REFUSED_NAMED_MAX: usize = 64;

/// Checks the calls that `me` of this cluster is to answer; for `tonic::service::InterceptorLayer`, within a
/// [`crate::calls::CallsLayer`].
pub fn internal_calls(
    cluster: &ClusterConfig,
    me: Party,
) -> impl Fn(tonic::Request<()>) -> Result<tonic::Request<()>, Status> + Clone + use<> {
    let mine = Mine { fingerprint: format!("{:016x}", cluster.fingerprint()), shown: shown(cluster) };
    let refused = Arc::new(Mutex::new(BTreeSet::<(Option<Party>, String)>::new()));
    let addresses = Arc::new(Mutex::new(BTreeMap::<Party, Addresses>::new()));
    move |mut request| {
        let caller = request.extensions().get::<Caller>();
        let called = request.extensions().get::<CalledPath>();
        let checked = check(request.metadata(), &mine, me).and_then(|from| {
            let shown = caller.and_then(|caller| caller.identity.as_deref());
            match shown {
                Some(shown) if shown.holder != Holder::Server(from) => {
                    let why = format!("the caller says it is {from}, its certificate says {shown}");
                    return Err(Error::new(ErrorKind::Denied, why));
                }
                // Without encryption nobody has to show who it is; with it, nobody comes in without.
                _ => {}
            }
            let called = called.ok_or_else(|| Error::internal("a call without a path"))?;
            roles::check(called.0.path(), from, shown.is_some())?;
            Ok(from)
        });
        let error = match checked {
            Ok(from) => {
                let ip = caller.and_then(|caller| caller.addr).map(|addr| addr.ip().to_canonical());
                if let Some(ip) = ip
                    && has_one_address(from, me)
                    && let Some(other) = addresses.lock().entry(from).or_default().calls_from(ip)
                {
                    tracing::warn!(
                        "{from} calls from {other} and from {ip} by turns: two servers with one id, unless one has both addresses"
                    );
                }
                request.extensions_mut().insert(from);
                return Ok(request);
            }
            Err(error) => error,
        };
        let from = named(request.metadata(), FROM).and_then(Party::parse);
        let mut refused = refused.lock();
        if refused.len() < REFUSED_NAMED_MAX && refused.insert((from, error.message.to_string())) {
            let addr = caller.and_then(|caller| caller.addr).map(|addr| addr.ip().to_string());
            let (from, addr) = (from.map(|from| from.to_string()), addr.unwrap_or_default());
            tracing::warn!(from = from.unwrap_or_default(), addr, "calls are refused: {}", error.message);
        }
        Err(super::status_of(error))
    }
}

/// Of p-nodes several may share an id, tools have none; and nobody is surprised by itself.
fn has_one_address(from: Party, me: Party) -> bool {
    matches!(from.role, PartyRole::Memtable | PartyRole::Sstable) && from != me
}

/// So many changes of a server's address are two that take turns: one that has moved, or that was restarted elsewhere, does not
/// come back.
const TURNS: u32 = 4;

/// From where a server calls.
#[derive(Debug, Default)]
struct Addresses {
    now: Option<IpAddr>,
    before: Option<IpAddr>,
    turns: u32,
}

impl Addresses {
    /// The other address, if it is to be told that there are two: once for each pair.
    fn calls_from(&mut self, ip: IpAddr) -> Option<IpAddr> {
        if self.now == Some(ip) {
            return None;
        }
        self.turns = if self.before == Some(ip) { self.turns.saturating_add(1) } else { 0 };
        self.before = self.now.replace(ip);
        if self.turns == TURNS { self.before } else { None }
    }
}

/// What callers have to have in common with this server.
#[derive(Clone)]
struct Mine {
    fingerprint: String,
    shown: String,
}

/// For people: what [`ClusterConfig::fingerprint`] is made of.
pub fn shown(cluster: &ClusterConfig) -> String {
    let partitions = if cluster.partitions == 1 { "partition" } else { "partitions" };
    format!("cluster {:?} with {} {partitions}", cluster.id, cluster.partitions)
}

/// Who the caller says that it is.
fn check(metadata: &MetadataMap, mine: &Mine, me: Party) -> Result<Party, Error> {
    match named(metadata, CLUSTER) {
        Some(cluster) if cluster == mine.fingerprint => {}
        Some(_) => {
            return Err(Error::invalid(format!(
                "this is {me} of {}; the caller is of another cluster, or has another number of partitions: check [cluster]",
                mine.shown
            )));
        }
        None => {
            return Err(Error::invalid(format!(
                "{me} answers servers of its cluster only: clients and administration go through a p-node"
            )));
        }
    }
    let from = named(metadata, FROM)
        .and_then(Party::parse)
        .ok_or_else(|| Error::invalid("the caller does not say which server it is"))?;
    match named(metadata, TO) {
        Some(to) if Party::parse(to) != Some(me) => {
            Err(Error::invalid(format!("this is {me}, not {to}: check the addresses in [cluster]")))
        }
        _ => Ok(from),
    }
}

fn named<'m>(metadata: &'m MetadataMap, what: &str) -> Option<&'m str> {
    metadata.get("user-agent")?.to_str().ok()?.split(' ').find_map(|word| word.strip_prefix(what))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::identity::Identity;
    use super::*;
    use crate::config::{LeaseConfig, Server};

    fn cluster(id: &str) -> ClusterConfig {
        let server = Server::new(1, "a:1");
        ClusterConfig {
            id: id.into(),
            partitions: 2,
            memtable: vec![server.clone()],
            sstable: vec![server],
            lease: LeaseConfig::default(),
        }
    }

    #[test]
    fn who_shows_a_certificate_is_who_it_says() {
        let me = Party::memtable(NodeId(1));
        let admit = internal_calls(&cluster("a"), me);
        let call = |from: Party, shown: Option<Identity>| {
            let mut request = tonic::Request::new(());
            let agent = user_agent(&cluster("a"), from, Some(me));
            request.metadata_mut().insert("user-agent", agent.parse().unwrap());
            request.extensions_mut().insert(Caller {
                addr: None,
                identity: shown.map(Arc::new),
                hangup: None,
            });
            request
                .extensions_mut()
                .insert(CalledPath(PathAndQuery::from_static("/sextant.v1.Admin/Status")));
            admit(request).map(|_| ()).map_err(|status| (status.code(), status.message().to_owned()))
        };
        let other = Party::sstable(NodeId(2));
        call(other, None).unwrap();
        call(other, Some(Identity::server("a", other))).unwrap();
        for shown in [Identity::server("a", me), Identity::user("a", "alice")] {
            let (code, why) = call(other, Some(shown)).unwrap_err();
            assert_eq!(code, tonic::Code::PermissionDenied);
            assert!(why.contains("says it is sstable-2"), "{why}");
        }
    }

    #[test]
    fn a_server_that_calls_from_two_addresses_by_turns_is_noticed_and_one_that_moves_is_not() {
        let ip = |last: u8| IpAddr::from([10, 0, 0, last]);
        let mut moves = Addresses::default();
        assert!((1..200).all(|at| moves.calls_from(ip(at)).is_none() && moves.calls_from(ip(at)).is_none()));
        let mut two = Addresses::default();
        let told: Vec<IpAddr> = (0..50).filter_map(|call| two.calls_from(ip(call % 2))).collect();
        assert_eq!(told.len(), 1, "once");
        assert!(has_one_address(Party::sstable(NodeId(1)), Party::memtable(NodeId(1))));
        for other in [Party::pnode(NodeId(1)), Party::TOOL, Party::memtable(NodeId(1))] {
            assert!(!has_one_address(other, Party::memtable(NodeId(1))));
        }
    }

    #[test]
    fn only_callers_that_name_this_cluster_themselves_and_this_server_are_answered() {
        let me = Party::memtable(NodeId(1));
        let admit = internal_calls(&cluster("a"), me);
        let call = |agent: Option<&str>| {
            let mut request = tonic::Request::new(());
            if let Some(agent) = agent {
                request.metadata_mut().insert("user-agent", format!("{agent} tonic/0.14").parse().unwrap());
            }
            request
                .extensions_mut()
                .insert(CalledPath(PathAndQuery::from_static("/sextant.v1.Admin/Status")));
            admit(request).map(|_| ()).map_err(|status| status.message().to_owned())
        };
        let agent = |id: &str, from, to| user_agent(&cluster(id), from, to);
        for from in [Party::memtable(NodeId(2)), Party::sstable(NodeId(1)), Party::pnode(NodeId(0))] {
            call(Some(&agent("a", from, Some(me)))).unwrap();
        }
        // A source of a copy is known by its address alone.
        call(Some(&agent("a", Party::TOOL, None))).unwrap();

        let only_cluster = agent("a", me, None);
        let only_cluster = only_cluster.split(' ').next().unwrap();
        let wrong = [
            (None, "servers of its cluster only"),
            (Some("curl/8".to_owned()), "servers of its cluster only"),
            (
                Some(agent("b", Party::TOOL, Some(me))),
                "memtable-1 of cluster \"a\" with 2 partitions; the caller",
            ),
            (Some(only_cluster.to_owned()), "which server it is"),
            (Some(format!("{only_cluster} sextant-from/nobody-1")), "which server it is"),
            (Some(agent("a", me, Some(Party::memtable(NodeId(2))))), "this is memtable-1, not memtable-2"),
            (Some(agent("a", me, Some(Party::sstable(NodeId(1))))), "this is memtable-1, not sstable-1"),
        ];
        for (agent, why) in wrong {
            let refused = call(agent.as_deref()).unwrap_err();
            assert!(refused.contains(why), "{agent:?}: {refused}");
        }
    }
}
