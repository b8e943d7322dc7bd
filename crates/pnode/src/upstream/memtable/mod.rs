//! A memtable server as a peer: reads of memtables, writes, pages of scans, sessions, tables, leases.
//!
//! Owns the connections to it, and the translation of what is asked and answered. Messages end here: whoever asks speaks of keys,
//! versions and outcomes.

mod reads;
mod writes;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use sextant_common::Result;
use sextant_common::expiry::Tick;
use sextant_common::ids::{ManifestVersion, NodeId, PartitionId, Seq, TableId};
use sextant_common::manifest::{Manifest, OptionsChange, TableInfo, TableOptions};
use sextant_common::operation::WriteStatus;
use sextant_environment::Env;
use sextant_environment::config::ClusterConfig;
use sextant_environment::env::{Party, cluster_channel, error_of};
use sextant_proto::MESSAGE_BYTES_MAX;
use sextant_proto::convert::manifest_change::ToldOfManifest;
use sextant_proto::v1;
use sextant_proto::v1::admin_client::AdminClient;
use sextant_proto::v1::lease_client::LeaseClient;
use sextant_proto::v1::rows_client::RowsClient;
use tonic::transport::Channel;

use super::leaders::Hint;
use super::pages::page;
use super::{Answers, Coalescer, Leaders, Limits, MemtablePageSays, OnTheWay, PageRequest, VALUE_BYTES_MAX};
use crate::metrics::PNodeMetrics;
use crate::view::Views;
use reads::ReadCall;
use writes::WriteCall;

pub(crate) use reads::{MemtableAnswer, MemtableRead, MemtableSays};
pub(crate) use writes::{Passage, SentOp, SentWrite, WriteSays};

/// How a service of leases is spoken to.
pub(crate) type Leases = LeaseClient<Channel>;

/// A connection of its own to a memtable server's leases.
pub(crate) fn connect_leases(
    env: &Env,
    addr: &str,
    cluster: &ClusterConfig,
    me: Party,
    node: NodeId,
) -> Leases {
    let channel = cluster_channel(&env.net, addr, cluster, me, Some(Party::memtable(node)));
    LeaseClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX)
}

/// What a leader said when it was to create or change a table, or to open a session.
#[derive(Clone, Debug)]
pub(crate) struct Disposed<T> {
    pub status: WriteStatus,
    pub message: String,
    /// What there is, if the status is `Ok`.
    pub made: T,
}

/// What is to become of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TableWish {
    Gone,
    Altered(OptionsChange),
}

/// A table as its partition has it.
#[derive(Clone, Debug)]
pub(crate) struct MadeTable {
    pub id: TableId,
    /// None: those that were asked for.
    pub options: Option<TableOptions>,
    pub created: bool,
}

/// Where news that come along with answers go.
#[derive(Clone)]
pub(crate) struct News {
    pub node: NodeId,
    pub views: Arc<Views>,
    pub leaders: Arc<Leaders>,
}

impl News {
    /// A whole one, of an older server.
    pub fn manifest(&self, manifest: v1::Manifest) {
        match Manifest::try_from(manifest) {
            Ok(manifest) => self.install(manifest.partition, Some(manifest), None),
            Err(e) => tracing::warn!(node = %self.node, "bad manifest: {e}"),
        }
    }

    /// What is new of one. (If it does not help whoever hears of it, it asks for more: `Copies::refresh_manifest`.)
    pub fn of_manifest(&self, news: v1::ManifestNews) {
        match ToldOfManifest::try_from(news) {
            Ok(told) => self.install(told.partition, None, Some(&told)),
            Err(e) => tracing::warn!(node = %self.node, "bad news of a manifest: {e}"),
        }
    }

    fn install(&self, partition: PartitionId, whole: Option<Manifest>, told: Option<&ToldOfManifest>) {
        match self.views.contains(partition) {
            true => drop(self.views.install_manifest(partition, whole, told)),
            false => tracing::warn!(node = %self.node, %partition, "manifest of no partition"),
        }
    }

    /// The server does not lead the partition.
    pub fn not_leader(&self, partition: PartitionId, hint: Option<Hint>) {
        if !self.views.contains(partition) {
            return;
        }
        self.leaders.suspect(partition, self.node);
        if let Some(hint) = hint
            && hint.node != self.node
        {
            self.leaders.hint(partition, hint.node, hint.term);
        }
    }
}

