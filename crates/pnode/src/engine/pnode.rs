//! The library's face.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use sextant_common::ids::TableId;
use sextant_common::key::filter_hash;
use sextant_common::limits::{BATCH_OPS_MAX, check_key};
use sextant_common::manifest::TableOptions;
use sextant_common::{Error, Result};
use sextant_environment::Env;
use sextant_environment::room::Purse;
use sextant_environment::shutdown::{self, ShutdownTrigger};
use sextant_proto::v1;

use super::Engine;
use crate::api::{BatchOp, ReadMode, ReadOptions, Record, ScanRange, ScanStream, WriteOptions, WriteOutcome};
use crate::config::EngineConfig;
use crate::metrics::{PNodeMetrics, ReadPath};
use crate::router::{Read, answer_at_once};
use crate::upstream::Deadline;
use crate::view::{ReadKey, TableInfo};

/// Values of one multi-get, in bytes: one request must not fill the memory.
const MULTI_GET_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Reads of one multi-get that are under way at once: enough to fill the messages of all servers.
const READS_AT_ONCE: usize = 512;
/// How long a server may take for the release of leases: they end by themselves.
const RELEASE_MAX: Duration = Duration::from_millis(300);
/// Partitions in which a session is opened at once.
const OPENINGS_AT_ONCE: usize = 16;

/// A p-node inside an application. Cheap to clone; its background work ends with the last clone or with
/// [`PNode::shutdown`].
#[derive(Clone)]
pub struct PNode {
    engine: Arc<Engine>,
    shutdown: Arc<ShutdownTrigger>,
}

impl PNode {
    /// Starts pulling filters and leases. Does not wait for any server: see [`PNode::ready`].
    pub async fn start(env: Env, config: EngineConfig) -> Result<PNode> {
        config.validate()?;
        let (trigger, shutdown) = shutdown::channel();
        Ok(PNode { engine: Engine::start(env, config, shutdown), shutdown: Arc::new(trigger) })
    }

