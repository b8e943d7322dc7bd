//! Where backups are kept: an object store. What is there, and what it is called: docs/formats/backup.md.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectStore, PutMode, WriteMultipart};
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_environment::Env;
use sextant_environment::vfs::OpenMode;

use crate::manifest::{self, Backup, File, check_name};

/// Files are sent in pieces of this size.
const PART_BYTES: usize = 8 * 1024 * 1024;
/// Pieces on their way at once.
const PARTS_AT_ONCE: usize = 2;

#[derive(Clone)]
pub struct Repository {
    pub(crate) env: Env,
    store: Arc<dyn ObjectStore>,
    /// A directory here: what is written is made durable.
    root: Option<PathBuf>,
}

/// An error of the store, as a caller knows errors.
pub(crate) fn error(e: object_store::Error) -> Error {
    let kind = match &e {
        object_store::Error::NotFound { .. } | object_store::Error::InvalidPath { .. } => ErrorKind::Invalid,
        object_store::Error::PermissionDenied { .. } => ErrorKind::Denied,
        object_store::Error::Unauthenticated { .. } => ErrorKind::Unauthenticated,
        _ => ErrorKind::Disk,
    };
    Error::new(kind, format!("repository: {e}"))
}

impl Repository {
    /// `url`: a directory, also as `file:///path`. It is made if it is not there.
    pub fn open(env: &Env, url: &str) -> Result<Self> {
        let path = match url.split_once("://") {
            Some(("file", path)) => path,
            Some((scheme, _)) => {
                return Err(Error::invalid(format!(
                    "{scheme}:// is no repository that this program knows: name a directory"
                )));
            }
            None => url,
        };
        let root = std::path::absolute(path).map_err(|e| Error::invalid(format!("{path}: {e}")))?;
        env.vfs.create_dir_all(&root)?;
        let store = LocalFileSystem::new_with_prefix(&root).map_err(error)?;
        Ok(Self { env: env.clone(), store: Arc::new(store), root: Some(root) })
    }

    /// In any store that `object_store` knows.
    pub fn over(env: &Env, store: Arc<dyn ObjectStore>) -> Self {
        Self { env: env.clone(), store, root: None }
    }

    fn manifest(name: &str) -> Path {
        Path::from(format!("backups/{name}/manifest"))
    }

    fn table(file: &File) -> Path {
        Path::from(format!("tables/{}", file.name()))
    }

    /// Names of all backups, sorted: of those with names as they are given by default, by time.
    pub async fn names(&self) -> Result<Vec<String>> {
        let found: Vec<_> = self.store.list(Some(&"backups".into())).try_collect().await.map_err(error)?;
        let name = |path: &Path| {
            let parts: Vec<String> = path.parts().map(|part| part.as_ref().to_owned()).collect();
            match &parts[..] {
                [_, name, last] if last == "manifest" => Some(name.clone()),
                _ => None,
            }
        };
        let mut names: Vec<String> = found.iter().filter_map(|object| name(&object.location)).collect();
        names.sort();
        Ok(names)
    }

    pub async fn backup(&self, name: &str) -> Result<Backup> {
        check_name(name)?;
        let read = self.store.get(&Self::manifest(name)).await;
        let read = read.map_err(|e| match e {
            object_store::Error::NotFound { .. } => Error::invalid(format!("there is no backup {name:?}")),
            e => error(e),
        })?;
        manifest::decode(name, &read.bytes().await.map_err(error)?)
    }

    /// The moment from which on the backup is there. Of two of one name the second is an error.
    pub async fn commit(&self, backup: &Backup) -> Result<()> {
        let (at, bytes) = (Self::manifest(&backup.name), Bytes::from(manifest::encode(backup)));
        match self.put(&at, bytes.clone(), PutMode::Create).await {
            Ok(()) => Ok(()),
            Err(object_store::Error::AlreadyExists { .. }) => {
                Err(Error::invalid(format!("there is a backup {:?} already", backup.name)))
            }
            // Some file systems have no links, by which a directory does that.
            Err(e) if self.root.is_some() && !self.names().await?.contains(&backup.name) => {
                tracing::warn!("the repository cannot tell whether a name is taken meanwhile: {e}");
                self.put(&at, bytes, PutMode::Overwrite).await.map_err(error)
            }
            Err(e) => Err(error(e)),
        }?;
        self.sync(&at)
    }

