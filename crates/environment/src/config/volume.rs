//! Whose volume a server has: directories are named after servers, so that another server's volume looks like an empty one.

use std::path::{Path, PathBuf};

use sextant_common::error::{Error, ErrorKind};
use sextant_common::ids::NodeId;

use super::{Server, host_port};
use crate::vfs::Vfs;

/// Says so when beside an empty `data_dir` another server's data are (`marker`: a file that they have), if that one runs on another
/// host. Servers of several addresses may share a disk, so it is no error; and a server without its data knows what it may do.
pub fn foreign_volume(
    vfs: &dyn Vfs,
    tier: &str,
    servers: &[Server],
    own: NodeId,
    data_dir: &Path,
    marker: &str,
) -> Option<String> {
    let (other, dir) = elsewhere(servers, own, data_dir).find(|(_, dir)| vfs.exists(&dir.join(marker)))?;
    Some(format!(
        "{} is empty, and beside it, in {}, are the data of {tier} server {other}, which runs on another host: is this that server's \
         volume?",
        data_dir.display(),
        dir.display()
    ))
}

/// Where those that run on other hosts would have their data, if this volume were theirs.
fn elsewhere(servers: &[Server], own: NodeId, data_dir: &Path) -> impl Iterator<Item = (NodeId, PathBuf)> {
    let host = |id: NodeId| {
        let server = servers.iter().find(|server| server.id == id)?;
        Some(host_port(&server.addr)?.0.to_owned())
    };
    let name = data_dir.file_name().and_then(|name| name.to_str());
    let stem = name.and_then(|name| name.strip_suffix(&own.to_string())).unwrap_or_default();
    let others = servers.iter().map(|server| server.id).filter(move |id| host(*id) != host(own));
    others
        .filter(move |_| !stem.is_empty())
        .map(move |id| (id, data_dir.with_file_name(format!("{stem}{id}"))))
}

/// Why a server cannot use the directory that it is to keep its data in. (It may be mounted later: that is no mistake of the
/// configuration.)
pub fn unusable(dir: &Path, e: std::io::Error) -> Error {
    use std::io::ErrorKind::{AlreadyExists, NotADirectory, PermissionDenied};
    match e.kind() {
        PermissionDenied | NotADirectory | AlreadyExists => Error::new(
            ErrorKind::Disk,
            format!("data directory {}: this process cannot make or write it: {e}", dir.display()),
        ),
        _ => e.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs::RealVfs;

    #[test]
    fn the_volume_of_a_server_on_another_host_is_named_and_a_neighbour_on_this_host_is_none() {
        let volume = tempfile::tempdir().unwrap();
        std::fs::create_dir(volume.path().join("memtable-2")).unwrap();
        std::fs::write(volume.path().join("memtable-2/INCARNATION"), b"").unwrap();
        let server = |id: u64, addr: &str| Server::new(id, addr);
        let hosts = [server(1, "a:7201"), server(2, "b:7201")];
        let one_host = [server(1, "a:7201"), server(2, "a:7202")];
        let said = |servers: &[Server], dir: &str| {
            let dir = volume.path().join(dir);
            foreign_volume(&RealVfs, "memtable", servers, NodeId(1), &dir, "INCARNATION")
        };
        let foreign = said(&hosts, "memtable-1").unwrap();
        assert!(foreign.contains("data of memtable server 2"), "{foreign}");
        let nothing =
            [(&one_host[..], "memtable-1"), (&hosts, "data"), (&hosts, "1"), (&hosts[..1], "memtable-1")];
        for (servers, dir) in nothing {
            assert_eq!(said(servers, dir), None, "{dir}");
        }
    }
}
