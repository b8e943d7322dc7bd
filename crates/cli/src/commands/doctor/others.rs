//! The other servers of the cluster, as this host reaches them: name, connection, encryption, version, clock.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures::future::join_all;
use serde::Deserialize;
use serde_json::Value;
use sextant_environment::clock::WallReading;
use sextant_environment::config::ClusterConfig;
use sextant_environment::env::{Names, Party, Whom, cluster_channel, error_of};
use sextant_proto::MESSAGE_BYTES_MAX;
use sextant_proto::v1::StatusRequest;
use sextant_proto::v1::admin_client::AdminClient;

use super::figures::{duration, median};
use super::report::{Check, Finding};
use super::{Patient, Way};

/// A name that takes longer to resolve would time out a server's calls, too.
const RESOLVE_MAX: Duration = Duration::from_secs(3);
const CONNECT_MAX: Duration = Duration::from_secs(2);
const ANSWER_MAX: Duration = Duration::from_secs(3);
const CONNECTIONS: usize = 5;
/// Addresses of a name that are tried and shown.
const ADDRESSES_MAX: usize = 4;
/// Beyond it a call between servers takes longer than a lease is kept alive for.
const ROUND_TRIP_MAX_NS: u64 = 50_000_000;
const RESOLVE_SLOW_NS: u64 = 500_000_000;
/// Where no bound is known: sessions and time stamps only.
const OFFSET_MAX_US: u128 = 1_000_000;

/// What of a server's status is looked at.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Shown {
    pub role: String,
    pub node: Option<u64>,
    pub cluster: String,
    pub version: Option<String>,
    pub wall: Option<WallReading>,
}

/// Side by side: those that do not answer cost their time-outs once.
pub async fn check(patients: &[Patient]) -> Vec<Check> {
    let own: BTreeSet<String> = patients.iter().map(|patient| patient.party().to_string()).collect();
    let mut seen = BTreeSet::new();
    let mut asked = Vec::new();
    for patient in patients {
        for (party, addr) in members(patient.file.cluster()) {
            if !own.contains(&party.to_string()) && seen.insert((party.to_string(), addr.to_owned())) {
                asked.push(other(patient, party, addr));
            }
        }
    }
    join_all(asked).await.into_iter().flatten().collect()
}

fn members(cluster: &ClusterConfig) -> Vec<(Party, &str)> {
    let memtable = cluster.memtable.iter().map(|server| (Party::memtable(server.id), &*server.addr));
    let sstable = cluster.sstable.iter().map(|server| (Party::sstable(server.id), &*server.addr));
    memtable.chain(sstable).collect()
}

/// As far as one gets.
async fn other(patient: &Patient, party: Party, addr: &str) -> Vec<Check> {
    let subject = |what: &str| format!("{what} of {party} ({addr})");
    let mut checks = Vec::new();
    let name = resolve(patient, addr).await;
    checks.push(judge_name(&name).about(subject("name")));
    let Ok(Name { addresses, .. }) = name else { return checks };
    let Ok(way) = patient.way() else { return checks };
    let connections = connect(patient, &way, party, &addresses).await;
    let is_encrypted = patient.file.tls().is_some();
    let round_trips: Vec<u64> = connections.iter().flatten().map(|taken| taken.tcp_ns).collect();
    let found = judge_connection(&connections, is_encrypted).about(subject("connection"));
    checks.push(found.with("tcp_us", median(&round_trips) / 1_000));
    if connections.is_err() {
        return checks;
    }
    let answer = tokio::time::timeout(ANSWER_MAX, compared(patient, addr, party)).await;
    let late = || Err(format!("no answer within {} s", ANSWER_MAX.as_secs()));
    let answer = answer.unwrap_or_else(|_| late());
    let version = answer.as_ref().ok().and_then(|(shown, _)| shown.version.clone());
    let found = judge_answer(answer.as_ref().map(|(shown, _)| shown).map_err(String::as_str));
    checks.push(found.about(subject("server")).with("version", version.map_or(Value::Null, Value::from)));
    if let Ok((_, Some(offset))) = answer {
        let check = judge_offset(&offset).about(subject("clock"));
        checks.push(check.with("offset_us", offset.ahead_us as i64).with("uncertain_us", offset.travel_us));
    }
    checks
}

