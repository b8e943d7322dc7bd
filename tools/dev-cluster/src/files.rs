//! `cluster.toml`: what a data directory remembers of its cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sextant_common::error::{Error, Result};
use sextant_environment::Env;
use sextant_environment::config::{ClusterConfig, Server};
use sextant_environment::vfs::{read_file, write_file_atomically};
use sextant_pnode::ADMIN_PORT_OFFSET;

use crate::layout::Member;
use crate::options::{DevOptions, SERVERS_MAX};
use crate::ports::{self, Remembered};
use crate::role::Role;

const PARTITIONS_DEFAULT: u32 = 2;
const SERVERS_DEFAULT: usize = 3;
const HEAD: &str = "# Written by `sextant dev`. Names the cluster: `sextant ycsb run --embedded --cluster <this file>`.\n\
    # The addresses and ports below were chosen when the directory was first used, and stay.\n";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterFile {
    pub cluster: ClusterConfig,
    #[serde(default)]
    pub ports: Remembered,
}

pub fn cluster_file_path(data: &Path) -> PathBuf {
    data.join("cluster.toml")
}

impl ClusterFile {
    /// What the directory remembers, or a new cluster. An error if the options ask for another cluster than is there.
    pub async fn read_or_create(env: &Env, options: &DevOptions) -> Result<Self> {
        let path = cluster_file_path(&options.data);
        if !env.vfs.exists(&path) {
            return Self::create(env, options).await;
        }
        let bad = |what: &dyn std::fmt::Display| Error::invalid(format!("{}: {what}", path.display()));
        let bytes = read_file(&*env.vfs, &path)?;
        let text = String::from_utf8(bytes).map_err(|e| bad(&e))?;
        let file: ClusterFile = toml::from_str(&text).map_err(|e| bad(&e.message()))?;
        file.cluster.validate().map_err(|e| bad(&e))?;
        file.check(options)?;
        Ok(file)
    }

    async fn create(env: &Env, options: &DevOptions) -> Result<Self> {
        let (mut ports, mut used) = (Remembered::new(), reserved(options));
        let mut tiers = [Vec::new(), Vec::new()];
        for (role, count, tier) in
            [(Role::Memtable, options.memtable, 0), (Role::Sstable, options.sstable, 1)]
        {
            let count = count.unwrap_or(SERVERS_DEFAULT);
            if count == 0 || count > SERVERS_MAX {
                return Err(Error::invalid(format!("{} servers: 1 to {SERVERS_MAX}", role.name())));
            }
            for index in 0..count {
                let name = format!("{}-{}", role.name(), index + 1);
                let port = ports::choose(env, &mut ports, &mut used, &name).await?;
                let addr = options.addr(role, index, port);
                tiers[tier].push(Server::new(index as u64 + 1, addr));
            }
        }
        let [memtable, sstable] = tiers;
        let cluster = ClusterConfig {
            id: format!("dev-{:016x}", env.rng.next_u64()),
            partitions: options.partitions.unwrap_or(PARTITIONS_DEFAULT),
            memtable,
            sstable,
            lease: options.tuning.lease.clone().unwrap_or_default(),
        };
        cluster.validate()?;
        // The addresses remember the internal ports; here only those of p-nodes and HTTP are kept.
        ports.clear();
        Ok(Self { cluster, ports })
    }

    fn check(&self, options: &DevOptions) -> Result<()> {
        let there = &self.cluster;
        let fixed = [
            ("partitions", options.partitions.map(u64::from), u64::from(there.partitions)),
            ("memtable servers", options.memtable.map(|n| n as u64), there.memtable.len() as u64),
            ("sstable servers", options.sstable.map(|n| n as u64), there.sstable.len() as u64),
        ];
        for (what, asked, is) in fixed {
            if let Some(asked) = asked
                && asked != is
            {
                return Err(Error::invalid(format!(
                    "the cluster in {} has {is} {what}, not {asked}: that is fixed when a data directory is first used",
                    options.data.display()
                )));
            }
        }
        Ok(())
    }

