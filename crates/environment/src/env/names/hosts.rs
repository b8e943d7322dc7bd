//! `/etc/hosts`: `address name..`, a line each (hosts(5)).

use std::net::IpAddr;

/// All addresses of a host, in the file's order.
pub fn addresses(file: &str, host: &str) -> Vec<IpAddr> {
    let host = host.strip_suffix('.').unwrap_or(host);
    let mut found = Vec::new();
    for line in file.lines() {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(address) = words.next().and_then(|word| word.parse().ok()) else { continue };
        if words.any(|name| name.eq_ignore_ascii_case(host)) && !found.contains(&address) {
            found.push(address);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_all_addresses_of_all_its_lines() {
        let file = "127.0.0.1 localhost\n# 10.0.0.9 a\n10.0.0.1\ta.example.org a # b\n::1 A localhost\n\
                    fe80::1%eth0 a\nx a\n10.0.0.1 a\n";
        let found = |host| addresses(file, host).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(found("a"), ["10.0.0.1", "::1"]);
        assert_eq!(found("A.example.org."), ["10.0.0.1"]);
        assert_eq!(found("localhost"), ["127.0.0.1", "::1"]);
        assert!(["b", "example.org", "10.0.0.1", ""].into_iter().all(|host| found(host).is_empty()));
    }
}