    /// Returns when a leader and a manifest are known for every partition, so that routing works.
    pub async fn ready(&self, deadline: Duration) -> Result<()> {
        let mut leaders = self.engine.leaders.watch_all();
        let mut manifests = self.engine.views.watch_manifests();
        let known = async {
            while let Err(e) = self.check_ready() {
                self.engine.check_running()?;
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
    }

    /// Whether routing works now; else which partition it does not work for.
    pub fn check_ready(&self) -> Result<()> {
        let engine = &self.engine;
        engine.check_running()?;
        for partition in engine.views.partitions() {
            if engine.leaders.get(partition).node.is_none() {
                return Err(Error::unavailable(format!("no leader of partition {partition} is known")));
            }
            if !engine.views.peek(partition).manifest_known {
                return Err(Error::unavailable(format!("no manifest of partition {partition} is known")));
            }
        }
        Ok(())
    }

    /// The fast path of a pda read: what [`PNode::get`] would answer, if it is known without waiting. Neither awaits nor
    /// allocates. None: use `get`.
    #[inline]
    pub fn try_get(&self, table: &str, key: &[u8]) -> Option<Result<Option<Record>>> {
        if key.is_empty() {
            return None;
        }
        let engine = &*self.engine;
        let table = engine.views.tables.get(table)?;
        self.get_at_once(&table, key, filter_hash(key)).map(Ok)
    }

    #[inline]
    fn get_at_once(&self, table: &TableInfo, key: &[u8], hash: u64) -> Option<Option<Record>> {
        let engine = &*self.engine;
        let partition = engine.views.slot_map.partition_of(key, &table.options);
        let view = engine.views.peek(partition);
        let at = ReadKey { partition, key, hash };
        let answer = answer_at_once(&view, &*engine.env.clock, &engine.cache, table, at)?;
        engine
            .metrics
            .count_read(ReadMode::Pda, if answer.is_some() { ReadPath::Cache } else { ReadPath::Nobody });
        Some(answer.and_then(|r| r.value.map(|value| Record { value, seq: r.seq })))
    }

    /// Reads the newest version of a record; None: there is none. Linearizable in every mode. `table`: "" or "default" is
    /// the default table.
    pub async fn get(&self, table: &str, key: &[u8], options: ReadOptions) -> Result<Option<Record>> {
        if options.mode == ReadMode::Pda
            && let Some(answer) = self.try_get(table, key)
        {
            return answer;
        }
        // Boxed: a future of some kilobytes would be carried along by every read that is answered at once.
        Box::pin(self.get_slowly(table, Bytes::copy_from_slice(key), options)).await
    }

    /// [`PNode::get`] with a key that is not copied.
    pub async fn get_bytes(&self, table: &str, key: Bytes, options: ReadOptions) -> Result<Option<Record>> {
        if options.mode == ReadMode::Pda
            && let Some(answer) = self.try_get(table, &key)
        {
            return answer;
        }
        Box::pin(self.get_slowly(table, key, options)).await
    }

    async fn get_slowly(&self, table: &str, key: Bytes, options: ReadOptions) -> Result<Option<Record>> {
        check_key(&key)?;
        self.engine.check_running()?;
        let deadline = self.engine.deadline(options.deadline);
        let table = self.engine.table(table, deadline).await?;
        let hash = filter_hash(&key);
        self.read(&table, key, hash, options.mode, deadline, None).await
    }

    /// Reads several records; the answers are in the order of the keys. Linearizable for each key, not a snapshot of all.
    pub async fn multi_get(
        &self,
        table: &str,
        keys: &[Bytes],
        options: ReadOptions,
    ) -> Result<Vec<Option<Record>>> {
        if keys.len() > BATCH_OPS_MAX {
            return Err(Error::invalid(format!("{} keys: the limit is {BATCH_OPS_MAX}", keys.len())));
        }
        keys.iter().try_for_each(|key| check_key(key))?;
        let engine = &*self.engine;
        let deadline = engine.deadline(options.deadline);
        let table = engine.table(table, deadline).await?;
        let purse = engine.large_reads.purse();
        let one = |key| self.read_one_of_many(&table, key, options.mode, deadline, &purse);
        let reads = keys.iter().cloned().map(one);
        let mut answers = futures::stream::iter(reads).buffered(READS_AT_ONCE);
        let (mut records, mut bytes) = (Vec::with_capacity(keys.len()), 0);
        while let Some(record) = answers.try_next().await? {
            bytes += record.as_ref().map_or(0, |r: &Record| r.value.len());
            if bytes > MULTI_GET_BYTES_MAX {
                return Err(Error::invalid(format!(
                    "the values of one multi-get have more than {MULTI_GET_BYTES_MAX} bytes: ask for fewer keys"
                )));
            }
            records.push(record);
        }
        Ok(records)
    }

    async fn read_one_of_many(
        &self,
        table: &Arc<TableInfo>,
        key: Bytes,
        mode: ReadMode,
        deadline: Deadline,
        purse: &Purse,
    ) -> Result<Option<Record>> {
        let hash = filter_hash(&key);
        if mode == ReadMode::Pda
            && let Some(answer) = self.get_at_once(table, &key, hash)
        {
            return Ok(answer);
        }
        self.read(table, key, hash, mode, deadline, Some(purse)).await
    }

    async fn read(
        &self,
        table: &Arc<TableInfo>,
        key: Bytes,
        hash: u64,
        mode: ReadMode,
        deadline: Deadline,
        purse: Option<&Purse>,
    ) -> Result<Option<Record>> {
        let partition = self.engine.views.slot_map.partition_of(&key, &table.options);
        self.engine.read(&Read { table, partition, key, hash, mode, purse }, deadline).await
    }

    /// Applies operations atomically. All keys must be of one partition: one key, or keys with the same `{hash tag}`.
    ///
    /// Errors of kind `OutcomeUnknown`: the write may or may not take effect; a retry under the same [`crate::RequestId`] tells.
    pub async fn write(&self, ops: Vec<BatchOp>, options: WriteOptions) -> Result<WriteOutcome> {
        self.engine.check_running()?;
        self.engine.write(ops, options).await
    }

    /// Scans a range in key order. A page of several partitions is no snapshot: see [`crate::ScanPage`].
    pub fn scan(&self, table: &str, range: ScanRange) -> ScanStream {
        self.engine.scan(table, range)
    }

    /// Creates a table. The id, and whether it is new: a table that exists keeps its options.
    pub async fn create_table(&self, name: &str, options: TableOptions) -> Result<(TableId, bool)> {
        self.engine.create_table(name, options, self.engine.deadline(None)).await
    }

    /// All tables that are known: id, name, options.
    pub async fn tables(&self) -> Result<Vec<(TableId, String, TableOptions)>> {
        // Sees to it that there was a manifest.
        self.engine.table("", self.engine.deadline(None)).await?;
        let all = self.engine.views.tables.all();
        Ok(all.into_iter().map(|t| (t.id, t.name.clone(), t.options.clone())).collect())
    }

    /// Registers a session in every partition; with it a retried write takes effect once.
    pub async fn open_session(&self) -> Result<u64> {
        let engine = &*self.engine;
        let deadline = engine.deadline(None);
        let session = engine.env.rng.nonzero_u64();
        futures::stream::iter(
            engine.views.partitions().map(|p| engine.open_session_in(p, session, deadline)),
        )
        .buffer_unordered(OPENINGS_AT_ONCE)
        .try_for_each(|()| async { Ok(()) })
        .await?;
        Ok(session)
    }

    pub fn metrics(&self) -> &PNodeMetrics {
        &self.engine.metrics
    }

    /// The counters themselves, which outlive the p-node.
    pub fn clone_metrics(&self) -> Arc<PNodeMetrics> {
        self.engine.metrics.clone()
    }

    /// A switch for measurement: off, every read travels in a call of its own.
    pub fn set_coalesce(&self, on: bool) {
        self.engine.set_coalesce(on);
    }

    /// A switch for measurement: off, the record cache is empty and stays so.
    pub fn set_cache(&self, on: bool) {
        self.engine.cache.set_on(on);
    }

    /// Gives the leases back and ends the background work. Operations are refused from now on.
    pub async fn shutdown(&self) {
        // No view has a lease any more before the leaders hear of it.
        self.engine.stop();
        self.shutdown.trigger();
        let releases = self.engine.memtables.values().map(|peer| {
            let mut client = peer.lease.clone();
            let request = v1::ReleaseRequest { holder: self.engine.holder.clone() };
            async move { tokio::time::timeout(RELEASE_MAX, client.release(request)).await.is_ok() }
        });
        futures::future::join_all(releases).await;
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }
}
