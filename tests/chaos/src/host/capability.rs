//! What works on this machine. Each capability is probed by doing what it stands for.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use sextant_common::error::{Error, Result};

use super::confine::{self, Confined};
use super::{net, shell, shim, throttle, volume};

/// Names a capability in which skips are turned into failures: `CHAOS_REQUIRE=netns,nft`.
const REQUIRE: &str = "CHAOS_REQUIRE";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Capability {
    /// A network, mount and process namespace of our own, and one for each server.
    Netns,
    /// Packet filters in them.
    Nft,
    /// A limit on a link's rate.
    Tbf,
    /// A small file system of its own for a server.
    Loop,
    /// A library loaded into servers.
    Shim,
    /// A limit on a disk's rate.
    Blkio,
    /// Monotonic clocks that start elsewhere for each server.
    Timens,
}

impl Capability {
    pub const ALL: [Capability; 7] = [
        Capability::Netns,
        Capability::Nft,
        Capability::Tbf,
        Capability::Loop,
        Capability::Shim,
        Capability::Blkio,
        Capability::Timens,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Capability::Netns => "netns",
            Capability::Nft => "nft",
            Capability::Tbf => "tbf",
            Capability::Loop => "loop",
            Capability::Shim => "shim",
            Capability::Blkio => "blkio",
            Capability::Timens => "timens",
        }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What works, and why the rest does not.
#[derive(Clone, Debug, Default)]
pub struct Capabilities {
    /// Reasons of those that are missing.
    missing: BTreeMap<Capability, String>,
}

impl Capabilities {
    /// Probes everything. `dir`: where the run keeps its files.
    ///
    /// # Errors
    /// If the environment requires one that is missing, or names one that does not exist.
    pub async fn probe(confined: &Confined, dir: &Path) -> Result<Self> {
        let mut found = Self::default();
        for capability in Capability::ALL {
            if let Err(reason) = found.probe_one(capability, confined, dir).await {
                println!("SKIP({capability}): {reason}");
                found.missing.insert(capability, reason);
            }
        }
        found.check_required(&std::env::var(REQUIRE).unwrap_or_default())?;
        Ok(found)
    }

    async fn probe_one(
        &self,
        capability: Capability,
        confined: &Confined,
        dir: &Path,
    ) -> std::result::Result<(), String> {
        let inside = match confined {
            Confined::Yes => Ok(()),
            Confined::No(reason) => Err(reason.clone()),
        };
        let result = match capability {
            Capability::Shim => shim::probe(dir).await,
            Capability::Netns => {
                inside?;
                confine::furnish().await
            }
            _ if inside.is_err() => return Err("needs namespaces of our own".to_owned()),
            Capability::Nft => net::probe_filter().await,
            Capability::Tbf => net::probe_rate().await,
            Capability::Loop => volume::probe(dir).await,
            Capability::Blkio => throttle::probe(dir).await,
            Capability::Timens => {
                shell::run(&["unshare", "--time", "--monotonic", "1000", "--boottime", "1000", "true"])
                    .await
                    .map(|_| ())
            }
        };
        result.map_err(|e| e.message.into_owned())
    }

    fn check_required(&self, required: &str) -> Result<()> {
        for name in required.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let Some(capability) = Capability::ALL.into_iter().find(|c| c.name() == name) else {
                return Err(Error::invalid(format!("{REQUIRE}: there is no capability {name:?}")));
            };
            if let Some(reason) = self.missing.get(&capability) {
                return Err(Error::invalid(format!("{REQUIRE} asks for {capability}: {reason}")));
            }
        }
        Ok(())
    }

    pub fn has(&self, capability: Capability) -> bool {
        !self.missing.contains_key(&capability)
    }

    pub fn skips(&self) -> usize {
        self.missing.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_required_must_be_there() {
        let found = Capabilities { missing: [(Capability::Nft, "no nft here".to_owned())].into() };
        assert!(found.has(Capability::Netns) && !found.has(Capability::Nft));
        found.check_required("").unwrap();
        found.check_required("netns, shim").unwrap();
        let error = found.check_required("netns,nft").unwrap_err();
        assert!(error.message.contains("no nft here"), "{error}");
        assert!(found.check_required("netz").unwrap_err().message.contains("no capability \"netz\""));
    }
}