    /// All servers, in the order in which they are started: sstable, memtable, p-nodes. Chooses ports that are not given.
    pub async fn members(&mut self, env: &Env, options: &DevOptions) -> Result<Vec<Member>> {
        let mut used = reserved(options);
        used.extend(self.ports.values());
        used.extend(
            self.cluster.memtable.iter().chain(&self.cluster.sstable).filter_map(|s| port_of(&s.addr)),
        );
        let mut members = Vec::new();
        // HTTP ports count up over p-nodes, memtable servers and sstable servers.
        let mut http_at = 0;
        for index in 0..options.pnodes {
            let mut public = Vec::new();
            for (kind, first) in [
                ("grpc", options.grpc_port),
                ("resp", options.resp_port),
                ("http", options.http_port),
                ("admin", admin_port(options)),
            ] {
                let name = format!("pnode-{}-{kind}", index + 1);
                public.push(self.public_port(env, &mut used, first, index, &name).await?);
            }
            http_at += 1;
            members.push(Member {
                role: Role::PNode,
                index,
                addr: options.addr(Role::PNode, index, public[0]),
                resp: Some(options.addr(Role::PNode, index, public[1])),
                http: options.addr(Role::PNode, index, public[2]),
                admin: Some(options.addr(Role::PNode, index, public[3])),
            });
        }
        for (role, servers) in
            [(Role::Memtable, self.cluster.memtable.clone()), (Role::Sstable, self.cluster.sstable.clone())]
        {
            for (index, server) in servers.into_iter().enumerate() {
                let name = format!("{}-{}-http", role.name(), index + 1);
                let http = self.public_port(env, &mut used, options.http_port, http_at, &name).await?;
                http_at += 1;
                let http = options.addr(role, index, http);
                members.push(Member { role, index, addr: server.addr, http, resp: None, admin: None });
            }
        }
        if options.placement.is_none() {
            check_apart(&members)?;
        }
        members.sort_by_key(|m| match m.role {
            Role::Sstable => (0, m.index),
            Role::Memtable => (1, m.index),
            Role::PNode => (2, m.index),
        });
        Ok(members)
    }

    async fn public_port(
        &mut self,
        env: &Env,
        used: &mut BTreeSet<u16>,
        first: u16,
        offset: usize,
        name: &str,
    ) -> Result<u16> {
        if first == 0 {
            return ports::choose(env, &mut self.ports, used, name).await;
        }
        u16::try_from(offset)
            .ok()
            .and_then(|offset| first.checked_add(offset))
            .ok_or_else(|| Error::invalid(format!("{name}: ports counted up from {first} pass 65535")))
    }

    pub fn write(&self, env: &Env, data: &Path) -> Result<()> {
        let text = toml::to_string_pretty(self).map_err(|e| Error::internal(e.to_string()))?;
        write_file_atomically(&*env.vfs, &cluster_file_path(data), format!("{HEAD}{text}").as_bytes())?;
        Ok(())
    }
}

pub fn port_of(addr: &str) -> Option<u16> {
    addr.rsplit_once(':')?.1.parse().ok()
}

/// Ports that are given count up, and may run into each other.
fn check_apart(members: &[Member]) -> Result<()> {
    let mut taken: BTreeMap<u16, String> = BTreeMap::new();
    for member in members {
        let Member { role, index, addr, http, resp, admin } = member;
        let ports = [
            ("grpc", Some(addr)),
            ("http", Some(http)),
            ("resp", resp.as_ref()),
            ("administration", admin.as_ref()),
        ];
        for (kind, addr) in ports {
            let Some(port) = addr.and_then(|addr| port_of(addr)) else { continue };
            let name = format!("{} {} ({kind})", role.name(), index + 1);
            if let Some(other) = taken.insert(port, name.clone()) {
                return Err(Error::invalid(format!(
                    "port {port} is that of {other} and of {name}: ports count up from server to server, so leave room between \
                     those that are given"
                )));
            }
        }
    }
    Ok(())
}

/// First port of p-nodes' administration: as a p-node chooses it by itself. 0: free ports.
fn admin_port(options: &DevOptions) -> u16 {
    match options.grpc_port {
        0 => 0,
        port => port.checked_add(ADMIN_PORT_OFFSET).unwrap_or_else(|| port - ADMIN_PORT_OFFSET),
    }
}

