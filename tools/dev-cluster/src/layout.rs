//! Which servers a cluster has, under which names and addresses, and their configurations. Pure.

use std::path::{Path, PathBuf};

use sextant_common::error::{Error, Result};
use sextant_environment::config::ClusterConfig;

use crate::options::Tuning;
use crate::role::Role;

/// One server of the cluster. `index` counts from 0 within its role; its id is `index + 1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub role: Role,
    pub index: usize,
    /// gRPC.
    pub addr: String,
    pub http: String,
    /// p-nodes only.
    pub resp: Option<String>,
    /// The address of the service Admin; p-nodes only.
    pub admin: Option<String>,
}

impl Member {
    pub fn id(&self) -> u64 {
        self.index as u64 + 1
    }

    /// `memtable-1`.
    pub fn name(&self) -> String {
        format!("{}-{}", self.role.name(), self.id())
    }

    pub fn config_path(&self, data: &Path) -> PathBuf {
        data.join("config").join(format!("{}.toml", self.name()))
    }

    pub fn log_path(&self, data: &Path) -> PathBuf {
        data.join("log").join(format!("{}.log", self.name()))
    }

    /// The server's whole configuration file.
    pub fn config(&self, data: &Path, cluster: &ClusterConfig, tuning: &Tuning) -> Result<String> {
        let mut config = toml::Table::new();
        let mut set = |name: &str, value: toml::Value| config.insert(name.to_owned(), value);
        set("id", toml::Value::Integer(self.id() as i64));
        set("http", self.http.clone().into());
        match self.role {
            Role::PNode => {
                set("grpc", self.addr.clone().into());
                for (name, addr) in [("resp", &self.resp), ("admin", &self.admin)] {
                    if let Some(addr) = addr {
                        set(name, addr.clone().into());
                    }
                }
            }
            Role::Memtable | Role::Sstable => {
                set("listen", self.addr.clone().into());
                let dir = data.join(self.name());
                let dir =
                    dir.to_str().ok_or_else(|| Error::invalid("the data directory's path is not UTF-8"))?;
                set("data_dir", dir.into());
            }
        }
        let section = toml::Table::try_from(cluster).map_err(|e| Error::internal(e.to_string()))?;
        set("cluster", toml::Value::Table(section));
        merge(
            &mut config,
            match self.role {
                Role::Memtable => &tuning.memtable,
                Role::Sstable => &tuning.sstable,
                Role::PNode => &tuning.pnode,
            },
        );
        let text = toml::to_string_pretty(&config).map_err(|e| Error::internal(e.to_string()))?;
        Ok(format!("# Written by `sextant dev` at each start: changes here are lost.\n{text}"))
    }
}

/// Puts `over` over `base`, section by section.
fn merge(base: &mut toml::Table, over: &toml::Table) {
    for (name, value) in over {
        match (base.get_mut(name), value) {
            (Some(toml::Value::Table(section)), toml::Value::Table(over)) => merge(section, over),
            _ => {
                base.insert(name.clone(), value.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use sextant_environment::config::{LeaseConfig, Server};
    use sextant_memtable_server::MemtableServerConfig;
    use sextant_pnode::PNodeConfig;
    use sextant_sstable_server::SstServerConfig;

    use super::*;

    fn cluster() -> ClusterConfig {
        let server = |addr: &str| vec![Server::new(1, addr)];
        ClusterConfig {
            id: "c".into(),
            partitions: 2,
            memtable: server("127.0.0.1:1"),
            sstable: server("127.0.0.1:2"),
            lease: LeaseConfig::default(),
        }
    }

    fn member(role: Role) -> Member {
        let pnodes = |addr: &str| (role == Role::PNode).then(|| addr.to_owned());
        let (resp, admin) = (pnodes("127.0.0.1:5"), pnodes("127.0.0.1:6"));
        Member { role, index: 0, addr: "127.0.0.1:3".into(), http: "127.0.0.1:4".into(), resp, admin }
    }

    #[test]
    fn the_configurations_are_what_the_servers_read() {
        let data = Path::new("/tmp/d");
        let tuning = Tuning {
            memtable: toml::from_str("[tuning]\nmemtable_bytes = 1000000").unwrap(),
            pnode: toml::from_str("cache_bytes = 7").unwrap(),
            ..Tuning::default()
        };
        let text = |role| member(role).config(data, &cluster(), &tuning).unwrap();

        let memtable: MemtableServerConfig = toml::from_str(&text(Role::Memtable)).unwrap();
        memtable.validate().unwrap();
        assert_eq!(memtable.tuning.memtable_bytes, 1_000_000);
        assert_eq!(memtable.data_dir, Path::new("/tmp/d/memtable-1"));
        assert_eq!(memtable.cluster, cluster());

        let sstable: SstServerConfig = toml::from_str(&text(Role::Sstable)).unwrap();
        sstable.validate().unwrap();
        assert_eq!(sstable.listen, "127.0.0.1:3");

        let pnode: PNodeConfig = toml::from_str(&text(Role::PNode)).unwrap();
        pnode.validate().unwrap();
        assert_eq!((pnode.cache_bytes, pnode.resp.as_deref()), (7, Some("127.0.0.1:5")));
        assert_eq!(pnode.admin_addr(), "127.0.0.1:6");
    }

    #[test]
    fn merging_keeps_what_is_not_named() {
        let mut base: toml::Table = toml::from_str("a = 1\n[s]\nx = 1\ny = 2").unwrap();
        merge(&mut base, &toml::from_str("b = 3\n[s]\ny = 5").unwrap());
        assert_eq!(base, toml::from_str("a = 1\nb = 3\n[s]\nx = 1\ny = 5").unwrap());
    }
}