pub(crate) struct MemtablePeer {
    rows: RowsClient<Channel>,
    /// For the front end's administration, which passes messages on.
    pub admin: AdminClient<Channel>,
    /// For whole filters, single pulls and the release; the pull loops have connections of their own.
    pub lease: Leases,
    reads: Coalescer<ReadCall>,
    /// Values of any size, each alone: over a connection of their own, as pages of scans.
    large_reads: Coalescer<ReadCall>,
    pub large_on_the_way: OnTheWay,
    pages: RowsClient<Channel>,
    writes: Coalescer<WriteCall>,
    /// Over a connection of its own: what is before a small write is small.
    bulk_writes: Coalescer<WriteCall>,
    pub news: News,
}

impl MemtablePeer {
    /// Must be called within a tokio runtime. Connects when it is first used.
    pub fn new(
        env: &Env,
        addr: &str,
        cluster: &ClusterConfig,
        me: Party,
        news: News,
        metrics: &Arc<PNodeMetrics>,
    ) -> Self {
        let connect = || cluster_channel(&env.net, addr, cluster, me, Some(Party::memtable(news.node)));
        let channel = connect();
        let rows = RowsClient::new(channel.clone())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let read = ReadCall { rows: rows.clone(), news: news.clone(), value_bytes_max: VALUE_BYTES_MAX };
        let pages = RowsClient::new(connect())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let large_read = ReadCall { rows: pages.clone(), news: news.clone(), value_bytes_max: 0 };
        let write = WriteCall { rows: rows.clone(), news: news.clone() };
        let bulk = RowsClient::new(connect())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let bulk_write = WriteCall { rows: bulk, news: news.clone() };
        let (clock, counted) = (env.clock.clone(), metrics.clone());
        Self {
            admin: AdminClient::new(channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX),
            lease: LeaseClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX),
            reads: Coalescer::start(read, Limits::READS, env.clock.clone(), metrics.clone()),
            large_reads: Coalescer::start(large_read, Limits::READS, env.clock.clone(), metrics.clone()),
            large_on_the_way: OnTheWay::default(),
            pages,
            writes: Coalescer::start(write, Limits::WRITES, env.clock.clone(), metrics.clone()),
            bulk_writes: Coalescer::start(bulk_write, Limits::BULK_WRITES, clock, counted),
            rows,
            news,
        }
    }

    /// Along with other reads, or `alone`.
    pub async fn read(&self, read: MemtableRead, alone: bool) -> Result<MemtableAnswer> {
        let request = read.into();
        if alone { self.reads.ask_alone(request).await? } else { self.reads.ask(request).await? }
    }

    /// A value of any size; the caller has room for it.
    pub async fn read_large(&self, read: MemtableRead) -> Result<MemtableAnswer> {
        self.large_reads.ask_alone(read.into()).await?
    }

    /// The stream of reads perhaps leads to the server's predecessor.
    pub fn renew_reads(&self) {
        self.reads.renew();
    }

    pub async fn write<'o>(
        &self,
        write: SentWrite<impl Iterator<Item = SentOp<'o>>>,
        by: Passage<'_>,
    ) -> Result<WriteSays> {
        let writes = if by.large { &self.bulk_writes } else { &self.writes };
        writes.ask_within(write.into(), by.alone, by.answers, by.patience).await?
    }

    /// Hands a small write over to travel along with others, without waiting for anything; its answer comes to `answers`. False: there is
    /// no room.
    pub fn hand_over<'o>(
        &self,
        write: SentWrite<impl Iterator<Item = SentOp<'o>>>,
        answers: &Answers<Result<WriteSays>>,
        at: usize,
    ) -> bool {
        self.writes.hand_over(write.into(), answers, at)
    }

    /// The streams of writes perhaps lead to the server's predecessor.
    pub fn renew_writes(&self) {
        self.writes.renew();
        self.bulk_writes.renew();
    }

    /// A page of the memtables that goes with the SSTables of version `searched`.
    pub async fn page(
        &self,
        partition: PartitionId,
        table: TableId,
        searched: ManifestVersion,
        wanted: PageRequest,
    ) -> Result<MemtablePageSays> {
        let request = v1::ScanPageRequest {
            partition: partition.0,
            table: table.0,
            manifest_version: searched.0,
            start: wanted.start,
            end: wanted.end,
            reverse: wanted.reverse,
            limit_records: wanted.records_max,
            limit_bytes: wanted.bytes_max,
            first_bytes_max: wanted.first_bytes_max,
            takes_changes: true,
        };
        let reply = self.pages.clone().scan_page(request).await.map_err(error_of)?.into_inner();
        use v1::ReadStatus as S;
        Ok(match S::try_from(reply.status) {
            Ok(S::ReadValue | S::ReadNoEntry) => {
                let (at, tick) = (Seq(reply.snapshot_seq), Tick(reply.tick));
                MemtablePageSays::Page(at, tick, page(reply.records, reply.complete))
            }
            Ok(S::ReadTooLarge) => MemtablePageSays::Large(reply.bytes as usize),
            Ok(S::ReadStaleManifest) => {
                reply.manifest.into_iter().for_each(|manifest| self.news.manifest(manifest));
                reply.manifest_news.into_iter().for_each(|news| self.news.of_manifest(news));
                let installed = self.news.views.peek(partition).manifest.version > searched;
                MemtablePageSays::Stale { installed }
            }
            Ok(S::ReadNotLeader | S::ReadUnknownPartition) => {
                self.news.not_leader(partition, reply.leader.as_ref().map(Hint::from));
                MemtablePageSays::NotLeader
            }
            Ok(S::ReadUnknownTable) => MemtablePageSays::UnknownTable,
            _ => MemtablePageSays::NotReady,
        })
    }

    /// Registers a session in a partition; idempotent.
    pub async fn open_session(&self, partition: PartitionId, session: u64) -> Result<Disposed<()>> {
        let request = v1::OpenSessionRequest { partition: partition.0, session };
        let reply = self.rows.clone().open_session(request).await.map_err(error_of)?.into_inner();
        let status = self.disposed(partition, reply.status, reply.leader.as_ref());
        Ok(Disposed { status, message: reply.message, made: () })
    }

    /// Creates a table in a partition, under a new id if it has none (0); one that exists stays as it is.
    pub async fn ensure_table(
        &self,
        partition: PartitionId,
        table: &TableInfo,
    ) -> Result<Disposed<MadeTable>> {
        let request = v1::EnsureTableRequest {
            partition: partition.0,
            name: table.name.clone(),
            options: Some((&table.options).into()),
            id: table.id.0,
        };
        let reply = self.admin.clone().ensure_table(request).await.map_err(error_of)?.into_inner();
        let status = self.disposed(partition, reply.status, reply.leader.as_ref());
        let options = reply.options.map(TableOptions::try_from).transpose()?;
        let made = MadeTable { id: TableId(reply.id), options, created: reply.created };
        Ok(Disposed { status, message: reply.message, made })
    }

    /// Drops a table in a partition, or gives it other options there. Whether that changed anything.
    pub async fn change_table(
        &self,
        partition: PartitionId,
        table: TableId,
        wish: &TableWish,
    ) -> Result<Disposed<bool>> {
        use v1::change_table_request::Change;
        let change = Some(match wish {
            TableWish::Gone => Change::Drop(v1::DropTable {}),
            TableWish::Altered(change) => Change::Alter(change.into()),
        });
        let request = v1::ChangeTableRequest { partition: partition.0, id: table.0, change };
        let reply = self.admin.clone().change_table(request).await.map_err(error_of)?.into_inner();
        let status = self.disposed(partition, reply.status, reply.leader.as_ref());
        Ok(Disposed { status, message: reply.message, made: reply.changed })
    }

    /// A status that nobody knows is one to ask again after.
    fn disposed(&self, partition: PartitionId, status: i32, leader: Option<&v1::LeaderHint>) -> WriteStatus {
        let status = writes::status(status).unwrap_or(WriteStatus::Retry);
        if status == WriteStatus::NotLeader {
            self.news.not_leader(partition, leader.map(Hint::from));
        }
        status
    }

    /// Gives all leases of a holder back.
    pub async fn release(&self, holder: Bytes) -> Result<()> {
        self.lease.clone().release(v1::ReleaseRequest { holder }).await.map_err(error_of)?;
        Ok(())
    }
}

/// All memtable servers by id.
pub(crate) type MemtablePeers = BTreeMap<NodeId, MemtablePeer>;
