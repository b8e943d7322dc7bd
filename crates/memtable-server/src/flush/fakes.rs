//! For tests: a leader and sstable servers that fail on demand.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use futures::stream::{BoxStream, once};
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use sextant_common::error::{Error, ErrorKind};
use sextant_common::ids::{NodeId, SstId};
use sextant_common::key_range::KeyRange;
use sextant_common::manifest::SstMeta;
use sextant_environment::Env;
use sextant_environment::config::{ClusterConfig, Server};
use sextant_environment::env::{Door, grpc_incoming, status_of};
use sextant_proto::convert::sst_id_from_wire;
use sextant_proto::v1;
use sextant_proto::v1::sst_server::{Sst, SstServer as SstService};
use tokio::sync::mpsc;
use tonic::{Request, Response, Status, Streaming};

use super::*;
use crate::config::Tuning;
use crate::metrics::Metrics;
use crate::partition::testing::sst;
use crate::replica::ReplicaState;
use crate::upstream::SstServers;

pub const SERVERS: u64 = 3;
/// Whoever waits for longer waits for a server that hangs, until it is given up.
pub const HANGS: Duration = Duration::from_secs(30);

/// What the servers were told, all together.
pub struct Told {
    /// So many are to fail before one succeeds.
    pub to_fail: AtomicUsize,
    /// And so many before these are to be refused.
    pub to_refuse: AtomicUsize,
    /// What each server was told to copy.
    pub copies: Mutex<Vec<(u64, SstId)>>,
    /// This server's copies come to no end.
    pub hangs: AtomicU64,
    /// For how many tables each server was told that new ones wait.
    pub lacking: Mutex<Vec<(u64, Option<u32>)>>,
    /// The ids that each compaction was given.
    pub compactions: Mutex<Vec<Vec<SstId>>>,
    pub deleted: mpsc::UnboundedSender<Vec<SstId>>,
}

#[derive(Clone)]
struct Fake(u64, Arc<Told>);

type Answer<T> = Result<Response<T>, Status>;
type News<T> = BoxStream<'static, Result<T, Status>>;

fn no<T>() -> Answer<T> {
    Err(Status::internal("not in this test"))
}

fn end<T: Send + 'static>(message: T) -> Answer<News<T>> {
    Ok(Response::new(Box::pin(once(async move { Ok(message) }))))
}

fn ids<'w>(wire: impl IntoIterator<Item = &'w Bytes>) -> Vec<SstId> {
    wire.into_iter().map(|id| sst_id_from_wire(id).unwrap()).collect()
}

#[tonic::async_trait]
impl Sst for Fake {
    type GetStreamStream = News<v1::GetBatchReply>;
    type FetchFilterStream = News<v1::FilterBytes>;
    type FetchStream = News<v1::FileChunk>;
    type CompactWatchedStream = News<v1::CompactProgress>;
    type CopyWatchedStream = News<v1::CopyProgress>;
    type HoldingsStream = News<v1::Holding>;

