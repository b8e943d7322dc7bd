//! Names of hosts: which addresses they have now. Resolved in Rust, so that a static binary needs nothing of its host but the files
//! that say how: `/etc/hosts`, then DNS as in `/etc/resolv.conf` (name servers, search, options). Not `/etc/nsswitch.conf`.
//!
//! Nothing is kept: the files are read and the name servers asked for each connection, so that a host that has moved is found as
//! soon as its name is known to have.

mod dns;
mod hosts;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// A lookup with all that it tries. Who connects waits for less.
const LOOKUP_MAX: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 5 });
/// Of one name; further ones are not tried.
const ADDRESSES_MAX: usize = 16;

/// How names are resolved.
#[derive(Clone, Debug)]
pub struct Names {
    hosts: PathBuf,
    resolv_conf: PathBuf,
    dns_port: u16,
}

/// As this machine does it.
impl Default for Names {
    fn default() -> Self {
        Self { hosts: "/etc/hosts".into(), resolv_conf: "/etc/resolv.conf".into(), dns_port: 53 }
    }
}

impl Names {
    /// All addresses of `host:port`, IPv6 and IPv4, in the order in which they are to be tried; at least one. `NotFound` if nobody
    /// has the name, `TimedOut` if nobody says so, `InvalidInput` if nobody can have it.
    pub async fn resolve(&self, addr: &str) -> io::Result<Vec<SocketAddr>> {
        if let Ok(addr) = addr.parse() {
            return Ok(vec![addr]);
        }
        let (host, port) = crate::config::host_port(addr).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("{addr:?} is not host:port"))
        })?;
        let found = tokio::time::timeout(LOOKUP_MAX, self.addresses(host)).await;
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {LOOKUP_MAX:?}"));
        let found = found.unwrap_or_else(|e| Err(late(e)));
        let addresses = found.map_err(|e| io::Error::new(e.kind(), format!("cannot resolve {host}: {e}")))?;
        Ok(addresses.into_iter().take(ADDRESSES_MAX).map(|ip| SocketAddr::new(ip, port)).collect())
    }

    async fn addresses(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        // A few lines that are read again and again: they are in memory, and it takes microseconds.
        let known = hosts::addresses(&std::fs::read_to_string(&self.hosts).unwrap_or_default(), host);
        if !known.is_empty() {
            return Ok(known);
        }
        let settings = std::fs::read(&self.resolv_conf).unwrap_or_default();
        dns::addresses(&settings, self.dns_port, host).await
    }
}
