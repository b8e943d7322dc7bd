//! Addresses that are this run's alone: several may run beside each other, and beside a cluster that somebody runs from the same files.

use std::net::TcpListener;

use sextant_common::error::{Error, Result};

use crate::host::shell::run;

/// Held as long as the run has the address.
const CLAIM_PORT: u16 = 7399;
const MOST: u8 = 100;
/// In a network, this machine's own beside the containers: the last.
const HARNESS: u8 = 254;

#[derive(Debug)]
pub struct Addresses {
    number: u8,
    _claim: TcpListener,
}

impl Addresses {
    /// The first that nobody has.
    pub async fn claim() -> Result<Self> {
        let ids = run(&["docker", "network", "ls", "--quiet"]).await?;
        let format = "{{range .IPAM.Config}}{{.Subnet}} {{end}}";
        let inspect = ["docker", "network", "inspect", "--format", format];
        let words: Vec<&str> = inspect.into_iter().chain(ids.lines()).collect();
        // A network that is gone by now is none.
        let taken = run(&words).await.unwrap_or_default();
        let free = |number: &u8| !taken.contains(&subnet(*number));
        let claim =
            |number| Some(Self { number, _claim: TcpListener::bind((bind(number), CLAIM_PORT)).ok()? });
        let claimed = (1..=MOST).filter(free).find_map(claim);
        claimed.ok_or_else(|| Error::unavailable("no addresses are left for a cluster of containers"))
    }

    /// Where ports are published.
    pub fn bind(&self) -> String {
        bind(self.number)
    }

    pub fn subnet(&self) -> String {
        subnet(self.number)
    }

    /// One of 50 addresses in it that Docker, which begins below, does not give by itself.
    pub fn unusual(&self, nth: u8) -> String {
        format!("172.31.{}.{}", 76 + self.number, 200 + nth % 50)
    }

    /// For this machine, beside the containers; with the network's size.
    pub fn of_harness(&self) -> String {
        format!("172.31.{}.{HARNESS}/24", 76 + self.number)
    }
}

fn bind(number: u8) -> String {
    format!("127.0.7.{number}")
}

fn subnet(number: u8) -> String {
    // 76 is that of the compose file.
    format!("172.31.{}.0/24", 76 + number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_beside_each_other_have_different_addresses() {
        let claim = TcpListener::bind("127.0.0.1:0").unwrap();
        let of = |number| Addresses { number, _claim: claim.try_clone().unwrap() };
        let (one, other) = (of(1), of(MOST));
        assert_eq!((one.bind(), one.subnet()), ("127.0.7.1".into(), "172.31.77.0/24".into()));
        assert_eq!((other.bind(), other.subnet()), ("127.0.7.100".into(), "172.31.176.0/24".into()));
        assert_eq!(one.of_harness(), "172.31.77.254/24");
        assert_eq!((one.unusual(1), one.unusual(50)), ("172.31.77.201".into(), "172.31.77.200".into()));
    }
}