    async fn compact_watched(
        &self,
        request: Request<v1::CompactRequest>,
    ) -> Answer<Self::CompactWatchedStream> {
        let request = request.into_inner();
        let outputs = ids([&request.output].into_iter().chain(&request.more_outputs));
        let output = SstMeta { id: outputs[0], range: KeyRange::all(), ..sst(7) };
        self.1.compactions.lock().push(outputs);
        let fewer = |left: usize| left.checked_sub(1);
        if self.1.to_refuse.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer).is_ok() {
            return Err(status_of(Error::new(ErrorKind::Overloaded, "others are running")));
        }
        if self.1.to_fail.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer).is_ok() {
            return Err(Status::unavailable("its answer is lost, and it goes on"));
        }
        let done = Some(v1::CompactReply { meta: Some((&output).into()), more: Vec::new() });
        end(v1::CompactProgress { done, ..Default::default() })
    }

    async fn copy_watched(&self, request: Request<v1::CopyRequest>) -> Answer<Self::CopyWatchedStream> {
        let id = sst_id_from_wire(&request.into_inner().id).unwrap();
        self.1.copies.lock().push((self.0, id));
        if self.1.hangs.load(Ordering::SeqCst) == self.0 {
            return Ok(Response::new(Box::pin(futures::stream::pending())));
        }
        end(v1::CopyProgress { done: Some(Default::default()), ..Default::default() })
    }

    async fn delete(&self, request: Request<v1::DeleteRequest>) -> Answer<v1::DeleteReply> {
        let _ = self.1.deleted.send(ids(&request.into_inner().ids));
        Ok(Response::new(v1::DeleteReply::default()))
    }

    async fn count(&self, _: Request<v1::CountRequest>) -> Answer<v1::CountReply> {
        no()
    }

    async fn get_stream(&self, _: Request<Streaming<v1::GetBatch>>) -> Answer<Self::GetStreamStream> {
        no()
    }

    async fn get(&self, _: Request<v1::GetBatch>) -> Answer<v1::GetBatchReply> {
        no()
    }

    async fn scan(&self, _: Request<v1::SstScanRequest>) -> Answer<v1::SstScanReply> {
        no()
    }

    async fn fetch_filter(&self, _: Request<v1::FetchFilterRequest>) -> Answer<Self::FetchFilterStream> {
        no()
    }

    async fn ingest(&self, _: Request<Streaming<v1::IngestRequest>>) -> Answer<v1::IngestReply> {
        no()
    }

    async fn compact(&self, _: Request<v1::CompactRequest>) -> Answer<v1::CompactReply> {
        no()
    }

    async fn copy(&self, _: Request<v1::CopyRequest>) -> Answer<v1::CopyReply> {
        no()
    }

    async fn fetch(&self, _: Request<v1::FetchRequest>) -> Answer<Self::FetchStream> {
        no()
    }

    async fn inventory(&self, request: Request<v1::InventoryRequest>) -> Answer<v1::InventoryReply> {
        self.1.lacking.lock().push((self.0, request.into_inner().tables_lacking));
        Ok(Response::new(v1::InventoryReply::default()))
    }

    async fn holdings(&self, _: Request<v1::HoldingsRequest>) -> Answer<Self::HoldingsStream> {
        no()
    }

    async fn release_tables(&self, _: Request<v1::ReleaseTablesRequest>) -> Answer<v1::ReleaseTablesReply> {
        no()
    }
}

pub struct Tier {
    pub background: Background,
    pub told: Arc<Told>,
    pub deleted: mpsc::UnboundedReceiver<Vec<SstId>>,
}

impl Tier {
    pub async fn start(to_fail: usize) -> Self {
        Self::busy(0, to_fail).await
    }

    pub async fn busy(to_refuse: usize, to_fail: usize) -> Self {
        let env = Env::real();
        let (deletes, deleted) = mpsc::unbounded_channel();
        let (to_refuse, to_fail) = (AtomicUsize::new(to_refuse), AtomicUsize::new(to_fail));
        let told = Arc::new(Told {
            to_fail,
            to_refuse,
            copies: Mutex::default(),
            hangs: AtomicU64::new(0),
            lacking: Mutex::default(),
            compactions: Mutex::default(),
            deleted: deletes,
        });
        let mut sstable = Vec::new();
        for id in 1..=SERVERS {
            let listener = env.net.bind("127.0.0.1:0".into(), Door::Members).await.unwrap();
            sstable.push(Server::new(id, listener.local_addr().unwrap().to_string()));
            let service = SstService::new(Fake(id, told.clone()));
            let served = tonic::transport::Server::builder().add_service(service);
            tokio::spawn(served.serve_with_incoming(grpc_incoming(listener)));
        }
        let (id, memtable, lease) = ("test".into(), Vec::new(), Default::default());
        let cluster = ClusterConfig { id, partitions: 1, memtable, sstable, lease };
        let background = Background {
            runtime: tokio::runtime::Handle::current(),
            shared: ReplicaState::serving_for_tests(3),
            servers: Arc::new(SstServers::connect(&env, &cluster, NodeId(1))),
            events: mpsc::unbounded_channel().0,
            tuning: Tuning { sst_replicas: SERVERS as usize, ..Tuning::default() },
            attempts: Arc::new(AtomicU32::new(1)),
            orders: Arc::new(AtomicU64::new(1)),
            metrics: Arc::new(Metrics::register(&mut Registry::default())),
        };
        Self { background, told, deleted }
    }

    pub fn pending(&self) -> Vec<SstId> {
        self.background.shared.pending_ssts.lock().clone()
    }

    /// What so many attempts were given that came to nothing is deleted, on all servers, in whatever order.
    pub async fn deleted_of(&mut self, attempts: usize) -> BTreeSet<SstId> {
        let mut all = BTreeSet::new();
        for _ in 0..attempts * SERVERS as usize {
            all.extend(self.deleted.recv().await.unwrap());
        }
        all
    }
}