    pub async fn remove_backup(&self, name: &str) -> Result<()> {
        self.delete(&Self::manifest(name)).await
    }

    /// The names of the files of SSTables that are here, and their bytes.
    pub async fn tables(&self) -> Result<BTreeMap<String, u64>> {
        let found: Vec<_> = self.store.list(Some(&"tables".into())).try_collect().await.map_err(error)?;
        let named = found.iter().filter_map(|object| {
            let name = object.location.filename()?.to_owned();
            Some((name, object.size))
        });
        Ok(named.collect())
    }

    pub async fn remove_table(&self, name: &str) -> Result<()> {
        self.delete(&Path::from(format!("tables/{name}"))).await
    }

    /// A file of an SSTable that is to be written: it is there when it is [finished](Writing::finish), and not before.
    pub(crate) async fn write_table(&self, file: &File) -> Result<Writing> {
        let at = Self::table(file);
        let upload = self.store.put_multipart(&at).await.map_err(error)?;
        let to = WriteMultipart::new_with_chunk_size(upload, PART_BYTES);
        Ok(Writing { repository: self.clone(), at, to })
    }

    /// Its bytes, in order.
    pub(crate) async fn read_table(
        &self,
        file: &File,
    ) -> Result<futures::stream::BoxStream<'static, Result<Bytes>>> {
        let read = self.store.get(&Self::table(file)).await.map_err(error)?;
        Ok(read.into_stream().map_err(error).boxed())
    }

    /// What others in the repository have marked: name, and when (in milliseconds since 1970, by the store's clock).
    pub(crate) async fn marks(&self) -> Result<Vec<(String, u64)>> {
        let found: Vec<_> = self.store.list(Some(&"marks".into())).try_collect().await.map_err(error)?;
        let mark = |object: object_store::ObjectMeta| {
            let at = u64::try_from(object.last_modified.timestamp_millis()).unwrap_or(0);
            Some((object.location.filename()?.to_owned(), at))
        };
        Ok(found.into_iter().filter_map(mark).collect())
    }

    pub(crate) async fn mark(&self, name: &str) -> Result<()> {
        let at = Path::from(format!("marks/{name}"));
        self.put(&at, Bytes::from_static(b"\n"), PutMode::Overwrite).await.map_err(error)?;
        self.sync(&at)
    }

    pub(crate) async fn unmark(&self, name: &str) -> Result<()> {
        self.delete(&Path::from(format!("marks/{name}"))).await
    }

    async fn put(&self, at: &Path, bytes: Bytes, mode: PutMode) -> object_store::Result<()> {
        self.store.put_opts(at, bytes.into(), mode.into()).await.map(drop)
    }

    async fn delete(&self, at: &Path) -> Result<()> {
        match self.store.delete(at).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(e) => Err(error(e)),
        }
    }

    fn sync(&self, at: &Path) -> Result<()> {
        let Some(root) = &self.root else { return Ok(()) };
        let mut path = root.join(at.as_ref());
        self.env.vfs.open(&path, OpenMode::Existing)?.sync_data()?;
        while path.pop() && path.starts_with(root) {
            self.env.vfs.sync_dir(&path)?;
        }
        Ok(())
    }
}

pub(crate) struct Writing {
    repository: Repository,
    at: Path,
    to: WriteMultipart,
}

impl Writing {
    pub async fn write(&mut self, piece: &[u8]) -> Result<()> {
        self.to.wait_for_capacity(PARTS_AT_ONCE).await.map_err(error)?;
        self.to.write(piece);
        Ok(())
    }

    pub async fn finish(self) -> Result<()> {
        self.to.finish().await.map_err(error)?;
        self.repository.sync(&self.at)
    }

    pub async fn abort(self) {
        if let Err(e) = self.to.abort().await {
            tracing::debug!("an upload was not taken back: {e}");
        }
    }
}
