//! Sweeps away what objects leave behind. An object goes with its header; its elements are unreachable from then on, and are deleted
//! here: soon, of objects that this p-node has been told of, and in walks over all elements.
//!
//! Invariant: an element is deleted only if its object's header, read after the element was seen, is of another version, or absent.
//! Versions are random and never given twice, and a header is written with the first elements of its version: so nothing of that
//! version will ever be reachable again.
//!
//! Bounds: a queue of so many keys, pages of so many elements, so many elements and objects a second. A partition is walked by one
//! p-node at a time: a record of the table, which expires, says so.

use std::time::Duration;

use bytes::Bytes;
use sextant_common::database::Database;
use sextant_common::ids::PartitionId;
use sextant_common::key::prefix_end;
use sextant_common::marks::Kind;
use sextant_common::object::{Header, inner_key, object_prefix, version_of, version_prefix};
use sextant_common::operation::{Condition, Lane, Lifetime, Operation};
use sextant_common::{Error, Result};
use sextant_environment::Env;
use sextant_environment::shutdown::Shutdown;
use tokio::sync::mpsc;

use crate::api::{ReadOptions, ScanRange, WriteOptions};
use crate::pnode::PNode;

/// Keys that wait to be looked after; what comes on top is left to the walks.
const QUEUE_MAX: usize = 4096;
/// How long a key waits at the least: what ends its object takes effect first.
const SETTLING: Duration = Duration::from_secs(1);
/// Elements that are deleted at once.
const PAGE: u32 = 500;
/// After a full page of deletions: some thousand elements a second.
const PAGE_PAUSE: Duration = Duration::from_millis(100);
/// After so many objects that a walk has looked at: up to some thousand a second.
const OBJECTS_A_TURN: usize = 20;
const OBJECT_PAUSE: Duration = Duration::from_millis(20);
/// How often it is looked whether a partition is to be walked.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// How long nobody walks a partition again.
const WALK_EVERY: Duration = Duration::from_secs(3600);

/// Hands keys over.
#[derive(Clone)]
pub(crate) struct Sweeper {
    /// Keys, and when each may be looked after (holder's clock).
    keys: mpsc::Sender<(Database, Bytes, u64)>,
    env: Env,
}

impl Sweeper {
    /// Until the p-node stops.
    pub fn start(pnode: &PNode, stopping: &Shutdown) -> Self {
        let (queue, mut keys) = mpsc::channel::<(Database, Bytes, u64)>(QUEUE_MAX);
        let env = pnode.core().env.clone();
        let clock = env.clock.clone();
        let (pnode, mut ends) = (pnode.clone(), stopping.clone());
        tokio::spawn(async move {
            let soon = async {
                while let Some((database, key, due_ns)) = keys.recv().await {
                    tokio::time::sleep(Duration::from_nanos(due_ns.saturating_sub(clock.holder_ns()))).await;
                    if let Err(e) = Sweep::of(&pnode, database).object(&key).await {
                        tracing::debug!("the elements of an object are left to a walk: {e}");
                    }
                }
            };
            let walks = async {
                loop {
                    tokio::time::sleep(LOOK_EVERY).await;
                    for sweep in Sweep::all(&pnode) {
                        sweep.walk().await;
                    }
                }
            };
            tokio::select! {
                () = soon => {}
                () = walks => {}
                () = ends.wait() => {}
            }
        });
        Self { keys: queue, env }
    }

    /// The object of this key may be gone.
    pub fn tell(&self, database: Database, key: &[u8]) {
        // (If there is no room, a walk comes by.)
        let due_ns = self.env.clock.holder_ns().saturating_add(SETTLING.as_nanos() as u64);
        let _ = self.keys.try_send((database, Bytes::copy_from_slice(key), due_ns));
    }
}

/// What does it, in a database.
pub(crate) struct Sweep {
    pnode: PNode,
    database: Database,
}

impl Sweep {
    fn of(pnode: &PNode, database: Database) -> Self {
        Self { pnode: pnode.clone(), database }
    }

    /// One for each database that has elements, as far as is known here.
    pub fn all(pnode: &PNode) -> Vec<Self> {
        Database::all().map(|database| Self::of(pnode, database)).filter(Self::has_elements).collect()
    }

    fn has_elements(&self) -> bool {
        self.pnode.core().views.tables.get(self.database.elements()).is_some()
    }

    async fn walk(&self) {
        for partition in self.pnode.core().views.partitions() {
            if let Err(e) = self.partition(partition).await {
                tracing::debug!("a walk over the elements of partition {partition} ended: {e}");
            }
        }
    }

