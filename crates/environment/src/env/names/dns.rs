//! DNS, with the name servers, search list and options of `/etc/resolv.conf` (resolv.conf(5)).

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::Name;

/// One question is asked again after this at the latest, whatever the file says (5 s, if nothing): a connection may take a second,
/// and of a question that was lost nobody knows. A name server that needs longer has the answer when it is asked again.
const ATTEMPT_MAX: Duration = Duration::from_millis(if cfg!(test) { 1_000 } else { 400 });

/// Both kinds of addresses, asked for at the same time.
pub async fn addresses(settings: &[u8], port: u16, host: &str) -> io::Result<Vec<IpAddr>> {
    let (settings, _) = resolv_conf::Config::parse_with_errors(settings);
    let servers: Vec<IpAddr> = settings.get_nameservers_or_local().iter().map(IpAddr::from).collect();
    let connections = || {
        // Over TCP what did not fit into a datagram, or all, if the file says so.
        let both = [ConnectionConfig::udp(), ConnectionConfig::tcp()];
        let used = both.into_iter().skip(usize::from(settings.use_vc));
        used.map(|connection| with_port(connection, port)).collect()
    };
    let config = ResolverConfig::from_parts(
        None,
        settings.get_last_search_or_domain().filter_map(|name| Name::from_str_relaxed(name).ok()).collect(),
        servers.iter().map(|ip| NameServerConfig::new(*ip, true, connections())).collect(),
    );
    let mut options = ResolverOpts::default();
    options.ndots = settings.ndots as usize;
    options.timeout = ATTEMPT_MAX.min(Duration::from_secs(settings.timeout.max(1).into()));
    options.attempts = settings.attempts.max(1) as usize;
    options.edns0 = settings.edns0;
    // An address may change before its time to live is over: containers' do.
    options.cache_size = 0;
    options.use_hosts_file = ResolveHosts::Never;
    let name = Name::from_str_relaxed(host)
        .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e.to_string()))?;
    let found = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
        .with_options(options)
        .build()
        .map_err(io::Error::other)?
        .lookup_ip(name)
        .await;
    let found: Vec<IpAddr> = found.map_err(|e| failed(&e, &servers))?.iter().collect();
    match found.is_empty() {
        true => Err(unknown(&servers)),
        false => Ok(found),
    }
}

fn with_port(mut connection: ConnectionConfig, port: u16) -> ConnectionConfig {
    connection.port = port;
    connection
}

fn unknown(servers: &[IpAddr]) -> io::Error {
    let why = format!("no such host (/etc/hosts, DNS at {})", listed(servers));
    io::Error::new(io::ErrorKind::NotFound, why)
}

fn failed(e: &NetError, servers: &[IpAddr]) -> io::Error {
    let at = listed(servers);
    match e {
        e if e.is_no_records_found() => unknown(servers),
        NetError::Timeout => io::Error::new(io::ErrorKind::TimedOut, format!("no answer from DNS at {at}")),
        e => io::Error::other(format!("DNS at {at}: {e}")),
    }
}

fn listed(servers: &[IpAddr]) -> String {
    servers.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ")
}
