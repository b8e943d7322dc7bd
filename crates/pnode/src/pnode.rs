//! The library's face, and the whole of a p-node: [`PNode`] owns the parts, and nobody below it knows them all.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use sextant_common::ids::{ManifestVersion, PartitionId, TableId};
use sextant_common::manifest::{ManifestDigest, OptionsChange, TableInfo, TableOptions};
use sextant_common::operation::{Lane, Operation, Put, ReadMode, Record, WriteOutcome};
use sextant_common::{Error, Result};
use sextant_environment::Env;
use sextant_environment::shutdown::{self, ShutdownTrigger};

use crate::api::{ReadOptions, ScanRange, ScanStream, WriteOptions};
use crate::config::LibraryConfig;
use crate::core::Core;
use crate::filter_copies::Copies;
use crate::metrics::PNodeMetrics;
use crate::record_cache::RecordCache;
use crate::router::{Look, Missed, Reader, SstSearch, pinned_partition};
use crate::snapshots::Snapshots;
use crate::tables::Tables;
use crate::upstream::LargeReads;
use crate::write::{BlindWrites, Writer};

/// For dropping or altering a table: partitions flush, and wait for leases.
const CHANGE_LIMIT: Duration = Duration::from_secs(120);
/// How long a server may take for the release of leases: they end by themselves.
const RELEASE_MAX: Duration = Duration::from_millis(300);

/// A p-node inside an application. Cheap to clone; its background work ends with the last clone or with
/// [`PNode::shutdown`].
#[derive(Clone)]
pub struct PNode {
    parts: Arc<Parts>,
}

/// Each knows only those before it.
struct Parts {
    core: Arc<Core>,
    tables: Arc<Tables>,
    snapshots: Arc<Snapshots>,
    reader: Reader,
    writer: Arc<Writer>,
    /// Ends what the copies run.
    shutdown: ShutdownTrigger,
}

