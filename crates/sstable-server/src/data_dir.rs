//! The data directory: whose it is, who holds it, and where its files are.
//!
//! Files: `IDENTITY` (JSON: format version, tier, cluster, node, partitions; `filling` until a directory that was made has had what is to
//! be in it, see [`crate::settling`]), `LOCK`, `FENCES` (`catalog/fences.rs`), one `<SstId>.sst` a table, and `*.tmp` while a table
//! is being written, or of one that was deleted, until its bytes are; those are removed at start. All calls block.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::ids::{NodeId, SstId};
use sextant_environment::config::unusable;
use sextant_environment::vfs::{OpenMode, Vfs, VfsFile, read_file, write_file_atomically};

/// Version of the directory's layout.
const FORMAT: u32 = 1;
const TIER: &str = "sstable";
pub const IDENTITY_FILE: &str = "IDENTITY";
const LOCK_FILE: &str = "LOCK";
const FENCES_FILE: &str = "FENCES";
/// A file that its directories have.
const OF_A_MEMTABLE_SERVER: &str = "INCARNATION";
const TABLE_EXTENSION: &str = "sst";
const TEMPORARY_EXTENSION: &str = "tmp";

/// Whose directory it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    format: u32,
    tier: String,
    cluster: String,
    node: NodeId,
    /// How many the cluster has. None: written by a version that did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    partitions: Option<u32>,
    /// It was made, and has not had yet what is to be in it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    filling: bool,
}

/// What every version says of a file, whatever else it says.
#[derive(Deserialize)]
struct Stated {
    format: u32,
}

/// `Outdated` if the file is of a newer format than this version reads: it is not damaged, so nobody may be told to remove it.
pub fn check_format(file: &str, text: &[u8], newest: u32) -> Result<()> {
    match serde_json::from_slice(text) {
        Ok(Stated { format }) if format > newest => Err(Error::new(
            ErrorKind::Outdated,
            format!(
                "{file} has format {format}, this server reads up to {newest}: start the newer version again (its data are as they \
                 were)"
            ),
        )),
        _ => Ok(()),
    }
}

/// What became of a table's file.
#[derive(Debug, PartialEq, Eq)]
pub enum Taken {
    /// There was none.
    Nothing,
    /// It is there under another name, of no table.
    Aside(PathBuf),
    Gone,
}

/// An open data directory: nobody else has it until it is dropped or [`DataDir::release`]d.
pub struct DataDir {
    vfs: Arc<dyn Vfs>,
    dir: PathBuf,
    lock: Mutex<Option<Box<dyn Send + Sync>>>,
    temporaries: AtomicU64,
    identity: Mutex<Identity>,
}

impl std::fmt::Debug for DataDir {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DataDir({})", self.dir.display())
    }
}

impl DataDir {
    /// Opens the directory of a node, or makes it if it does not exist. A directory of another cluster, node, tier or
    /// format is refused; one of a newer format is `Outdated`.
    pub fn open(vfs: Arc<dyn Vfs>, dir: &Path, cluster: &str, partitions: u32, node: NodeId) -> Result<Self> {
        vfs.create_dir_all(dir).map_err(|e| unusable(dir, e))?;
        let lock = vfs.lock(&dir.join(LOCK_FILE)).map_err(|e| match e.kind() {
            std::io::ErrorKind::WouldBlock => Error::new(
                ErrorKind::Disk,
                format!("data directory {} is in use by another process", dir.display()),
            ),
            _ => unusable(dir, e),
        })?;
        let expected = Identity {
            format: FORMAT,
            tier: TIER.into(),
            cluster: cluster.into(),
            node,
            partitions: Some(partitions),
            filling: false,
        };
        let identity = Mutex::new(check_identity(&*vfs, dir, expected)?);
        let files = vfs.list(dir)?;
        let stale: Vec<_> = files.iter().filter(|p| has_extension(p, TEMPORARY_EXTENSION)).collect();
        for path in &stale {
            is_there(vfs.remove_file(path))?;
        }
        if !stale.is_empty() {
            tracing::info!("removed {} files of incomplete and of deleted tables", stale.len());
            vfs.sync_dir(dir)?;
        }
        let (dir, lock) = (dir.to_owned(), Mutex::new(Some(lock)));
        Ok(Self { vfs, dir, lock, temporaries: AtomicU64::new(0), identity })
    }

