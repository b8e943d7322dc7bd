//! Addresses as configuration has them: `host:port`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sextant_common::error::{Error, Result};

use super::unix::{check_unix, unix_path};

/// `host:port`, taken apart: a name (letters, digits, `.`, `-`, `_`), an IPv4 address, or an IPv6 address in brackets; and a port.
pub fn host_port(addr: &str) -> Option<(&str, u16)> {
    let (host, port) = addr.rsplit_once(':')?;
    let is_number = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    is_host(host).then_some(())?;
    Some((host, port.parse().ok().filter(|_| is_number)?))
}

/// Whether this can stand before the colon.
pub fn is_host(host: &str) -> bool {
    match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(inside) => inside.parse::<Ipv6Addr>().is_ok(),
        // What is only digits and dots is an address or a mistake.
        None if host.bytes().all(|b| b.is_ascii_digit() || b == b'.') => host.parse::<Ipv4Addr>().is_ok(),
        None => host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_')),
    }
}

/// Where a server listens; port 0 is any free one. `Invalid` if nobody can.
pub fn check_listens(field: &str, addr: &str) -> Result<()> {
    host_port(addr).map(|_| ()).ok_or_else(|| bad(field, addr))
}

/// Where a server is reached: `host:port`, or, on this machine, `unix:` and the path of a socket.
pub fn check_reached_here(field: &str, addr: &str) -> Result<()> {
    match unix_path(addr) {
        Some(path) => check_unix(field, path),
        None => check_reached(field, addr),
    }
}

/// Where a server is reached.
pub fn check_reached(field: &str, addr: &str) -> Result<()> {
    match host_port(addr) {
        Some((_, 0)) | None => Err(bad(field, addr)),
        Some(_) => Ok(()),
    }
}

/// Whether only this machine can reach it. (A name other than `localhost` may mean anything.)
pub fn is_loopback(addr: &str) -> bool {
    match host_port(addr) {
        Some(("localhost", _)) => true,
        Some((host, _)) => {
            let host = host.trim_start_matches('[').trim_end_matches(']');
            host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
        }
        None => false,
    }
}

fn bad(field: &str, addr: &str) -> Error {
    Error::invalid(format!("{field}: {addr:?} is not host:port"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_names_or_addresses_and_ports_are_ports() {
        for (addr, host, port) in [
            ("127.0.0.1:7300", "127.0.0.1", 7300),
            ("[::1]:1", "[::1]", 1),
            ("pnode-0.sextant:65535", "pnode-0.sextant", 65_535),
            ("a_b:0", "a_b", 0),
        ] {
            assert_eq!(host_port(addr), Some((host, port)));
        }
        for bad in [
            "",
            "host",
            ":1",
            "host:",
            "b:99999",
            "7390",
            "a b:1",
            "http://a:1",
            "::1:7300",
            "[::1:7300",
            "[x]:1",
            "10.0.0:1",
            "1.2.3.4.5:1",
            "256.0.0.1:1",
            "a:+1",
            "a:1:2",
        ] {
            assert_eq!(host_port(bad), None, "{bad}");
        }
    }

    #[test]
    fn nobody_is_reached_at_port_0() {
        check_listens("listen", "a:0").unwrap();
        let error = check_reached("addr", "a:0").unwrap_err();
        assert_eq!(error.message, "addr: \"a:0\" is not host:port");
    }

    #[test]
    fn loopback_is_what_nobody_else_reaches() {
        assert!(["127.0.0.1:1", "127.9.9.9:0", "[::1]:1", "localhost:1"].into_iter().all(is_loopback));
        assert!(
            !["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "host:1", "localhost.evil:1", "1"]
                .into_iter()
                .any(is_loopback)
        );
    }
}
