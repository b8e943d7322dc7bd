//! A leader and sstable servers that fail on demand.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use futures::stream::{BoxStream, once};
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use sextant_common::ids::{Epoch, LogPosition, TableId};
use sextant_common::key_range::KeyRange;
use sextant_common::manifest::{Generations, Origin};
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
use crate::upstream::SstServers;

const SERVERS: u64 = 3;

/// What the servers were told, all together.
struct Told {
    /// So many are to fail before one succeeds.
    to_fail: AtomicUsize,
    /// And so many before these are to be refused.
    to_refuse: AtomicUsize,
    /// The ids that each compaction was given.
    compactions: Mutex<Vec<Vec<SstId>>>,
    deleted: mpsc::UnboundedSender<Vec<SstId>>,
}

#[derive(Clone)]
struct Fake(Arc<Told>);

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
        self.0.compactions.lock().push(outputs);
        let fewer = |left: usize| left.checked_sub(1);
        if self.0.to_refuse.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer).is_ok() {
            return Err(status_of(Error::new(ErrorKind::Overloaded, "others are running")));
        }
        if self.0.to_fail.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer).is_ok() {
            return Err(Status::unavailable("its answer is lost, and it goes on"));
        }
        let done = Some(v1::CompactReply { meta: Some((&output).into()), more: Vec::new() });
        end(v1::CompactProgress { done, ..Default::default() })
    }

    async fn copy_watched(&self, _: Request<v1::CopyRequest>) -> Answer<Self::CopyWatchedStream> {
        end(v1::CopyProgress { done: Some(Default::default()), ..Default::default() })
    }

    async fn delete(&self, request: Request<v1::DeleteRequest>) -> Answer<v1::DeleteReply> {
        let _ = self.0.deleted.send(ids(&request.into_inner().ids));
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

    async fn inventory(&self, _: Request<v1::InventoryRequest>) -> Answer<v1::InventoryReply> {
        no()
    }

    async fn holdings(&self, _: Request<v1::HoldingsRequest>) -> Answer<Self::HoldingsStream> {
        no()
    }

    async fn release_tables(&self, _: Request<v1::ReleaseTablesRequest>) -> Answer<v1::ReleaseTablesReply> {
        no()
    }
}

struct Tier {
    background: Background,
    told: Arc<Told>,
    deleted: mpsc::UnboundedReceiver<Vec<SstId>>,
}

impl Tier {
    async fn start(to_fail: usize) -> Self {
        Self::busy(0, to_fail).await
    }

    async fn busy(to_refuse: usize, to_fail: usize) -> Self {
        let env = Env::real();
        let (deletes, deleted) = mpsc::unbounded_channel();
        let (to_refuse, to_fail) = (AtomicUsize::new(to_refuse), AtomicUsize::new(to_fail));
        let told = Arc::new(Told { to_fail, to_refuse, compactions: Mutex::default(), deleted: deletes });
        let mut sstable = Vec::new();
        for id in 1..=SERVERS {
            let listener = env.net.bind("127.0.0.1:0".into(), Door::Members).await.unwrap();
            sstable.push(Server::new(id, listener.local_addr().unwrap().to_string()));
            let service = SstService::new(Fake(told.clone()));
            let served = tonic::transport::Server::builder().add_service(service);
            tokio::spawn(served.serve_with_incoming(grpc_incoming(listener)));
        }
        let (id, memtable, lease) = ("test".into(), Vec::new(), Default::default());
        let cluster = ClusterConfig { id, partitions: 1, memtable, sstable, lease };
        let background = Background {
            runtime: tokio::runtime::Handle::current(),
            shared: ReplicaState::for_tests(&env),
            servers: Arc::new(SstServers::connect(&env, &cluster, NodeId(1))),
            events: mpsc::unbounded_channel().0,
            tuning: Tuning { sst_replicas: SERVERS as usize, ..Tuning::default() },
            attempts: Arc::new(AtomicU32::new(1)),
            orders: Arc::new(AtomicU64::new(1)),
            metrics: Arc::new(Metrics::register(&mut Registry::default())),
        };
        Self { background, told, deleted }
    }

    fn pending(&self) -> Vec<SstId> {
        self.background.shared.pending_ssts.lock().clone()
    }