    /// Whether it was made, by this start or one before, and has not been [`filled`](Self::filled) since.
    pub fn is_filling(&self) -> bool {
        self.identity.lock().filling
    }

    /// It has had what is to be in it, durably.
    pub fn filled(&self) -> Result<()> {
        let mut identity = self.identity.lock();
        if identity.filling {
            let filled = Identity { filling: false, ..identity.clone() };
            write_identity(&*self.vfs, &self.dir.join(IDENTITY_FILE), &filled)?;
            *identity = filled;
        }
        Ok(())
    }

    /// The tables that have a file.
    pub fn tables(&self) -> Result<Vec<SstId>> {
        let mut ids = Vec::new();
        for path in self.vfs.list(&self.dir)? {
            if !has_extension(&path, TABLE_EXTENSION) {
                continue;
            }
            match path.file_stem().and_then(|s| s.to_str()).and_then(|s| s.parse().ok()) {
                Some(id) => ids.push(id),
                None => tracing::warn!("{} is not named like a table: left alone", path.display()),
            }
        }
        Ok(ids)
    }

    pub fn open_table(&self, id: SstId) -> Result<Arc<dyn VfsFile>> {
        Ok(self.vfs.open(&self.path(id), OpenMode::Existing)?)
    }

    pub fn has_table(&self, id: SstId) -> bool {
        self.vfs.exists(&self.path(id))
    }

    /// Whether the disk takes and keeps anything, or says that it is full.
    pub fn answers(&self, id: SstId) -> std::io::Result<()> {
        let path = self.temporary_path(id);
        let tried = self.vfs.open(&path, OpenMode::CreateNew).and_then(|file| {
            let written = file.write_all_at(&[0], 0).and_then(|()| file.sync_data());
            let removed = self.vfs.remove_file(&path);
            written.and(removed)
        });
        match tried {
            Err(e)
                if matches!(
                    e.kind(),
                    std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded
                ) =>
            {
                Ok(())
            }
            tried => tried,
        }
    }

    /// A new empty file for a table that is about to be written.
    pub fn create_temporary(&self, id: SstId) -> Result<Temporary> {
        let path = self.temporary_path(id);
        let file = self.vfs.open(&path, OpenMode::CreateNew)?;
        Ok(Temporary { vfs: self.vfs.clone(), path, file, id, kept: false })
    }

    /// Gives a complete, synced file the name of its table. Durable after [`DataDir::sync`].
    pub fn publish(&self, mut temporary: Temporary) -> Result<()> {
        self.vfs.rename(&temporary.path, &self.path(temporary.id))?;
        temporary.kept = true;
        Ok(())
    }

    /// Removes a table's file; false if there was none. Durable after [`DataDir::sync`].
    pub fn remove_table(&self, id: SstId) -> Result<bool> {
        is_there(self.vfs.remove_file(&self.path(id)))
    }

    /// The same, but its bytes stay until they are [`erase`](DataDir::erase)d, or the directory is opened again.
    pub fn take_table(&self, id: SstId) -> Result<Taken> {
        let path = self.temporary_path(id);
        match is_there(self.vfs.rename(&self.path(id), &path)) {
            Ok(true) => Ok(Taken::Aside(path)),
            Ok(false) => Ok(Taken::Nothing),
            // A full disk may have no room for another name: what is on it is to be deleted all the same.
            Err(_) => Ok(if self.remove_table(id)? { Taken::Gone } else { Taken::Nothing }),
        }
    }

    pub fn erase(&self, taken: &Path) -> Result<()> {
        is_there(self.vfs.remove_file(taken)).map(drop)
    }

    /// None: there is no such file.
    pub fn read_fences(&self) -> Result<Option<Vec<u8>>> {
        let path = self.dir.join(FENCES_FILE);
        Ok(self.vfs.exists(&path).then(|| read_file(&*self.vfs, &path)).transpose()?)
    }

    /// Durable when it returns. One at a time.
    pub fn write_fences(&self, contents: &[u8]) -> Result<()> {
        Ok(write_file_atomically(&*self.vfs, &self.dir.join(FENCES_FILE), contents)?)
    }