/// Ports that are given, and so not to be chosen for anything else.
fn reserved(options: &DevOptions) -> BTreeSet<u16> {
    let servers = options.pnodes
        + options.memtable.unwrap_or(SERVERS_DEFAULT)
        + options.sstable.unwrap_or(SERVERS_DEFAULT);
    [options.resp_port, options.grpc_port, options.http_port, admin_port(options)]
        .into_iter()
        .filter(|first| *first != 0)
        .flat_map(|first| (0..servers as u16).filter_map(move |offset| first.checked_add(offset)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_directory_remembers_its_cluster_and_all_ports() {
        let dir = tempfile::tempdir().unwrap();
        let env = Env::real();
        let options = DevOptions::on_free_ports(dir.path());
        let mut file = ClusterFile::read_or_create(&env, &options).await.unwrap();
        let members = file.members(&env, &options).await.unwrap();
        assert_eq!(members.len(), 8);
        file.write(&env, dir.path()).unwrap();

        let mut again = ClusterFile::read_or_create(&env, &options).await.unwrap();
        assert_eq!(again, file);
        assert_eq!(again.members(&env, &options).await.unwrap(), members);

        let all: BTreeSet<&String> = members
            .iter()
            .flat_map(|m| [Some(&m.addr), Some(&m.http), m.resp.as_ref(), m.admin.as_ref()])
            .flatten()
            .collect();
        assert_eq!(all.len(), 8 * 2 + 2 * 2, "no port is used twice");
    }

    #[tokio::test]
    async fn given_ports_that_run_into_each_other_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let env = Env::real();
        let options =
            DevOptions { resp_port: 7540, grpc_port: 7541, http_port: 0, ..DevOptions::new(dir.path()) };
        let mut file = ClusterFile::read_or_create(&env, &options).await.unwrap();
        let refused = file.members(&env, &options).await.unwrap_err();
        let said = "port 7541 is that of pnode 1 (grpc) and of pnode 2 (resp): ";
        assert!(refused.message.starts_with(said), "{refused}");
        let apart = DevOptions { grpc_port: 7542, ..options };
        assert_eq!(file.members(&env, &apart).await.unwrap().len(), 8);
    }

    #[tokio::test]
    async fn given_ports_count_up_with_http_over_all_servers() {
        let dir = tempfile::tempdir().unwrap();
        let env = Env::real();
        let options = DevOptions::new(dir.path());
        let mut file = ClusterFile::read_or_create(&env, &options).await.unwrap();
        let members = file.members(&env, &options).await.unwrap();
        let of = |role, index| members.iter().find(|m| m.role == role && m.index == index).unwrap();
        assert_eq!(of(Role::PNode, 0).resp.as_deref(), Some("127.0.0.1:6380"));
        assert_eq!(of(Role::PNode, 1).resp.as_deref(), Some("127.0.0.1:6381"));
        assert_eq!(of(Role::PNode, 1).addr, "127.0.0.1:7401");
        assert_eq!(of(Role::PNode, 1).http, "127.0.0.1:7481");
        assert_eq!(of(Role::PNode, 1).admin.as_deref(), Some("127.0.0.1:8401"));
        assert_eq!(of(Role::Memtable, 0).http, "127.0.0.1:7482");
        assert_eq!(of(Role::Sstable, 2).http, "127.0.0.1:7487");
        let order: Vec<Role> = members.iter().map(|m| m.role).collect();
        assert_eq!((order[0], order[3], order[6]), (Role::Sstable, Role::Memtable, Role::PNode));
    }

    #[tokio::test]
    async fn another_shape_than_the_directory_has_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let env = Env::real();
        let options = DevOptions { partitions: Some(3), ..DevOptions::on_free_ports(dir.path()) };
        ClusterFile::read_or_create(&env, &options).await.unwrap().write(&env, dir.path()).unwrap();
        let same = DevOptions { partitions: None, ..options.clone() };
        assert_eq!(ClusterFile::read_or_create(&env, &same).await.unwrap().cluster.partitions, 3);
        let other = DevOptions { partitions: Some(2), ..options };
        let error = ClusterFile::read_or_create(&env, &other).await.unwrap_err();
        assert!(error.message.contains("has 3 partitions, not 2"), "{error}");
    }
}