struct Name {
    addresses: Vec<SocketAddr>,
    taken_ns: u64,
}

async fn resolve(patient: &Patient, addr: &str) -> Result<Name, String> {
    let before_ns = patient.env.clock.holder_ns();
    let looked_up = tokio::time::timeout(RESOLVE_MAX, Names::default().resolve(addr)).await;
    let taken_ns = patient.env.clock.holder_ns().saturating_sub(before_ns);
    let late = |_| format!("no answer within {} s", RESOLVE_MAX.as_secs());
    let addresses = looked_up.map_err(late)?.map_err(|e| e.to_string())?;
    Ok(Name { addresses, taken_ns })
}

fn judge_name(name: &Result<Name, String>) -> Finding {
    let name = match name {
        Ok(name) => name,
        Err(why) => return Finding::bad(why),
    };
    let mut shown: Vec<String> = name.addresses.iter().map(|addr| addr.ip().to_string()).collect();
    shown.dedup();
    shown.truncate(ADDRESSES_MAX);
    let figures = format!("{} (in {})", shown.join(", "), duration(name.taken_ns));
    match name.taken_ns {
        ns if ns > RESOLVE_SLOW_NS => {
            Finding::warning(format!("{figures}: slow, and looked up for every connection"))
        }
        _ => Finding::ok(figures),
    }
}

/// How long a connection took.
#[derive(Clone, Copy, Debug)]
struct Taken {
    tcp_ns: u64,
    /// Of that the handshake that follows; 0: none does.
    tls_ns: u64,
}

type Connections = Result<Vec<Taken>, io::Error>;

/// Some connections, one after the other, to the first address that takes them.
async fn connect(patient: &Patient, way: &Way, party: Party, addresses: &[SocketAddr]) -> Connections {
    let mut failed = io::Error::from(io::ErrorKind::NotFound);
    for addr in addresses.iter().take(ADDRESSES_MAX) {
        let mut all = Vec::new();
        for _ in 0..CONNECTIONS {
            match connect_once(patient, way, party, *addr).await {
                Ok(taken) => all.push(taken),
                Err(e) => {
                    failed = e;
                    break;
                }
            }
        }
        if all.len() == CONNECTIONS {
            return Ok(all);
        }
    }
    Err(failed)
}

async fn connect_once(patient: &Patient, way: &Way, party: Party, addr: SocketAddr) -> io::Result<Taken> {
    let clock = &patient.env.clock;
    let before_ns = clock.holder_ns();
    let connecting = way.net.connect(addr.to_string(), Whom::Member(Some(party)));
    let late =
        |_| io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {} s", CONNECT_MAX.as_secs()));
    tokio::time::timeout(CONNECT_MAX, connecting).await.map_err(late)??;
    let (taken_ns, tcp_ns) = (clock.holder_ns().saturating_sub(before_ns), way.stopwatch.connected_ns());
    Ok(Taken { tcp_ns, tls_ns: taken_ns.saturating_sub(tcp_ns) })
}

fn judge_connection(connections: &Connections, is_encrypted: bool) -> Finding {
    let all = match connections {
        Ok(all) => all,
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
            return Finding::warning(
                "refused: its host is up, and no server listens there (not started yet?)",
            );
        }
        Err(e) if e.kind() == io::ErrorKind::TimedOut => {
            return Finding::bad(format!("{e}: its host is down, or something between drops what is sent"));
        }
        Err(e) => return Finding::bad(e.to_string()),
    };
    let middle = |of: fn(&Taken) -> u64| median(&all.iter().map(of).collect::<Vec<_>>());
    let tcp_ns = middle(|taken| taken.tcp_ns);
    let mut figures = format!("{} (median of {CONNECTIONS})", duration(tcp_ns));
    if is_encrypted {
        figures.push_str(&format!(", and TLS {}", duration(middle(|taken| taken.tls_ns))));
    }
    match tcp_ns {
        ns if ns > ROUND_TRIP_MAX_NS => {
            Finding::warning(format!("{figures}: far, every write waits for it, and leases hardly bear it"))
        }
        _ => Finding::ok(figures),
    }
}