    pub fn sync(&self) -> Result<()> {
        Ok(self.vfs.sync_dir(&self.dir)?)
    }

    /// Lets another process (or a restarted server in this one) have the directory.
    pub fn release(&self) {
        *self.lock.lock() = None;
    }

    fn temporary_path(&self, id: SstId) -> PathBuf {
        let number = self.temporaries.fetch_add(1, Ordering::Relaxed);
        self.dir.join(format!("{id}.{number}.{TEMPORARY_EXTENSION}"))
    }

    fn path(&self, id: SstId) -> PathBuf {
        self.dir.join(format!("{id}.{TABLE_EXTENSION}"))
    }
}

fn is_there(done: std::io::Result<()>) -> Result<bool> {
    match done {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e.into()),
    }
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|e| e == extension)
}

/// What the file says; it is written if there is none.
fn check_identity(vfs: &dyn Vfs, dir: &Path, expected: Identity) -> Result<Identity> {
    let path = dir.join(IDENTITY_FILE);
    let refuse = |what: String| Err(Error::invalid(format!("data directory {}: {what}", dir.display())));
    if !vfs.exists(&path) {
        if vfs.exists(&dir.join(OF_A_MEMTABLE_SERVER)) {
            return refuse("it is a memtable server's: not touched".into());
        }
        if vfs.list(dir)?.iter().any(|p| has_extension(p, TABLE_EXTENSION)) {
            return refuse(format!("it has tables but no {IDENTITY_FILE}: not touched"));
        }
        let made = Identity { filling: true, ..expected };
        write_identity(vfs, &path, &made)?;
        return Ok(made);
    }
    let text = read_file(vfs, &path)?;
    check_format(&path.display().to_string(), &text, FORMAT)?;
    let found: Identity = match serde_json::from_slice(&text) {
        Ok(found) => found,
        Err(e) => return refuse(format!("{IDENTITY_FILE} cannot be read: {e}")),
    };
    if found.format != expected.format {
        return refuse(format!("it has format {}, this program knows format {FORMAT}", found.format));
    }
    if (&found.tier, &found.cluster, found.node) != (&expected.tier, &expected.cluster, expected.node) {
        return refuse(format!(
            "it belongs to {} server {} of cluster {:?}, not to {TIER} server {} of cluster {:?}",
            found.tier, found.node, found.cluster, expected.node, expected.cluster
        ));
    }
    match (found.partitions, expected.partitions) {
        (Some(found), Some(configured)) if found != configured => refuse(format!(
            "it is of a cluster with {found} partitions, but cluster.partitions is {configured}: the number is fixed when a \
             cluster is first started"
        )),
        (Some(_), _) => Ok(found),
        (None, _) => {
            let named = Identity { filling: found.filling, ..expected };
            write_identity(vfs, &path, &named)?;
            Ok(named)
        }
    }
}

fn write_identity(vfs: &dyn Vfs, path: &Path, identity: &Identity) -> Result<()> {
    let text = serde_json::to_string(identity).map_err(|e| Error::internal(e.to_string()))?;
    Ok(write_file_atomically(vfs, path, text.as_bytes())?)
}

/// A file that becomes a table or, if this is dropped before, vanishes.
pub struct Temporary {
    vfs: Arc<dyn Vfs>,
    path: PathBuf,
    file: Arc<dyn VfsFile>,
    id: SstId,
    kept: bool,
}

impl Temporary {
    pub fn file(&self) -> &Arc<dyn VfsFile> {
        &self.file
    }