impl PNode {
    /// Starts pulling filters and leases. Does not wait for any server: see [`PNode::ready`].
    pub fn start(env: Env, config: LibraryConfig) -> BoxFuture<'static, Result<PNode>> {
        Box::pin(async move {
            config.validate()?;
            let (trigger, shutdown) = shutdown::channel();
            let core = Arc::new(Core::new(env, config));
            let copies = Arc::new(Copies::start(&core, shutdown));
            let tables = Arc::new(Tables::new(&core, &copies));
            let cache = Arc::new(RecordCache::new(core.config.cache_bytes, core.metrics.clone()));
            let large_reads = Arc::new(LargeReads::new(core.config.read_bytes_max));
            let search = SstSearch::new(&core, &large_reads);
            let writer = Arc::new(Writer::new(&core, &copies, &tables, search.clone(), cache.clone()));
            let snapshots = Arc::new(Snapshots::new(&core));
            let reader = Reader::new(&core, &copies, &tables, search, cache, large_reads, &snapshots);
            let shutdown = trigger;
            Ok(PNode { parts: Arc::new(Parts { core, tables, snapshots, reader, writer, shutdown }) })
        })
    }

    /// Returns when a leader and a manifest are known for every partition, so that routing works.
    pub fn ready(&self, deadline: Duration) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let core = self.core();
            let mut leaders = core.leaders.watch_all();
            let mut manifests = core.views.watch_manifests();
            let known = async {
                while let Err(e) = self.check_ready() {
                    core.check_running()?;
                    tokio::select! {
                        _ = leaders.changed() => {}
                        _ = manifests.changed() => {}
                        () = tokio::time::sleep(Duration::from_millis(20)) => tracing::trace!("not ready: {e}"),
                    }
                }
                Ok(())
            };
            match tokio::time::timeout(deadline, known).await {
                Ok(result) => result,
                Err(_) => self.check_ready(),
            }
        })
    }

    /// Whether routing works now; else which partition it does not work for.
    pub fn check_ready(&self) -> Result<()> {
        let core = self.core();
        core.check_running()?;
        for partition in core.views.partitions() {
            if core.leaders.get(partition).node.is_none() {
                let why = core.refusals.shown().map(|why| format!(": {why}")).unwrap_or_default();
                return Err(Error::unavailable(format!("no leader of partition {partition} is known{why}")));
            }
            if !core.views.peek(partition).manifest_known {
                return Err(Error::unavailable(format!("no manifest of partition {partition} is known")));
            }
        }
        Ok(())
    }

    /// The fast path of a pda read: what [`PNode::get`] would answer, if it is known without waiting. None: use `get`, which looks
    /// again.
    #[inline]
    pub fn try_get(&self, table: &str, key: &[u8]) -> Option<Result<Option<Record>>> {
        match self.look(table, key) {
            Look::Known(answer) => Some(Ok(answer)),
            Look::Missed(_) => None,
        }
    }

    /// As [`PNode::try_get`]; what was not at hand is for [`PNode::get_after`].
    #[inline]
    pub(crate) fn look(&self, table: &str, key: &[u8]) -> Look {
        self.parts.reader.look(table, key)
    }

    /// Reads the newest version of a record; None: there is none. Linearizable in every mode. `table`: "" or "default" is
    /// the default table.
    pub fn get<'a>(
        &'a self,
        table: &'a str,
        key: &'a [u8],
        options: ReadOptions,
    ) -> BoxFuture<'a, Result<Option<Record>>> {
        Box::pin(async move {
            let missed = match options.mode {
                ReadMode::Pda => match self.look(table, key) {
                    Look::Known(answer) => return Ok(known(answer).await),
                    Look::Missed(missed) => missed,
                },
                _ => Missed::default(),
            };
            self.get_after(missed, table, Bytes::copy_from_slice(key), options).await
        })
    }

    /// [`PNode::get`] with a key that is not copied.
    pub async fn get_bytes(&self, table: &str, key: Bytes, options: ReadOptions) -> Result<Option<Record>> {
        let missed = match options.mode {
            ReadMode::Pda => match self.look(table, &key) {
                Look::Known(answer) => return Ok(known(answer).await),
                Look::Missed(missed) => missed,
            },
            _ => Missed::default(),
        };
        self.get_after(missed, table, key, options).await
    }

    /// A read whose key was looked at already.
    pub(crate) async fn get_after(
        &self,
        missed: Missed,
        table: &str,
        key: Bytes,
        options: ReadOptions,
    ) -> Result<Option<Record>> {
        // Boxed: a future of some kilobytes would be carried along by every read that is answered at once.
        Box::pin(self.parts.reader.get(table, key, options, missed)).await
    }

    /// Reads several records; the answers are in the order of the keys. Linearizable for each key, not a snapshot of all.
    pub fn multi_get<'a>(
        &'a self,
        table: &'a str,
        keys: &'a [Bytes],
        options: ReadOptions,
    ) -> BoxFuture<'a, Result<Vec<Option<Record>>>> {
        Box::pin(async move {
            let answers = self.multi_get_after(Missed::default(), table, keys, options).await?;
            Ok(known(answers).await)
        })
    }

    /// Several reads, of whose keys the first one was looked at already.
    pub(crate) async fn multi_get_after(
        &self,
        first: Missed,
        table: &str,
        keys: &[Bytes],
        options: ReadOptions,
    ) -> Result<Vec<Option<Record>>> {
        self.parts.reader.multi_get(table, keys, options, first).await
    }

    /// Applies operations atomically. All keys must be of one partition: one key, or keys with the same `{hash tag}`.
    ///
    /// Errors of kind `OutcomeUnknown`: the write may or may not take effect; a retry under the same [`crate::RequestId`] tells.
    pub fn write(&self, ops: Vec<Operation>, options: WriteOptions) -> BoxFuture<'_, Result<WriteOutcome>> {
        Box::pin(async move {
            self.core().check_running()?;
            self.parts.writer.write(ops, options).await
        })
    }

    /// Puts, each a write of its own, together: see [`Writer::puts`].
    pub(crate) fn puts(&self, table: &str, puts: &[Put], lane: Lane) -> Option<BlindWrites> {
        self.core().check_running().ok()?;
        self.parts.writer.puts(table, puts, lane, None)
    }

    /// Scans a range in key order. A page of several partitions is no snapshot: see [`crate::ScanPage`].
    pub fn scan(&self, table: &str, range: ScanRange) -> ScanStream {
        self.parts.reader.scan(table, range)
    }

    /// Whether scans that are under way keep others from beginning, or will soon.
    pub(crate) fn scans_are_crowded(&self) -> bool {
        self.parts.reader.scans_are_crowded()
    }

    /// The same of a snapshot: each partition's records are those of one position of its log.
    pub(crate) fn scan_snapshot(&self, table: &str, range: ScanRange, snapshot: u64) -> ScanStream {
        self.parts.reader.scan_snapshot(table, range, snapshot)
    }

    pub(crate) fn snapshots(&self) -> &Snapshots {
        &self.parts.snapshots
    }

    /// The partitions that have the keys of a range: one, if all of them have the same prefix or `{hash tag}` that says so.
    pub(crate) async fn partitions_of(
        &self,
        table: &str,
        start: &[u8],
        end: &[u8],
    ) -> Result<Vec<PartitionId>> {
        let (core, table) = (self.core(), self.parts.tables.get(table, self.core().deadline(None)).await?);
        Ok(match pinned_partition(start, end, &table.options, &core.views.slot_map) {
            Some(partition) => vec![partition],
            None => core.views.partitions().collect(),
        })
    }

    /// Creates a table. The id, and whether it is new: a table that exists keeps its options.
    pub fn create_table<'a>(
        &'a self,
        name: &'a str,
        options: TableOptions,
    ) -> BoxFuture<'a, Result<(TableId, bool)>> {
        Box::pin(async move { self.parts.tables.create(name, options, self.core().deadline(None)).await })
    }

    /// Drops a table with all its records; whether there was one. Its name is free then. `only`: that table, and no other one that has
    /// the name by now. `deadline` None: two minutes.
    pub fn drop_table<'a>(
        &'a self,
        name: &'a str,
        only: Option<TableId>,
        deadline: Option<Duration>,
    ) -> BoxFuture<'a, Result<bool>> {
        let limit = self.core().deadline(Some(deadline.unwrap_or(CHANGE_LIMIT)));
        Box::pin(async move { self.parts.tables.drop_table(name, only, limit).await })
    }

    /// Changes options of a table; all of them, as they are then.
    pub fn alter_table<'a>(
        &'a self,
        name: &'a str,
        change: OptionsChange,
        deadline: Option<Duration>,
    ) -> BoxFuture<'a, Result<TableOptions>> {
        let limit = self.core().deadline(Some(deadline.unwrap_or(CHANGE_LIMIT)));
        Box::pin(async move { self.parts.tables.alter(name, change, limit).await })
    }

    /// All tables.
    pub fn tables(&self) -> BoxFuture<'_, Result<Vec<TableInfo>>> {
        Box::pin(async move {
            self.parts.tables.look(self.core().deadline(None)).await?;
            let all = self.core().views.tables.all();
            Ok(all.into_iter().map(Arc::unwrap_or_clone).collect())
        })
    }

    /// Registers a session in every partition; with it a retried write takes effect once.
    pub fn open_session(&self, limit: Option<Duration>) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async move { self.parts.writer.open_session(limit).await })
    }

    /// The version of a partition's manifest that is used, and its digest.
    pub fn manifest(&self, partition: PartitionId) -> (ManifestVersion, ManifestDigest) {
        let view = self.core().views.peek(partition);
        (view.manifest.version, view.manifest.digest)
    }

    pub fn metrics(&self) -> &PNodeMetrics {
        &self.core().metrics
    }

    /// The counters themselves, which outlive the p-node.
    pub fn clone_metrics(&self) -> Arc<PNodeMetrics> {
        self.core().metrics.clone()
    }

    /// A switch for measurement: off, every read travels in a call of its own.
    pub fn set_coalesce(&self, on: bool) {
        self.core().set_coalesce(on);
    }

    /// A switch for measurement: off, the record cache is empty and stays so.
    pub fn set_cache(&self, on: bool) {
        self.cache().set_on(on);
    }

    /// Gives the leases back and ends the background work. Operations are refused from now on.
    pub fn shutdown(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let core = self.core();
            // No view has a lease any more before the leaders hear of it.
            core.stop();
            self.parts.shutdown.trigger();
            let releases = core.memtables.values().map(|peer| {
                let release = peer.release(core.holder.clone());
                async move { tokio::time::timeout(RELEASE_MAX, release).await.is_ok() }
            });
            futures::future::join_all(releases).await;
        })
    }

    pub(crate) fn core(&self) -> &Core {
        &self.parts.core
    }

    pub(crate) fn tables_by_name(&self) -> &Tables {
        &self.parts.tables
    }

    pub(crate) fn cache(&self) -> &RecordCache {
        self.parts.reader.cache()
    }

    #[cfg(test)]
    pub(crate) fn writer(&self) -> &Arc<Writer> {
        &self.parts.writer
    }

    #[cfg(test)]
    pub(crate) fn reader(&self) -> &Reader {
        &self.parts.reader
    }
}

/// An answer that was at hand. Who asks only for such, in a loop, leaves room for other tasks of its runtime now and then all the same.
#[inline]
async fn known<T>(answer: T) -> T {
    tokio::task::coop::consume_budget().await;
    answer
}