/// What a server says of itself, to a member of its cluster.
pub async fn status(patient: &Patient, addr: &str, party: Party) -> Result<Shown, String> {
    ask_status(&mut client(patient, addr, party)?).await
}

type Client = AdminClient<tonic::transport::Channel>;

fn client(patient: &Patient, addr: &str, party: Party) -> Result<Client, String> {
    let cluster = patient.file.cluster();
    let channel = cluster_channel(&patient.way()?.net, addr, cluster, patient.party(), Some(party));
    Ok(AdminClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX))
}

async fn ask_status(client: &mut Client) -> Result<Shown, String> {
    let answer = client.status(StatusRequest {}).await.map_err(|e| error_of(e).message.into_owned())?;
    let understood = serde_json::from_str(&answer.into_inner().json);
    understood.map_err(|e| format!("its status is not understood: {e}"))
}

/// How far another clock is ahead of ours.
#[derive(Clone, Copy, Debug)]
struct Offset {
    ahead_us: i128,
    /// Half of the round trip: when in between the other clock was read is not known.
    travel_us: u64,
    /// What both together claim to be wrong by at most; none: one of them claims nothing.
    claimed_us: Option<u64>,
}

/// Asked a second time, over a connection that is there by then, so that the clocks are compared within one round trip.
async fn compared(patient: &Patient, addr: &str, party: Party) -> Result<(Shown, Option<Offset>), String> {
    let mut client = client(patient, addr, party)?;
    ask_status(&mut client).await?;
    let before = WallReading::of(&*patient.env.clock);
    let shown = ask_status(&mut client).await?;
    let after = WallReading::of(&*patient.env.clock);
    let offset = shown.wall.map(|theirs| offset(before, theirs, after));
    Ok((shown, offset))
}

fn offset(before: WallReading, theirs: WallReading, after: WallReading) -> Offset {
    let travel_us = after.unix_us.saturating_sub(before.unix_us).div_ceil(2);
    let ahead_us = i128::from(theirs.unix_us) - i128::from(before.unix_us) - i128::from(travel_us);
    let claimed_us = match (theirs.error_us, after.error_us) {
        (Some(theirs), Some(ours)) => Some(theirs.saturating_add(ours)),
        _ => None,
    };
    Offset { ahead_us, travel_us, claimed_us }
}

fn judge_offset(offset: &Offset) -> Finding {
    let certain_us = offset.ahead_us.unsigned_abs().saturating_sub(u128::from(offset.travel_us));
    let side = if offset.ahead_us < 0 { "behind" } else { "ahead of" };
    let shown = |us: u128| duration(u64::try_from(us).unwrap_or(u64::MAX).saturating_mul(1000));
    let figures = format!(
        "{} {side} ours, give or take {}",
        shown(offset.ahead_us.unsigned_abs()),
        shown(offset.travel_us.into())
    );
    match offset.claimed_us {
        Some(claimed_us) if certain_us > u128::from(claimed_us) => Finding::bad(format!(
            "{figures}, and both claim to be right within {}: leases rest on that",
            shown(claimed_us.into())
        )),
        None if certain_us > OFFSET_MAX_US => {
            Finding::warning(format!("{figures}: sessions, certificates and times to live end by it"))
        }
        _ => Finding::ok(figures),
    }
}