    pub fn id(&self) -> SstId {
        self.id
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.kept
            && let Err(e) = self.vfs.remove_file(&self.path)
        {
            // It is removed when the server starts again.
            tracing::warn!("cannot remove {}: {e}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use sextant_simulated::FaultyVfs;

    use super::*;
    use crate::testing::sst_id;

    fn open(vfs: &FaultyVfs, cluster: &str, node: u64) -> Result<DataDir> {
        DataDir::open(Arc::new(vfs.clone()), Path::new("/data"), cluster, 4, NodeId(node))
    }

    #[test]
    fn a_foreign_directory_is_refused_and_says_whose_it_is() {
        let vfs = FaultyVfs::new(1);
        drop(open(&vfs, "a", 1).unwrap());
        drop(open(&vfs, "a", 1).unwrap());
        for (cluster, node) in [("b", 1), ("a", 2)] {
            let error = open(&vfs, cluster, node).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Invalid);
            assert!(error.message.contains("server 1 of cluster \"a\""), "{error}");
        }
    }

    #[test]
    fn the_number_of_partitions_is_fixed_when_a_directory_is_first_used() {
        let vfs = FaultyVfs::new(1);
        let open_with =
            |partitions| DataDir::open(Arc::new(vfs.clone()), Path::new("/data"), "a", partitions, NodeId(1));
        let path = Path::new("/data/IDENTITY");
        // As a version wrote it that did not say.
        vfs.create_dir_all(Path::new("/data")).unwrap();
        let old = r#"{"format":1,"tier":"sstable","cluster":"a","node":1}"#;
        write_file_atomically(&vfs, path, old.as_bytes()).unwrap();
        drop(open_with(4).unwrap());
        for other in [3, 5] {
            let error = open_with(other).unwrap_err();
            assert!(error.message.contains("a cluster with 4 partitions"), "{error}");
        }
        drop(open_with(4).unwrap());
    }

    #[test]
    fn a_directory_of_a_newer_version_is_not_taken_for_a_wrong_one() {
        let vfs = FaultyVfs::new(1);
        vfs.create_dir_all(Path::new("/data")).unwrap();
        let path = Path::new("/data/IDENTITY");
        // Whatever else the newer version says.
        for (text, kind) in [
            (r#"{"format":2,"tier":"sstable","cluster":"a","node":1}"#, ErrorKind::Outdated),
            (r#"{"format":3,"owner":{"cluster":"a","node":1}}"#, ErrorKind::Outdated),
            (r#"{"format":0,"tier":"sstable","cluster":"a","node":1}"#, ErrorKind::Invalid),
            ("{", ErrorKind::Invalid),
        ] {
            write_file_atomically(&vfs, path, text.as_bytes()).unwrap();
            let error = open(&vfs, "a", 1).unwrap_err();
            assert!(error.kind == kind && error.message.contains("/data"), "{text}: {error}");
        }
    }

    #[test]
    fn the_directory_of_a_memtable_server_is_refused() {
        let vfs = FaultyVfs::new(1);
        vfs.create_dir_all(Path::new("/data")).unwrap();
        vfs.open(Path::new("/data/INCARNATION"), OpenMode::CreateNew).unwrap();
        assert!(open(&vfs, "a", 1).unwrap_err().message.contains("memtable server's"));
    }

    #[test]
    fn a_directory_has_one_user_at_a_time() {
        let vfs = FaultyVfs::new(1);
        let first = open(&vfs, "a", 1).unwrap();
        assert!(open(&vfs, "a", 1).unwrap_err().message.contains("in use"));
        first.release();
        open(&vfs, "a", 1).unwrap();
    }

    #[test]
    fn temporary_files_vanish_when_dropped_and_at_start() {
        let vfs = FaultyVfs::new(1);
        let dir = open(&vfs, "a", 1).unwrap();
        drop(dir.create_temporary(sst_id(1)).unwrap());
        let left = dir.create_temporary(sst_id(1)).unwrap();
        let kept = dir.create_temporary(sst_id(2)).unwrap();
        dir.publish(kept).unwrap();
        std::mem::forget(left);
        vfs.kill();
        let dir = open(&vfs, "a", 1).unwrap();
        assert_eq!(dir.tables().unwrap(), [sst_id(2)]);
        assert_eq!(vfs.list(Path::new("/data")).unwrap().len(), 3, "IDENTITY, LOCK and one table");
        assert!(dir.remove_table(sst_id(2)).unwrap());
        assert!(!dir.remove_table(sst_id(2)).unwrap());
    }

    #[test]
    fn tables_without_an_identity_are_not_touched() {
        let vfs = FaultyVfs::new(1);
        vfs.create_dir_all(Path::new("/data")).unwrap();
        let path = PathBuf::from(format!("/data/{}.sst", sst_id(1)));
        vfs.open(&path, OpenMode::CreateNew).unwrap();
        assert!(open(&vfs, "a", 1).unwrap_err().message.contains("no IDENTITY"));
    }
}
