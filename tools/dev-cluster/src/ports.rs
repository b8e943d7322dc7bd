//! Ports: chosen once, remembered, checked before the servers start.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sextant_common::error::Result;
use sextant_environment::Env;
use sextant_environment::env::{Door, free_port};

/// How often a port that is taken is looked at again.
const AGAIN: Duration = Duration::from_millis(100);
const TRIES: u32 = 30;

/// The ports of a cluster, by what they are for (`memtable-1`, `pnode-2-resp`).
pub type Remembered = BTreeMap<String, u16>;

/// The remembered port for `name`, or a free one, which is then remembered. `used` are ports of other clusters' or of this
/// cluster's servers that may not be listening yet.
pub async fn choose(
    env: &Env,
    remembered: &mut Remembered,
    used: &mut BTreeSet<u16>,
    name: &str,
) -> Result<u16> {
    if let Some(port) = remembered.get(name) {
        return Ok(*port);
    }
    loop {
        let port = free_port(env).await?;
        if used.insert(port) {
            remembered.insert(name.to_owned(), port);
            return Ok(port);
        }
    }
}

/// This machine only.
pub const LOOPBACK: &str = "127.0.0.1";

/// An address on this machine only.
pub fn loopback(port: u16) -> String {
    format!("{LOOPBACK}:{port}")
}

/// Whether somebody could listen there. Asked for a while: a process that this one is starting has all of its listeners, until it runs
/// its own program, also those that this one has closed since.
pub async fn is_free(env: &Env, port: u16) -> bool {
    for _ in 0..TRIES {
        if env.net.bind(loopback(port), Door::Members).await.is_ok() {
            return true;
        }
        tokio::time::sleep(AGAIN).await;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_port_is_chosen_once_and_not_twice() {
        let env = Env::real();
        let (mut remembered, mut used) = (Remembered::new(), BTreeSet::new());
        let one = choose(&env, &mut remembered, &mut used, "one").await.unwrap();
        let two = choose(&env, &mut remembered, &mut used, "two").await.unwrap();
        assert_ne!(one, two);
        assert_eq!(choose(&env, &mut remembered, &mut used, "one").await.unwrap(), one);
    }

    #[tokio::test]
    async fn a_taken_port_is_not_free() {
        let env = Env::real();
        let listener = env.net.bind(loopback(0), Door::Members).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(!is_free(&env, port).await);
        let let_go = async {
            tokio::time::sleep(5 * AGAIN).await;
            drop(listener);
        };
        assert!(tokio::join!(is_free(&env, port), let_go).0, "it was let go meanwhile");
    }
}