fn judge_answer(answer: Result<&Shown, &str>) -> Finding {
    let ours = env!("CARGO_PKG_VERSION");
    match answer {
        Err(why) => Finding::bad(why),
        Ok(Shown { version: None, .. }) => {
            Finding::warning(format!("it does not say its version: it is older than this program, {ours}"))
        }
        Ok(Shown { version: Some(version), cluster, .. }) if version == ours => {
            Finding::ok(format!("version {version}, of cluster {cluster:?}"))
        }
        Ok(Shown { version: Some(version), .. }) => {
            Finding::warning(format!("version {version}, this program is {ours}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::report::Verdict::{self, Bad, Warning};

    const GOOD: Verdict = Verdict::Ok;

    fn at(unix_us: u64, error_us: Option<u64>) -> WallReading {
        WallReading { unix_us, error_us }
    }

    #[test]
    fn clocks_are_compared_within_a_round_trip() {
        let ahead = offset(at(1_000, None), at(6_000, None), at(3_000, None));
        assert_eq!((ahead.ahead_us, ahead.travel_us), (4_000, 1_000));
        assert_eq!(judge_offset(&ahead), Finding::ok("4.0 ms ahead of ours, give or take 1.0 ms"));
        let behind = offset(at(5_000_000, None), at(1_000_000, None), at(5_000_000, None));
        assert!(behind.ahead_us == -4_000_000 && judge_offset(&behind).verdict == Warning);
        // Whatever somebody says.
        let absurd = offset(at(0, Some(u64::MAX)), at(u64::MAX, Some(u64::MAX)), at(0, None));
        assert_eq!(judge_offset(&absurd).verdict, Warning);
    }

    #[test]
    fn clocks_that_claim_to_be_right_have_to_be() {
        let apart =
            |ahead_us, claimed_us| judge_offset(&Offset { ahead_us, travel_us: 100, claimed_us }).verdict;
        assert_eq!(apart(500, Some(400)), GOOD);
        assert_eq!([apart(501, Some(400)), apart(-501, Some(400))], [Bad, Bad]);
        assert_eq!([apart(501, None), apart(-2_000_000, None)], [GOOD, Warning]);
    }

    #[test]
    fn a_server_that_is_not_there_yet_is_no_mistake_and_a_host_that_is_silent_is_one() {
        let failed = |kind: io::ErrorKind| judge_connection(&Err(kind.into()), false).verdict;
        assert_eq!(failed(io::ErrorKind::ConnectionRefused), Warning);
        assert_eq!(failed(io::ErrorKind::TimedOut), Bad);
        assert_eq!(failed(io::ErrorKind::PermissionDenied), Bad, "a certificate of somebody else");
        let taken = |tcp_ns| Ok(vec![Taken { tcp_ns, tls_ns: 2_000_000 }; CONNECTIONS]);
        assert_eq!(judge_connection(&taken(300_000), true).why, "300 us (median of 5), and TLS 2.0 ms");
        assert_eq!(judge_connection(&taken(51_000_000), false).verdict, Warning);
    }

    #[test]
    fn versions_that_differ_are_noticed() {
        let shown = |version: Option<&str>| Shown {
            role: "memtable".into(),
            node: Some(2),
            cluster: "c".into(),
            version: version.map(str::to_owned),
            wall: None,
        };
        let verdict = |version| judge_answer(Ok(&shown(version))).verdict;
        assert_eq!(verdict(Some(env!("CARGO_PKG_VERSION"))), GOOD);
        assert_eq!([verdict(Some("9.9.9")), verdict(None)], [Warning, Warning]);
        assert_eq!(judge_answer(Err("of another cluster")), Finding::bad("of another cluster"));
    }

    #[test]
    fn a_name_that_is_slow_or_unknown_is_noticed() {
        let name = |taken_ns| Ok(Name { addresses: vec!["10.0.0.1:1".parse().unwrap()], taken_ns });
        assert_eq!(judge_name(&name(1_000_000)), Finding::ok("10.0.0.1 (in 1.0 ms)"));
        assert_eq!(judge_name(&name(600_000_000)).verdict, Warning);
        assert_eq!(judge_name(&Err("no such name".into())).verdict, Bad);
    }
}
