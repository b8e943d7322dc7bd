//! The line between two zones: containers of zone B are moved to a bridge of their own, and a cable with delay leads from there to
//! Docker's. Names, addresses and published ports stay what they are; this machine is in zone A.
//!
//! The bridge is in a network namespace, where no packet filter of the machine reaches it, and what is in it ends with it. The
//! cable is a pair of interfaces with netem; where the kernel has none, this process carries the frames ([`super::pump`]).

use std::path::Path;
use std::time::Duration;

use sextant_common::error::{Error, Result};
use sextant_environment::Env;

use super::delay::Quality;
use super::pump::Pump;
use super::tap::Tap;
use crate::host::shell::run;
use crate::hosts::compose::Compose;

/// With the process' id.
const NAMESPACE: &str = "sextant-zone-b-";
const BRIDGE: &str = "zone";

pub struct Line {
    namespace: String,
    /// None: netem delays.
    pump: Option<Pump>,
}

impl Line {
    /// Between Docker's bridge and a new one.
    pub async fn lay(env: &Env, bridge: &str, quality: Quality) -> Result<Self> {
        Self::remove_all().await?;
        let id = std::process::id();
        let namespace = format!("{NAMESPACE}{id}");
        run(&["ip", "netns", "add", &namespace]).await?;
        Self::within(env, namespace, bridge, quality).await
    }

    async fn within(env: &Env, namespace: String, bridge: &str, quality: Quality) -> Result<Self> {
        run(&["ip", "-n", &namespace, "link", "add", BRIDGE, "type", "bridge"]).await?;
        run(&["ip", "-n", &namespace, "link", "set", BRIDGE, "up"]).await?;
        let id = std::process::id();
        let ends = [format!("sxa{id}"), format!("sxb{id}")];
        let pump = match netem(&namespace, &ends, quality).await {
            Ok(()) => None,
            Err(e) => {
                println!("SKIP(netem): {}: this process delays", e.message);
                // What is lost is one frame of the wire's size.
                let whole = quality.loss == 0.0;
                let taps = [Tap::new(&ends[0], whole)?, Tap::new(&ends[1], whole)?];
                run(&["ip", "link", "set", &ends[1], "netns", &namespace]).await?;
                Some(Pump::start(env, taps, quality))
            }
        };
        run(&["ip", "link", "set", &ends[0], "master", bridge, "up"]).await?;
        run(&["ip", "-n", &namespace, "link", "set", &ends[1], "master", BRIDGE, "up"]).await?;
        Ok(Self { namespace, pump })
    }

    /// A running container goes to zone B. Whatever gives it another interface brings it back to zone A.
    pub async fn take(&self, container: &str) -> Result<()> {
        let pid = run(&["docker", "inspect", "--format", "{{.State.Pid}}", container]).await?;
        let inside = run(&["nsenter", "--net", "--target", pid.trim(), "ip", "-o", "link"]).await?;
        let outside = run(&["ip", "-o", "link"]).await?;
        let Some(interface) = peer(&inside, &outside) else {
            return Err(Error::unavailable(format!("{container} has no interface on this machine")));
        };
        run(&["ip", "link", "set", &interface, "netns", &self.namespace]).await?;
        run(&["ip", "-n", &self.namespace, "link", "set", &interface, "master", BRIDGE, "up"]).await.map(drop)
    }

    pub fn how(&self) -> String {
        match &self.pump {
            None => "netem".to_owned(),
            Some(pump) => format!("by the harness: {}", pump.passed.line()),
        }
    }

    /// Of this run, and of those that were killed. The containers have to be gone: their interfaces go, too.
    pub async fn remove_all() -> Result<()> {
        for line in run(&["ip", "netns", "list"]).await?.lines() {
            let name = line.split_whitespace().next().unwrap_or_default();
            let Some(id) = name.strip_prefix(NAMESPACE) else { continue };
            let is_mine = id.parse() == Ok(std::process::id());
            if is_mine || !Path::new("/proc").join(id).exists() {
                run(&["ip", "netns", "del", name]).await?;
            }
        }
        Ok(())
    }
}

/// A cable of the kernel's, which delays what enters at either end.
async fn netem(namespace: &str, ends: &[String; 2], quality: Quality) -> Result<()> {
    let [a, b] = ends;
    let us = |ns: u64| format!("{}us", ns / 1_000);
    let (delay, jitter) = (us(quality.delay_ns), us(quality.jitter_ns));
    let loss = format!("{}%", quality.loss * 100.0);
    // Frames that nobody has room for are lost: more than a second of a fast link.
    let netem = ["root", "netem", "delay", &delay, &jitter, "loss", &loss, "limit", "65536"];
    run(&["ip", "link", "add", a, "type", "veth", "peer", "name", b, "netns", namespace]).await?;
    let delayed = async {
        run(&[&["tc", "qdisc", "add", "dev", a][..], &netem].concat()).await?;
        run(&[&["tc", "-n", namespace, "qdisc", "add", "dev", b][..], &netem].concat()).await
    };
    match delayed.await {
        Ok(_) => Ok(()),
        Err(e) => {
            run(&["ip", "link", "del", a]).await?;
            Err(e)
        }
    }
}

/// The interface on this machine whose other end is a container's eth0, by what `ip -o link` says on either side.
fn peer(inside: &str, outside: &str) -> Option<String> {
    let (_, of_eth0) = inside.lines().find_map(|line| line.split_once(" eth0@if"))?;
    let index = of_eth0.split(':').next()?;
    let line = outside.lines().find_map(|line| line.strip_prefix(&format!("{index}: ")))?;
    Some(line.split(['@', ':']).next()?.to_owned())
}

/// How long it takes to be answered by a host: the median of some connections.
pub async fn round_trip(env: &Env, compose: &Compose, service: &str, port: u16) -> Result<Duration> {
    const CONNECTIONS: usize = 21;
    let address = compose.address(service).await?;
    let mut took = Vec::new();
    for _ in 0..CONNECTIONS {
        let before_ns = env.clock.holder_ns();
        tokio::net::TcpStream::connect((address.as_str(), port)).await?;
        took.push(env.clock.holder_ns() - before_ns);
    }
    took.sort_unstable();
    Ok(Duration::from_nanos(took[CONNECTIONS / 2]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_end_of_a_containers_interface_is_found() {
        let inside = "1: lo: <LOOPBACK,UP> mtu 65536 qdisc noqueue\\    link/loopback 00:00\n\
                      9: eth0@if10: <BROADCAST,UP> mtu 1500 qdisc noqueue\\    link/ether 02:42";
        let outside = "1: lo: <LOOPBACK> mtu 65536\n5: docker0: <UP> mtu 1500\n\
                       10: veth1b2c@if9: <BROADCAST,UP> mtu 1500 master br-1\n110: vethffff@if109: <UP>";
        assert_eq!(peer(inside, outside).as_deref(), Some("veth1b2c"));
        assert_eq!(peer("1: lo: <LOOPBACK>", outside), None);
        assert_eq!(peer(inside, "1: lo: <LOOPBACK>"), None);
    }
}
