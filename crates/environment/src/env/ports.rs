//! Free ports, for development clusters and tests.

use std::collections::BTreeSet;
use std::ops::Range;

use futures::future::BoxFuture;
use parking_lot::Mutex;

use super::{Door, Env};
use sextant_common::error::{Error, ErrorKind, Result};

/// Where free ports are looked for: below the range that Linux and macOS give to outgoing connections, which could otherwise
/// take a port between its choice and the server's start, or while the server is down.
const FREE_PORTS: Range<u16> = 20_000..32_000;
/// They are given to processes in blocks of so many: a port is free until its server listens, so a process has to keep others from it.
const BLOCK: u16 = 100;
/// Tries; the range is far from full on any machine.
const TRIES: usize = 1000;

/// What this process has been given.
static GIVEN: Mutex<Given> = Mutex::new(Given { ports: BTreeSet::new(), left: 0..0, blocks: Vec::new() });

struct Given {
    ports: BTreeSet<u16>,
    /// Of the newest block.
    left: Range<u16>,
    /// Held as long as the process lives.
    blocks: Vec<Reservation>,
}

impl Given {
    /// One that neither this process nor another one was given.
    fn next(&mut self, env: &Env) -> Option<u16> {
        for _ in 0..TRIES {
            match self.left.next() {
                Some(port) if self.ports.insert(port) => return Some(port),
                Some(_) => {}
                None => self.left = self.another_block(env)?,
            }
        }
        None
    }

    fn another_block(&mut self, env: &Env) -> Option<Range<u16>> {
        let blocks = (FREE_PORTS.end - FREE_PORTS.start) / BLOCK;
        (0..TRIES).find_map(|_| {
            let start = FREE_PORTS.start + env.rng.below(u64::from(blocks)) as u16 * BLOCK;
            self.blocks.push(reserve(start)?);
            Some(start..start + BLOCK)
        })
    }
}

/// A name that one process of the machine (or of its network namespace) can have, and loses when it ends, whatever ends it.
#[cfg(target_os = "linux")]
type Reservation = std::os::unix::net::UnixDatagram;

#[cfg(target_os = "linux")]
fn reserve(block: u16) -> Option<Reservation> {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    let name = SocketAddr::from_abstract_name(format!("sextant-ports-{block}")).ok()?;
    UnixDatagram::bind_addr(&name).ok()
}

/// Other systems have no such names: processes may be given the same port at the same time.
#[cfg(not(target_os = "linux"))]
type Reservation = ();

#[cfg(not(target_os = "linux"))]
fn reserve(_block: u16) -> Option<Reservation> {
    Some(())
}

/// A port of the loopback interface on which nobody listens, and that no process that runs was given before.
pub fn free_port(env: &Env) -> BoxFuture<'_, Result<u16>> {
    Box::pin(async move {
        for _ in 0..TRIES {
            let Some(port) = GIVEN.lock().next(env) else { break };
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
        // (More than a block has.)
        let addrs = free_addrs(&env, 150).await.unwrap();
        let ports: BTreeSet<u16> =
            addrs.iter().map(|a| a.rsplit_once(':').unwrap().1.parse().unwrap()).collect();
        assert_eq!(ports.len(), 150);
        assert!(ports.iter().all(|p| FREE_PORTS.contains(p)));
        for addr in addrs {
            env.net.bind(addr, Door::Members).await.expect("nobody listens there");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_block_is_of_one_process_while_it_lives() {
        // (No block begins there.)
        let held = reserve(1).unwrap();
        assert!(reserve(1).is_none());
        drop(held);
        assert!(reserve(1).is_some());
    }
}
