//! Free ports, for development clusters and tests.

use std::collections::BTreeSet;

use futures::future::BoxFuture;
use parking_lot::Mutex;

use super::{Door, Env};
use sextant_common::error::{Error, ErrorKind, Result};

/// Where free ports are looked for: below the range that Linux and macOS give to outgoing connections, which could otherwise
/// take a port between its choice and the server's start, or while the server is down.
const FREE_PORTS: std::ops::Range<u16> = 20_000..32_000;
/// Random tries; the range is far from full on any machine.
const TRIES: usize = 1000;

/// What this process has been given: a port is free until its server listens.
static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// A port of the loopback interface on which nobody listens, and that this process was not given before.
pub fn free_port(env: &Env) -> BoxFuture<'_, Result<u16>> {
    Box::pin(async move {
        for _ in 0..TRIES {
            let width = u64::from(FREE_PORTS.end - FREE_PORTS.start);
            let port = FREE_PORTS.start + env.rng.below(width) as u16;
            if !GIVEN.lock().insert(port) {
                continue;
            }
            if env.net.bind(format!("127.0.0.1:{port}"), Door::Members).await.is_ok() {
                return Ok(port);
            }
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            format!("no free port found between {} and {}", FREE_PORTS.start, FREE_PORTS.end),
        ))
    })
}

/// Addresses with so many free ports.
pub fn free_addrs(env: &Env, n: usize) -> BoxFuture<'_, Result<Vec<String>>> {
    Box::pin(async move {
        let mut addrs = Vec::with_capacity(n);
        for _ in 0..n {
            addrs.push(format!("127.0.0.1:{}", free_port(env).await?));
        }
        Ok(addrs)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_port_is_given_twice_and_none_that_an_outgoing_connection_could_take() {
        let env = Env::real();
        let addrs = free_addrs(&env, 50).await.unwrap();
        let ports: BTreeSet<u16> =
            addrs.iter().map(|a| a.rsplit_once(':').unwrap().1.parse().unwrap()).collect();
        assert_eq!(ports.len(), 50);
        assert!(ports.iter().all(|p| FREE_PORTS.contains(p)));
        for addr in addrs {
            env.net.bind(addr, Door::Members).await.expect("nobody listens there");
        }
    }
}