    /// Deletes what is left of earlier objects of this key. How many elements that were.
    pub async fn object(&self, key: &[u8]) -> Result<u64> {
        if !self.has_elements() {
            return Ok(0);
        }
        let prefix = object_prefix(key);
        let end = prefix_end(&prefix);
        let (mut swept, mut from) = (0, prefix);
        while let Some((element, version)) = self.next(&from, &end, None).await? {
            let live = self.live_version(key).await?;
            if live != Some(version) {
                swept += self.version(key, version).await?;
            }
            from = prefix_end(&version_prefix(key, version));
            debug_assert!(from > element);
        }
        Ok(swept)
    }

    /// Walks over all objects of a partition, unless somebody does or has just done so. How many elements were deleted.
    pub async fn partition(&self, partition: PartitionId) -> Result<u64> {
        if !self.has_elements() || !self.claims(partition).await? {
            return Ok(0);
        }
        // (Claims have no key inside, and come first.)
        let (mut swept, mut from, mut objects) = (0, Bytes::from_static(&[0, 1]), 0);
        while let Some((element, version)) = self.next(&from, &[], Some(partition)).await? {
            let Some(key) = inner_key(&element) else {
                from = Bytes::from([&element[..], b"\0"].concat());
                continue;
            };
            if self.live_version(key).await? != Some(version) {
                swept += self.version(key, version).await?;
            }
            from = prefix_end(&version_prefix(key, version));
            objects += 1;
            if objects % OBJECTS_A_TURN == 0 {
                tokio::time::sleep(OBJECT_PAUSE).await;
            }
        }
        Ok(swept)
    }

    /// Whether the walk is this p-node's. The claim ends by itself.
    async fn claims(&self, partition: PartitionId) -> Result<bool> {
        let name = [&[0, 0][..], b"walk", &partition.0.to_be_bytes()].concat();
        let owner = self.pnode.core().config.id.to_string();
        let claim = Operation::put(self.database.elements(), name, owner)
            .only_if(Condition::Absent)
            .lasting(Lifetime::Milliseconds(WALK_EVERY.as_millis() as u64));
        Ok(self.write(vec![claim]).await?.applied)
    }

    async fn write(&self, ops: Vec<Operation>) -> Result<sextant_common::operation::WriteOutcome> {
        let options = WriteOptions { lane: Lane::Pipelined, ..WriteOptions::default() };
        self.pnode.write(ops, options).await
    }

    /// The first element from here on, and its version.
    async fn next(
        &self,
        from: &[u8],
        end: &[u8],
        partition: Option<PartitionId>,
    ) -> Result<Option<(Bytes, u64)>> {
        let range = ScanRange {
            start: Bytes::copy_from_slice(from),
            end: Bytes::copy_from_slice(end),
            limit: 1,
            // (Deleted elements count.)
            page_records: PAGE,
            first_page: true,
            partition,
            ..ScanRange::default()
        };
        let Some(page) = self.pnode.scan(self.database.elements(), range).next_page().await else {
            return Ok(None);
        };
        let first = page?.records.into_iter().next();
        // (What has no version is no element.)
        Ok(first.map(|(key, _)| (key.clone(), version_of(&key).unwrap_or_default())))
    }

    async fn live_version(&self, key: &[u8]) -> Result<Option<u64>> {
        let record = self.pnode.get(self.database.table(), key, ReadOptions::default()).await?;
        let Some(record) = record.filter(|record| record.kind != Kind::Plain) else { return Ok(None) };
        // (What cannot be read is not taken for gone.)
        let header = Header::decode(&record.value);
        Ok(Some(header.ok_or_else(|| Error::corrupt("the header of an object is damaged"))?.version))
    }

    /// Deletes all elements of a version that is dead.
    async fn version(&self, key: &[u8], version: u64) -> Result<u64> {
        let start = version_prefix(key, version);
        let end = prefix_end(&start);
        let mut swept = 0;
        let range = ScanRange { start, end, page_records: PAGE, ..ScanRange::default() };
        let mut pages = self.pnode.scan(self.database.elements(), range);
        while let Some(page) = pages.next_page().await {
            let elements =
                page?.records.into_iter().map(|(key, _)| Operation::delete(self.database.elements(), key));
            let elements: Vec<Operation> = elements.collect();
            let count = elements.len() as u64;
            self.write(elements).await?;
            self.pnode.metrics().swept_elements.inc_by(count);
            swept += count;
            if count >= u64::from(PAGE) {
                tokio::time::sleep(PAGE_PAUSE).await;
            }
        }
        self.pnode.metrics().swept_objects.inc();
        Ok(swept)
    }
}
