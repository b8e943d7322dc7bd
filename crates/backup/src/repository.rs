//! Where backups are kept: an object store. What is there, and what it is called: docs/formats/backup.md.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    GetOptions, GetRange, MultipartUpload, ObjectStore, ObjectStoreExt, PutMode, PutPayload, PutResult,
    UploadPart, WriteMultipart,
};
use parking_lot::Mutex;
use sextant_common::error::{Error, Result};
use sextant_environment::Env;
use sextant_environment::vfs::OpenMode;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::manifest::{self, Backup, File, check_name};
use crate::s3::bucket::{self, Access};
use crate::s3::refusal;

/// Files are sent in pieces of this size, those that are no larger in one.
const PART_BYTES: usize = 8 * 1024 * 1024;
/// Pieces on their way at once.
const PARTS_AT_ONCE: usize = 2;
/// How often a folder is listed before it is given up.
const LISTINGS_MAX: usize = 3;
/// Files are asked for in ranges of this size: each has its own attempts, so that a long one does not use them up.
const RANGE_BYTES: u64 = 32 * 1024 * 1024;

#[derive(Clone)]
pub struct Repository {
    pub(crate) env: Env,
    store: Arc<dyn ObjectStore>,
    /// A directory here: what is written is made durable.
    pub(crate) root: Option<PathBuf>,
    /// Putting the parts of files together, or taking them back, whether anybody waits for it or not.
    settling: Arc<Mutex<JoinSet<()>>>,
}

/// What a URL names.
enum Place<'u> {
    Directory(PathBuf),
    /// Of S3: bucket and prefix.
    Bucket(&'u str),
}

impl<'u> Place<'u> {
    fn of(url: &'u str) -> Result<Self> {
        let path = match url.split_once("://") {
            Some(("s3", location)) => return Ok(Self::Bucket(location)),
            Some(("file", path)) => path,
            Some((scheme, _)) => {
                return Err(Error::invalid(format!(
                    "{scheme}:// is no repository that this program knows: name a directory, or s3://BUCKET/PREFIX"
                )));
            }
            None => url,
        };
        let root = std::path::absolute(path).map_err(|e| Error::invalid(format!("{path}: {e}")))?;
        Ok(Self::Directory(root))
    }
}

fn error(e: object_store::Error) -> Error {
    refusal::error(&e)
}

impl Repository {
    /// `url`: a directory, also as `file:///path`, which is made if it is not there; or `s3://bucket/prefix`.
    pub fn open(env: &Env, url: &str) -> Result<Self> {
        Self::open_trusting(env, url, None)
    }

    /// The same; `store_ca`: a file with authorities (PEM) that count beside Mozilla's for who a store is.
    pub fn open_trusting(env: &Env, url: &str, store_ca: Option<&std::path::Path>) -> Result<Self> {
        match Place::of(url)? {
            Place::Bucket(location) => {
                Ok(Self::over(env, bucket::open(env, location, &Access::by_environment(store_ca))?))
            }
            Place::Directory(root) => {
                env.vfs.create_dir_all(&root)?;
                // (Else a name is there before its bytes are durable, and is believed for ever.)
                let store = LocalFileSystem::new_with_prefix(&root).map_err(error)?.with_fsync(true);
                Ok(Self { root: Some(root), ..Self::over(env, Arc::new(store)) })
            }
        }
    }

    /// The same for who wants what is there: a directory has to be there, and is not made.
    pub fn existing(env: &Env, url: &str, store_ca: Option<&std::path::Path>) -> Result<Self> {
        if let Place::Directory(root) = Place::of(url)?
            && let Err(e) = env.vfs.list(&root)
        {
            return Err(match e.kind() {
                ErrorKind::NotFound | ErrorKind::NotADirectory => {
                    Error::invalid(format!("there is no directory {}", root.display()))
                }
                _ => e.into(),
            });
        }
        Self::open_trusting(env, url, store_ca)
    }

    /// In any store that `object_store` knows.
    pub fn over(env: &Env, store: Arc<dyn ObjectStore>) -> Self {
        Self { env: env.clone(), store, root: None, settling: Arc::default() }
    }

    fn manifest(name: &str) -> Path {
        Path::from(format!("backups/{name}/manifest"))
    }

    fn table(file: &File) -> Path {
        Path::from(format!("tables/{}", file.name()))
    }

