//! The file that names a cluster: what an embedded p-node joins, and whose metrics are read.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use sextant_common::error::{Error, Result};
use sextant_environment::config::ClusterConfig;

/// A file with a `[cluster]` section: `cluster.toml` of a dev cluster, or the configuration of any server. Other sections
/// are of no interest here.
#[derive(Clone, Debug, Deserialize)]
pub struct ClusterFile {
    pub cluster: ClusterConfig,
}

impl ClusterFile {
    pub fn read(path: &Path) -> Result<Self> {
        let bad = |what: &dyn std::fmt::Display| Error::invalid(format!("{}: {what}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|e| bad(&e))?;
        let file: ClusterFile = toml::from_str(&text).map_err(|e| bad(&e.message()))?;
        file.cluster.validate().map_err(|e| bad(&e))?;
        Ok(file)
    }
}

/// One running server of a dev cluster.
#[derive(Clone, Debug, Deserialize)]
pub struct RunningServer {
    pub http: String,
    pub pid: u32,
}

/// What a dev cluster that is running says of itself: the line that it prints with `--json`, kept as `ready.json` beside
/// `cluster.toml`.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Running {
    #[serde(default)]
    pub pnodes: Vec<RunningServer>,
    #[serde(default)]
    pub memtable: Vec<RunningServer>,
    #[serde(default)]
    pub sstable: Vec<RunningServer>,
}

impl Running {
    /// `None` if there is no such file beside `cluster_file`, or it says something else.
    pub fn beside(cluster_file: &Path) -> Option<Self> {
        let path: PathBuf = cluster_file.with_file_name("ready.json");
        serde_json::from_str(&std::fs::read_to_string(path).ok()?).ok()
    }

    pub fn servers(&self) -> impl Iterator<Item = &RunningServer> {
        self.pnodes.iter().chain(&self.memtable).chain(&self.sstable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ready_line_of_a_dev_cluster_is_understood() {
        let line = r#"{"ready":true,
            "pnodes":[{"id":1,"grpc":"127.0.0.1:7400","resp":"127.0.0.1:6380","http":"127.0.0.1:7480","pid":10}],
            "memtable":[{"id":1,"addr":"127.0.0.1:20000","http":"127.0.0.1:7482","pid":11}],"sstable":[]}"#;
        let running: Running = serde_json::from_str(line).unwrap();
        let pids: Vec<_> = running.servers().map(|s| s.pid).collect();
        assert_eq!(pids, [10, 11]);
    }
}