    /// What so many attempts were given that came to nothing is deleted, on all servers, in whatever order.
    async fn deleted_of(&mut self, attempts: usize) -> BTreeSet<SstId> {
        let mut all = BTreeSet::new();
        for _ in 0..attempts * SERVERS as usize {
            all.extend(self.deleted.recv().await.unwrap());
        }
        all
    }
}

fn job() -> CompactionJob {
    let input = SstMeta { replicas: (1..=SERVERS).map(NodeId).collect(), file_bytes: 1000, ..sst(1) };
    CompactionJob {
        term: 3,
        epoch: Epoch { term: 3, incarnation: 1 },
        table: TableId(1),
        options: Default::default(),
        inputs: vec![input],
        plan: LogPosition { term: 3, index: 9 },
        expired_by: Default::default(),
        origin: Origin {
            lineage: 7,
            name: "t".into(),
            generations: Generations::new(1, 1),
            range: KeyRange::all(),
        },
        drops_tombstones: true,
        cuts: Vec::new(),
        output_bytes: 1000,
    }
}

#[tokio::test]
async fn another_worker_uses_other_ids_since_the_first_may_still_write_what_it_was_told() {
    let mut tier = Tier::start(1).await;
    let outputs = run(&tier.background, &job()).await.unwrap();
    let asked = tier.told.compactions.lock().clone();
    let [first, second] = &asked[..] else { panic!("{asked:?}") };
    assert!(first.iter().all(|id| !second.contains(id)), "{asked:?}");
    assert_eq!((outputs.len(), outputs[0].id), (1, second[0]));
    assert_eq!(tier.pending(), [second[0]], "of the others nobody waits for anything");
    assert_eq!(tier.deleted_of(1).await, first.iter().copied().collect());
}

#[test]
fn there_are_ids_for_what_ends_for_its_bytes_and_for_what_ends_for_its_hashes() {
    let with = |records, filter_prefix, output_bytes| {
        let mut job = CompactionJob { output_bytes, ..job() };
        job.inputs[0].records = records;
        job.options.filter_prefix = filter_prefix;
        outputs_max(&job)
    };
    // A thousand bytes, four thousand if they were compressed.
    assert_eq!(with(0, 0, 0), 1);
    assert_eq!(with(0, 0, 1000), 4 + IDS_TO_SPARE);
    // A byte a record.
    assert_eq!(with(1000, 0, 1000), 4 + 64 + IDS_TO_SPARE);
    assert_eq!(with(500, 9, 1000), 4 + 64 + IDS_TO_SPARE);
    assert_eq!(with(1000, 0, 100), COMPACTION_OUTPUTS_MAX);
}

#[tokio::test]
async fn what_no_worker_has_made_is_given_up() {
    let mut tier = Tier::start(usize::MAX).await;
    assert!(run(&tier.background, &job()).await.unwrap_err().message.contains("too few sstable servers"));
    let asked = tier.told.compactions.lock().clone();
    let all: BTreeSet<SstId> = asked.iter().flatten().copied().collect();
    assert_eq!(asked.len(), SERVERS as usize);
    assert_eq!(all.len(), asked.iter().map(Vec::len).sum::<usize>(), "no id was given twice");
    assert_eq!(tier.pending(), []);
    assert_eq!(tier.deleted_of(asked.len()).await, all);
}

#[tokio::test]
async fn busy_servers_are_no_failure_and_ids_that_they_refused_are_forgotten() {
    let tier = Tier::busy(usize::MAX, 0).await;
    let busy = run(&tier.background, &job()).await.unwrap_err();
    assert_eq!(busy.kind, ErrorKind::Overloaded, "{busy}");
    assert!(busy.message.contains("server 1: others are running"), "{busy}");
    assert_eq!((tier.told.compactions.lock().len(), tier.pending()), (SERVERS as usize, vec![]));
    // Of one that has failed nobody knows; what was refused is nobody's.
    let mut tier = Tier::busy(1, usize::MAX).await;
    let failed = run(&tier.background, &job()).await.unwrap_err();
    assert_eq!(failed.kind, ErrorKind::Unavailable, "{failed}");
    let asked = tier.told.compactions.lock().clone();
    let failed: BTreeSet<SstId> = asked[1..].iter().flatten().copied().collect();
    assert_eq!(tier.deleted_of(asked.len() - 1).await, failed);
    assert_eq!(tier.pending(), []);
    assert!(tier.deleted.try_recv().is_err(), "nothing is deleted of what was refused");
}
