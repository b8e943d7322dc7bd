//! The configuration of a server, whatever its role: what commands that look at several of them ask of it.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use sextant_access::AccessConfig;
use sextant_common::ids::NodeId;
use sextant_dev_cluster::Role;
use sextant_environment::clock::WallSource;
use sextant_environment::config::{ClusterConfig, ConfigError, TlsConfig, load_file, load_role, role_of};
use sextant_environment::env::{Door, Party};
use sextant_memtable_server::MemtableServerConfig;
use sextant_pnode::PNodeConfig;
use sextant_sstable_server::SstServerConfig;

const ROLES: [Role; 3] = [Role::Memtable, Role::Sstable, Role::PNode];

/// Whether variables of the environment go over a file, as they do when a server starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variables {
    Ignored,
    Applied,
}

pub enum ServerFile {
    Memtable(Box<MemtableServerConfig>),
    Sstable(Box<SstServerConfig>),
    PNode(Box<PNodeConfig>),
}

impl ServerFile {
    /// What is wrong with it is one line that names it.
    pub fn read(path: &Path, variables: Variables) -> Result<Self, String> {
        let named = |e: sextant_common::Error| format!("{}: {}", path.display(), e.message);
        match role_of_file(path)? {
            Role::Memtable => {
                let config: MemtableServerConfig = load(path, Role::Memtable, variables)?;
                config.validate().map_err(named)?;
                Ok(Self::Memtable(Box::new(config)))
            }
            Role::Sstable => {
                let config: SstServerConfig = load(path, Role::Sstable, variables)?;
                config.validate().map_err(named)?;
                Ok(Self::Sstable(Box::new(config)))
            }
            Role::PNode => {
                let config: PNodeConfig = load(path, Role::PNode, variables)?;
                config.validate().map_err(named)?;
                Ok(Self::PNode(Box::new(config)))
            }
        }
    }

    pub fn role(&self) -> Role {
        match self {
            Self::Memtable(_) => Role::Memtable,
            Self::Sstable(_) => Role::Sstable,
            Self::PNode(_) => Role::PNode,
        }
    }

    pub fn id(&self) -> NodeId {
        match self {
            Self::Memtable(config) => config.id,
            Self::Sstable(config) => config.id,
            Self::PNode(config) => config.id,
        }
    }

    pub fn party(&self) -> Party {
        match self {
            Self::Memtable(config) => Party::memtable(config.id),
            Self::Sstable(config) => Party::sstable(config.id),
            Self::PNode(config) => Party::pnode(config.id),
        }
    }

    pub fn cluster(&self) -> &ClusterConfig {
        match self {
            Self::Memtable(config) => &config.cluster,
            Self::Sstable(config) => &config.cluster,
            Self::PNode(config) => &config.cluster,
        }
    }

    pub fn tls(&self) -> Option<&TlsConfig> {
        match self {
            Self::Memtable(config) => config.tls.as_ref(),
            Self::Sstable(config) => config.tls.as_ref(),
            Self::PNode(config) => config.tls.as_ref(),
        }
    }

    /// Who its clients have to be.
    pub fn access(&self) -> Option<&AccessConfig> {
        match self {
            Self::Memtable(_) | Self::Sstable(_) => None,
            Self::PNode(config) => config.access.as_ref(),
        }
    }

    /// None: its role has no use for the time of day.
    pub fn clock(&self) -> Option<WallSource> {
        match self {
            Self::Memtable(config) => Some(config.clock),
            Self::Sstable(_) => None,
            Self::PNode(config) => Some(config.clock),
        }
    }

    /// Of its gRPC service.
    pub fn listen(&self) -> &str {
        match self {
            Self::Memtable(config) => &config.listen,
            Self::Sstable(config) => &config.listen,
            Self::PNode(config) => &config.grpc,
        }
    }

    pub fn http(&self) -> Option<&str> {
        match self {
            Self::Memtable(config) => config.http.as_deref(),
            Self::Sstable(config) => config.http.as_deref(),
            Self::PNode(config) => config.http.as_deref(),
        }
    }

    /// Where it listens, and for whom.
    pub fn doors(&self) -> Vec<(Door, String)> {
        let mut doors = match self {
            Self::Memtable(_) | Self::Sstable(_) => vec![(Door::Members, self.listen().to_owned())],
            Self::PNode(config) => {
                vec![(Door::Grpc, config.grpc.clone()), (Door::Admin, config.admin_addr())]
            }
        };
        if let Self::PNode(config) = self {
            doors.extend(config.resp.clone().map(|resp| (Door::Resp, resp)));
        }
        doors.extend(self.http().map(|http| (Door::Http, http.to_owned())));
        doors
    }

    /// Where it keeps what must survive.
    pub fn directories(&self) -> Vec<PathBuf> {
        match self {
            Self::Memtable(config) => {
                let mut all = vec![config.data_dir.clone()];
                all.extend(config.devices());
                all
            }
            Self::Sstable(config) => vec![config.data_dir.clone()],
            Self::PNode(_) => Vec::new(),
        }
    }

    /// What its settings let it keep in memory; beside that it needs some for indexes, connections and itself.
    pub fn memory_bytes(&self) -> u64 {
        match self {
            Self::Memtable(config) => {
                let tuning = &config.tuning;
                let each = tuning.log_cache_bytes.saturating_add(tuning.grace_bytes);
                let partitions = u64::from(config.cluster.partitions);
                tuning.memory_bytes.saturating_add(each.saturating_mul(partitions))
            }
            Self::Sstable(config) => config.memory().total,
            Self::PNode(config) => {
                let messages = [config.large_bytes_max, config.reply_bytes_max, config.read_bytes_max];
                messages.into_iter().fold(config.cache_bytes, |sum, bytes| sum.saturating_add(bytes as u64))
            }
        }
    }
}

fn load<C: DeserializeOwned>(path: &Path, role: Role, variables: Variables) -> Result<C, String> {
    let loaded = match variables {
        Variables::Ignored => load_file(path, role.name()),
        Variables::Applied => load_role(path, role.name()),
    };
    loaded.map_err(|e: ConfigError| e.to_string())
}

/// As the file says, or else its name.
pub fn role_of_file(path: &Path) -> Result<Role, String> {
    let said = role_of(path).map_err(|e| e.to_string())?;
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let role = ROLES.into_iter().find(|role| match &said {
        Some(said) => said == role.name(),
        None => name.starts_with(role.name()),
    });
    role.ok_or_else(|| {
        let roles = "\"memtable\", \"sstable\" or \"pnode\" (a file that others name is checked with them)";
        format!("{}: whose? Add a line role = {roles}", path.display())
    })
}
