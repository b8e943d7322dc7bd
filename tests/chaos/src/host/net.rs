//! The run's network: a bridge, and a network namespace for each server with one interface to it.
//!
//! Addresses exist only inside the run's namespaces. The load runs at the bridge.

use sextant_common::error::Result;

use super::rules::{Direction, Rule, ruleset};
use super::shell;

const BRIDGE: &str = "br0";
/// Of the bridge, where the load runs.
pub const LOAD_ADDRESS: &str = "10.77.0.1";

/// A server's place in the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Of the namespace.
    pub name: String,
    pub address: String,
}

impl Node {
    /// `number`: unique in the run, 2 to 254.
    pub fn new(name: String, number: usize) -> Self {
        Self { name, address: format!("10.77.0.{number}") }
    }

    fn interface(&self) -> String {
        format!("v-{}", self.address.rsplit('.').next().unwrap_or_default())
    }

    fn path(&self) -> String {
        format!("--net=/run/netns/{}", self.name)
    }

    /// Words that run a command in it. The command takes the place of `nsenter`: no process is in between.
    pub fn enter(&self) -> Vec<String> {
        vec!["nsenter".into(), self.path(), "--".into()]
    }

    async fn inside(&self, words: &[&str], input: &str) -> Result<String> {
        let path = self.path();
        shell::run_with(&[&["nsenter", &path, "--"], words].concat(), input).await
    }

    /// Replaces the packet filter.
    pub async fn filter(&self, rules: &[Rule]) -> Result<()> {
        self.inside(&["nft", "-f", "-"], &ruleset(rules)).await.map(|_| ())
    }

    pub async fn link(&self, up: bool) -> Result<()> {
        self.inside(&["ip", "link", "set", "eth0", if up { "up" } else { "down" }], "").await.map(|_| ())
    }

    /// What leaves the server goes at this rate at most; `None`: no limit.
    pub async fn rate(&self, kilobits: Option<u32>) -> Result<()> {
        match kilobits {
            Some(kilobits) => {
                let rate = format!("{kilobits}kbit");
                let words = ["tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", &rate];
                self.inside(&[&words[..], &["burst", "16kb", "latency", "300ms"]].concat(), "").await
            }
            None => self.inside(&["tc", "qdisc", "del", "dev", "eth0", "root"], "").await,
        }
        .map(|_| ())
    }
}

/// Makes the bridge.
pub async fn make_bridge() -> Result<()> {
    shell::run(&["ip", "link", "add", BRIDGE, "type", "bridge"]).await?;
    let address = format!("{LOAD_ADDRESS}/24");
    shell::run(&["ip", "address", "add", &address, "dev", BRIDGE]).await?;
    shell::run(&["ip", "link", "set", BRIDGE, "up"]).await?;
    Ok(())
}

/// Makes a server's namespace and links it to the bridge.
pub async fn make_node(node: &Node) -> Result<()> {
    shell::run(&["ip", "netns", "add", &node.name]).await?;
    let interface = node.interface();
    let add = ["ip", "link", "add", &interface, "type", "veth", "peer", "name", "eth0", "netns", &node.name];
    shell::run(&add).await?;
    shell::run(&["ip", "link", "set", &interface, "master", BRIDGE, "up"]).await?;
    node.inside(&["ip", "link", "set", "lo", "up"], "").await?;
    let address = format!("{}/24", node.address);
    node.inside(&["ip", "address", "add", &address, "dev", "eth0"], "").await?;
    node.link(true).await
}

/// Whether packets can be filtered here.
pub async fn probe_filter() -> Result<()> {
    let rules = [Rule::cut(Direction::In, "192.0.2.1"), Rule::loss(Direction::Out, 0)];
    shell::run_with(&["nft", "-f", "-"], &ruleset(&rules)).await?;
    shell::run_with(&["nft", "-f", "-"], &ruleset(&[])).await.map(|_| ())
}

/// Whether a link's rate can be limited here.
pub async fn probe_rate() -> Result<()> {
    shell::run(&["ip", "link", "add", "probe0", "type", "veth", "peer", "name", "probe1"]).await?;
    let limit = ["tc", "qdisc", "add", "dev", "probe0", "root", "tbf", "rate", "1mbit", "burst", "16kb"];
    let limited = shell::run(&[&limit[..], &["latency", "300ms"]].concat()).await;
    shell::run(&["ip", "link", "del", "probe0"]).await?;
    limited.map(|_| ())
}