    /// Names of all backups, sorted: of those with names as they are given by default, by time.
    pub async fn names(&self) -> Result<Vec<String>> {
        let found = self.list("backups").await?;
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
        let backup = self.backup_if_there(name).await?;
        backup.ok_or_else(|| Error::invalid(format!("there is no backup {name:?}")))
    }

    /// None: there is none.
    pub(crate) async fn backup_if_there(&self, name: &str) -> Result<Option<Backup>> {
        check_name(name)?;
        match self.read(&Self::manifest(name)).await {
            Ok(read) => manifest::decode(name, &read).map(Some),
            Err(e @ object_store::Error::NotFound { .. }) if !refusal::is_no_bucket(&e) => Ok(None),
            Err(e) => Err(error(e)),
        }
    }

    /// The moment from which on the backup is there. Of two of one name the second is an error.
    pub async fn commit(&self, backup: &Backup) -> Result<()> {
        let (at, bytes) = (Self::manifest(&backup.name), Bytes::from(manifest::encode(backup)));
        if let Err(e) = self.put(&at, bytes.clone(), PutMode::Create).await {
            self.commit_anyway(backup, &at, bytes, e).await?;
        }
        self.sync(&at)
    }

    /// What failed may be there all the same: its answer was lost, and another attempt found what the first one had written.
    async fn commit_anyway(
        &self,
        backup: &Backup,
        at: &Path,
        bytes: Bytes,
        e: object_store::Error,
    ) -> Result<()> {
        match self.read(at).await {
            Ok(there) if there == bytes => Ok(()),
            Ok(_) => Err(Error::invalid(format!("there is a backup {:?} already", backup.name))),
            // Some file systems have no links, by which a directory tells whether a name is taken.
            Err(object_store::Error::NotFound { .. }) if self.root.is_some() => {
                tracing::warn!("the repository cannot tell whether a name is taken meanwhile: {e}");
                self.put(at, bytes, PutMode::Overwrite).await.map_err(error)
            }
            Err(_) => Err(error(e)),
        }
    }

    async fn read(&self, at: &Path) -> object_store::Result<Bytes> {
        self.store.get(at).await?.bytes().await
    }

    /// Into memory; one that is larger is not read.
    pub(crate) async fn read_at_most(&self, at: &Path, bytes_max: u64) -> Result<Bytes> {
        let found = self.store.get(at).await.map_err(error)?;
        let bytes = found.meta.size;
        if bytes > bytes_max {
            return Err(Error::corrupt(format!(
                "{at}: it has {bytes} bytes, and at most {bytes_max} are read"
            )));
        }
        found.bytes().await.map_err(error)
    }

