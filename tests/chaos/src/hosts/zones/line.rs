//! The line between two zones: containers of zone B are moved to a bridge of their own, and a cable with delay leads from there to
//! Docker's. Names, addresses and published ports stay what they are; this machine is in zone A.
//!
//! Within the zones the same is possible: each container then has a bridge and a cable of its own.
//!
//! The bridges are in a network namespace, where no packet filter of the machine reaches them, and what is in it ends with it. A
//! cable is a pair of interfaces with netem; where the kernel has none, this process carries the frames ([`super::pump`]).

use std::path::{Path, PathBuf};
use std::time::Duration;

use sextant_common::error::{Error, Result};
use sextant_environment::Env;

use super::Zone;
use super::delay::Quality;
use super::pump::{Cable, Pump};
use super::tap::Tap;
use crate::host::shell::run;
use crate::hosts::SERVICES;
use crate::hosts::compose::Compose;

/// With the process' id.
const NAMESPACE: &str = "sextant-zones-";
const BRIDGE: &str = "zone";

/// What the cables are like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Qualities {
    /// Between the zones.
    pub between: Quality,
    /// Of each container's own cable; perfect: it has none.
    pub own: Quality,
    /// Of the frames that are lost, and of how late the others are.
    pub seed: u64,
}

pub struct Line {
    namespace: String,
    /// Whether each container has a bridge of its own.
    own: bool,
    /// The line's end in zone A.
    end: String,
    /// None: netem delays.
    pump: Option<Pump>,
}

/// A bridge, on this machine or in a namespace.
#[derive(Clone, Copy)]
struct Socket<'a> {
    namespace: Option<&'a str>,
    bridge: &'a str,
}

impl Socket<'_> {
    /// A program of `iproute2` there.
    async fn run(self, program: &str, words: &[&str]) -> Result<()> {
        let there = self.namespace.map_or(vec![program], |name| vec![program, "-n", name]);
        run(&[&there, words].concat()).await.map(drop)
    }

    async fn plug(self, end: &str) -> Result<()> {
        self.run("ip", &["link", "set", end, "master", self.bridge, "up"]).await
    }
}

/// Makes cables, of the kind that this kernel has.
#[derive(Default)]
struct Cables {
    no_netem: bool,
    carried: Vec<Cable>,
}

impl Cables {
    async fn lay(&mut self, ends: [&str; 2], sockets: [Socket<'_>; 2], quality: Quality) -> Result<()> {
        if !self.no_netem {
            match netem(ends, sockets, quality).await {
                Ok(()) => return Ok(()),
                Err(e) => println!("SKIP(netem): {}: this process delays", e.message),
            }
            self.no_netem = true;
        }
        let whole = !quality.singles_out();
        let taps = [Tap::new(ends[0], whole)?, Tap::new(ends[1], whole)?];
        for (end, socket) in ends.into_iter().zip(sockets) {
            if let Some(namespace) = socket.namespace {
                run(&["ip", "link", "set", end, "netns", namespace]).await?;
            }
            socket.plug(end).await?;
        }
        self.carried.push(Cable { taps, quality });
        Ok(())
    }
}

/// The bridge of a container alone, and the ends of its cable, by its place in [`SERVICES`].
fn own_names(at: usize) -> (String, [String; 2]) {
    let id = std::process::id();
    (format!("own{at}"), [format!("sxo{at}{id}"), format!("sxi{at}{id}")])
}

impl Line {
    /// Between Docker's bridge and a new one.
    pub async fn lay(env: &Env, bridge: &str, qualities: Qualities) -> Result<Self> {
        Self::remove_all().await?;
        let id = std::process::id();
        let namespace = format!("{NAMESPACE}{id}");
        run(&["ip", "netns", "add", &namespace]).await?;
        Self::within(env, namespace, bridge, qualities).await
    }

    async fn within(env: &Env, namespace: String, bridge: &str, qualities: Qualities) -> Result<Self> {
        let id = std::process::id();
        let ends = [format!("sxa{id}"), format!("sxb{id}")];
        let zone_a = Socket { namespace: None, bridge };
        let zone_b = Socket { namespace: Some(&namespace), bridge: BRIDGE };
        let mut cables = Cables::default();
        new_bridge(zone_b).await?;
        cables.lay(ends.each_ref().map(String::as_str), [zone_a, zone_b], qualities.between).await?;
        let own = !qualities.own.is_perfect();
        for (at, service) in SERVICES.iter().enumerate().filter(|_| own) {
            let (bridge, ends) = own_names(at);
            let alone = Socket { namespace: Some(&namespace), bridge: &bridge };
            new_bridge(alone).await?;
            let zone = if Zone::of(service) == Zone::A { zone_a } else { zone_b };
            cables.lay(ends.each_ref().map(String::as_str), [zone, alone], qualities.own).await?;
        }
        let pump = cables.no_netem.then(|| Pump::start(env, cables.carried, qualities.seed));
        let [end, _] = ends;
        Ok(Self { namespace, own, end, pump })
    }