    /// None: there is none.
    pub(crate) async fn read_if_there(&self, at: &Path) -> Result<Option<Bytes>> {
        match self.read(at).await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(e) => Err(error(e)),
        }
    }

    /// All at once: whoever reads it sees all of what was there before, or all of this.
    pub(crate) async fn replace(&self, at: &Path, bytes: Bytes) -> Result<()> {
        self.put(at, bytes, PutMode::Overwrite).await.map_err(error)?;
        self.sync(at)
    }

    pub async fn remove_backup(&self, name: &str) -> Result<()> {
        self.delete(&Self::manifest(name)).await
    }

    /// What is below a folder. A listing that breaks off is made again.
    pub(crate) async fn list(&self, folder: &str) -> Result<Vec<object_store::ObjectMeta>> {
        let folder = Path::from(folder);
        for _ in 1..LISTINGS_MAX {
            match self.store.list(Some(&folder)).try_collect().await {
                Ok(found) => return Ok(found),
                Err(e) => tracing::debug!("the repository is listed again: {e}"),
            }
        }
        self.store.list(Some(&folder)).try_collect().await.map_err(error)
    }

    /// The names of the folders in a folder.
    pub(crate) async fn folders(&self, folder: &str) -> Result<Vec<String>> {
        let found = self.store.list_with_delimiter(Some(&Path::from(folder))).await.map_err(error)?;
        Ok(found.common_prefixes.iter().filter_map(|path| Some(path.filename()?.to_owned())).collect())
    }

    /// The names of the files of SSTables that are here, and their bytes.
    pub async fn tables(&self) -> Result<BTreeMap<String, u64>> {
        let found = self.list("tables").await?;
        let named = found.iter().filter_map(|object| {
            let name = object.location.filename()?.to_owned();
            Some((name, object.size))
        });
        Ok(named.collect())
    }

    pub async fn remove_table(&self, name: &str) -> Result<()> {
        self.delete(&Path::from(format!("tables/{name}"))).await
    }

    /// It is not there any more, so the next backup that names it copies it again; its bytes are kept elsewhere. Where.
    pub(crate) async fn set_table_aside(&self, file: &File) -> Result<String> {
        let at = Self::table(file);
        let to = Path::from(format!("damaged/{}-{:016x}", file.name(), self.env.rng.next_u64()));
        self.store.rename(&at, &to).await.map_err(error)?;
        Ok(to.to_string())
    }

    /// A file of an SSTable that is to be written: it is there when it is [finished](Writing::finish), and not before.
    pub(crate) fn write_table(&self, file: &File) -> Writing {
        Writing {
            repository: self.clone(),
            at: Self::table(file),
            bytes: file.bytes,
            first: Vec::new(),
            parts: None,
        }
    }

    /// Returns when of no file whose [`Writing`] was dropped there are parts: it was put together by then, or they are taken back.
    pub(crate) async fn settle(&self) {
        let mut settling = std::mem::take(&mut *self.settling.lock());
        while settling.join_next().await.is_some() {}
    }

    fn settle_later(&self, runtime: &Handle, task: impl Future<Output = ()> + Send + 'static) {
        let mut settling = self.settling.lock();
        while settling.try_join_next().is_some() {}
        settling.spawn_on(task, runtime);
    }

    /// Its bytes, in order. A connection that breaks off is made again, and the rest asked for.
    pub(crate) async fn read_table(&self, file: &File) -> Result<BoxStream<'static, Result<Bytes>>> {
        let (store, at, bytes) = (self.store.clone(), Self::table(file), file.bytes);
        let starts = (0..bytes).step_by(RANGE_BYTES as usize);
        let ranges = starts.map(move |start| start..bytes.min(start + RANGE_BYTES));
        let pieces = futures::stream::iter(ranges)
            .then(move |range| read_range(store.clone(), at.clone(), range, bytes))
            .try_flatten();
        Ok(pieces.boxed())
    }

    /// What others in the repository have marked: name, and when (in milliseconds since 1970, by the store's clock).
    pub(crate) async fn marks(&self) -> Result<Vec<(String, u64)>> {
        let found = self.list("marks").await?;
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

    pub(crate) async fn delete(&self, at: &Path) -> Result<()> {
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

/// Of a file that has so many bytes.
async fn read_range(
    store: Arc<dyn ObjectStore>,
    at: Path,
    range: Range<u64>,
    bytes: u64,
) -> Result<BoxStream<'static, Result<Bytes>>> {
    let options = GetOptions { range: Some(GetRange::Bounded(range)), ..GetOptions::default() };
    let read = store.get_opts(&at, options).await.map_err(error)?;
    let there = read.meta.size;
    if there != bytes {
        return Err(Error::corrupt(format!("{at}: it has {there} bytes instead of {bytes}")));
    }
    Ok(read.into_stream().map_err(error).boxed())
}

/// Whoever drops one that is not finished [lets it settle](Repository::settle).
pub(crate) struct Writing {
    repository: Repository,
    at: Path,
    bytes: u64,
    /// Until it is more than a part.
    first: Vec<u8>,
    parts: Option<WriteMultipart>,
}

impl Writing {
    pub async fn write(&mut self, piece: &[u8]) -> Result<()> {
        if let Some(parts) = &mut self.parts {
            parts.wait_for_capacity(PARTS_AT_ONCE).await.map_err(error)?;
            parts.write(piece);
            return Ok(());
        }
        self.first.extend_from_slice(piece);
        if self.first.len() > PART_BYTES {
            let upload = self.repository.store.put_multipart(&self.at).await.map_err(error)?;
            let upload = Box::new(Upload { upload, is_incomplete: false });
            let mut parts = WriteMultipart::new_with_chunk_size(upload, PART_BYTES);
            parts.put(std::mem::take(&mut self.first).into());
            self.parts = Some(parts);
        }
        Ok(())
    }

    /// If it fails, its parts are taken back. Dropped meanwhile it goes on, as it could not be taken back any more.
    pub async fn finish(mut self) -> Result<()> {
        match self.parts.take() {
            Some(parts) => {
                if let Err(e) = self.put_together(parts).await? {
                    self.is_there().await.then_some(()).ok_or_else(|| error(e))?;
                }
            }
            None => {
                let bytes = std::mem::take(&mut self.first).into();
                self.repository.put(&self.at, bytes, PutMode::Overwrite).await.map_err(error)?;
            }
        }
        self.repository.sync(&self.at)
    }

    async fn put_together(&self, parts: WriteMultipart) -> Result<object_store::Result<()>> {
        let (done, finished) = oneshot::channel();
        let finish = async move { drop(done.send(parts.finish().await.map(drop))) };
        self.repository.settle_later(&Handle::current(), finish);
        finished.await.map_err(|_| Error::internal(format!("{}: nobody puts its parts together", self.at)))
    }

    /// Whether it was put together although that seemed to fail: an answer was lost, and another attempt found no parts any more.
    /// (A name stands for its content, and this size was not there before.)
    async fn is_there(&self) -> bool {
        self.repository.root.is_none()
            && read_range(self.repository.store.clone(), self.at.clone(), 0..1, self.bytes).await.is_ok()
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        let (Some(parts), Ok(runtime)) = (self.parts.take(), Handle::try_current()) else { return };
        let at = self.at.clone();
        let abort = async move {
            if let Err(e) = parts.abort().await {
                tracing::warn!("parts of {at} are left in the repository: {}", error(e));
            }
        };
        self.repository.settle_later(&runtime, abort);
    }
}

/// Whoever cannot put it together is told why, and not that it cannot be taken back any more either.
#[derive(Debug)]
struct Upload {
    upload: Box<dyn MultipartUpload>,
    is_incomplete: bool,
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, part: PutPayload) -> UploadPart {
        self.upload.put_part(part)
    }

    async fn complete(&mut self) -> object_store::Result<PutResult> {
        let completed = self.upload.complete().await;
        self.is_incomplete = completed.is_err();
        completed
    }

    async fn abort(&mut self) -> object_store::Result<()> {
        match self.upload.abort().await {
            Err(e) if self.is_incomplete => {
                tracing::warn!("what was to be put together is left in the repository: {}", error(e));
                Ok(())
            }
            aborted => aborted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_directory_has_by_name_is_durable() {
        let dir = tempfile::tempdir().unwrap();
        let repository = Repository::open(&Env::real(), dir.path().to_str().unwrap()).unwrap();
        let store = format!("{:?}", repository.store);
        assert!(store.contains("fsync: true"), "{store}");
    }

    #[tokio::test]
    async fn who_cannot_put_a_file_together_is_told_why() {
        let dir = tempfile::tempdir().unwrap();
        let repository = Repository::open(&Env::real(), dir.path().to_str().unwrap()).unwrap();
        let bytes = PART_BYTES + 1;
        let file = File { id: crate::testing::sst(1).id, checksum: 1, bytes: bytes as u64 };
        // A folder where the file is to be.
        std::fs::create_dir_all(dir.path().join("tables").join(file.name())).unwrap();
        let mut writing = repository.write_table(&file);
        writing.write(&vec![0; bytes]).await.unwrap();
        let error = writing.finish().await.unwrap_err();
        assert!(error.message.contains("s a directory"), "{error}");
    }

    #[test]
    fn who_looks_for_a_repository_makes_no_directory() {
        let dir = tempfile::tempdir().unwrap();
        let (missing, file) = (dir.path().join("a/b"), dir.path().join("file"));
        std::fs::write(&file, "").unwrap();
        for path in [&missing, &file] {
            for url in [path.display().to_string(), format!("file://{}", path.display())] {
                let error = Repository::existing(&Env::real(), &url, None).map(drop).unwrap_err();
                assert_eq!(error.kind, sextant_common::error::ErrorKind::Invalid);
                assert_eq!(error.message, format!("there is no directory {}", path.display()));
            }
        }
        assert!(!dir.path().join("a").exists());
        Repository::open(&Env::real(), missing.to_str().unwrap()).unwrap();
        Repository::existing(&Env::real(), missing.to_str().unwrap(), None).unwrap();
    }
}