    /// A running container goes to where it belongs. Whatever gives it another interface brings it back to zone A.
    pub async fn take(&self, compose: &Compose, service: &str) -> Result<()> {
        let at = SERVICES.iter().position(|of| *of == service).unwrap_or_default();
        let bridge = match self.own {
            true => own_names(at).0,
            false if Zone::of(service) == Zone::A => return Ok(()),
            false => BRIDGE.to_owned(),
        };
        let container = &compose.container(service).await?;
        let pid = run(&["docker", "inspect", "--format", "{{.State.Pid}}", container]).await?;
        let inside = run(&["nsenter", "--net", "--target", pid.trim(), "ip", "-o", "link"]).await?;
        let outside = run(&["ip", "-o", "link"]).await?;
        let Some(interface) = peer(&inside, &outside) else {
            return Err(Error::unavailable(format!("{container} has no interface on this machine")));
        };
        run(&["ip", "link", "set", &interface, "netns", &self.namespace]).await?;
        Socket { namespace: Some(&self.namespace), bridge: &bridge }.plug(&interface).await
    }

    /// Nothing crosses any more, what is under way included. No server sees more of it than silence.
    pub async fn cut(&self) -> Result<()> {
        run(&["ip", "link", "set", &self.end, "down"]).await.map(drop)
    }

    pub async fn mend(&self) -> Result<()> {
        run(&["ip", "link", "set", &self.end, "up"]).await.map(drop)
    }

    /// This machine gets an address in zone B, too. The namespace's file: sockets that are made there do not cross the line.
    pub async fn stand_in_zone_b(&self, address: &str) -> Result<PathBuf> {
        run(&["ip", "-n", &self.namespace, "address", "add", address, "dev", BRIDGE]).await?;
        Ok(Path::new("/run/netns").join(&self.namespace))
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

async fn new_bridge(at: Socket<'_>) -> Result<()> {
    at.run("ip", &["link", "add", at.bridge, "type", "bridge"]).await?;
    at.run("ip", &["link", "set", at.bridge, "up"]).await
}

/// A cable of the kernel's, which delays what enters at either end.
async fn netem(ends: [&str; 2], sockets: [Socket<'_>; 2], quality: Quality) -> Result<()> {
    let [a, b] = ends;
    run(&["ip", "link", "add", a, "type", "veth", "peer", "name", b]).await?;
    let netem = quality.netem();
    let netem: Vec<&str> = netem.iter().map(String::as_str).collect();
    // Removed at either end, it is gone.
    let mut there = [None, None];
    let delayed = async {
        for (n, (end, socket)) in ends.into_iter().zip(sockets).enumerate() {
            if let Some(namespace) = socket.namespace {
                run(&["ip", "link", "set", end, "netns", namespace]).await?;
                there[n] = socket.namespace;
            }
            // In its place: another namespace takes an interface without what it had.
            socket.run("tc", &[&["qdisc", "add", "dev", end, "root"], &netem[..]].concat()).await?;
            socket.plug(end).await?;
        }
        Ok(())
    };
    let delayed: Result<()> = delayed.await;
    if delayed.is_err() {
        Socket { namespace: there[0], bridge: BRIDGE }.run("ip", &["link", "del", a]).await?;
    }
    delayed
}

/// The interface on this machine whose other end is a container's only one, by what `ip -o link` says on either side. There that is
/// eth0, or, once it was connected again, eth1 and so on.
fn peer(inside: &str, outside: &str) -> Option<String> {
    let (_, of_ethernet) = inside.lines().find_map(|line| line.split_once(" eth")?.1.split_once("@if"))?;
    let index = of_ethernet.split(':').next()?;
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
        assert_eq!(peer(&inside.replace("eth0", "eth12"), outside).as_deref(), Some("veth1b2c"));
        assert_eq!(peer("1: lo: <LOOPBACK>", outside), None);
        assert_eq!(peer(inside, "1: lo: <LOOPBACK>"), None);
    }
}
