//! Leases: pulls (a long poll that serves all partitions), whole filters, releases.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use sextant_common::clock::CLOCK_DISAGREEMENT_NS;
use sextant_common::config::LeaseMode;
use sextant_common::env::{PausePoint, ProbeEvent};
use sextant_common::error::Error;
use sextant_common::ids::{ManifestVersion, Serial};
use sextant_common::mutant::{self, Mutant};
use sextant_proto::v1;
use sextant_proto::v1::lease_server::Lease;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::Context;
use crate::command::configuration::mode_to_wire;
use crate::lease::desk::{Answer, Position};
use crate::lease::grantor::HolderId;
use crate::replica::{Event, FilterSet, ReplicaState};

/// Size of a message with filter bytes.
const CHUNK_BYTES: usize = 256 * 1024;
/// bf-logs that one answer carries; a ring holds at most half as much again.
const REPLY_BYTES_MAX: usize = 8 * 1024 * 1024;
/// A worker that does not hand out filters for so long is not serving.
const FILTERS_TIMEOUT: Duration = Duration::from_secs(2);
/// A parked pull without any lease to keep is answered after this time.
const PARK_MAX: Duration = Duration::from_millis(100);

type Replies<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[derive(Clone)]
pub struct LeaseShell {
    pub context: Arc<Context>,
}

fn holder_id(bytes: &[u8]) -> Result<HolderId, Status> {
    bytes.try_into().map_err(|_| Error::invalid("a holder's id has 16 bytes").into())
}

fn position(p: &v1::PartitionPosition) -> Position {
    Position {
        epoch: p.epoch.unwrap_or_default().into(),
        serial: Serial(p.serial),
        manifest: ManifestVersion(p.manifest_version),
        has_filters: p.has_filters,
    }
}

impl LeaseShell {
    /// The lease that can be granted: (term, length); None: none. To be counted from a time that was taken *before*: a process
    /// that is paused in between must not grant what it no longer has.
    fn grantable(&self, shared: &ReplicaState) -> Option<(u64, u64)> {
        let configuration = shared.configuration.load();
        let term = shared.desk.epoch()?.term;
        let left = shared.lease.left_ns(term, self.context.env.clock.holder_ns());
        // Both ends' drift: the holder's clock and ours; and the threads on which our own two clocks are read.
        let safe = left
            .saturating_sub(left * 2 * configuration.drift_ppm / 1_000_000)
            .saturating_sub(CLOCK_DISAGREEMENT_NS);
        let wanted = match configuration.mode {
            LeaseMode::Ack => configuration.lease_ns(),
            LeaseMode::Timed => {
                self.context.cluster.lease.group_interval_us * 1000 + shared.log_write_lower_bound_ns()
            }
        };
        let granted = if mutant::active(Mutant::LeaseOutlivesLeadership) { wanted } else { wanted.min(safe) };
        (safe > 0).then_some((term, granted))
    }

    async fn pull(&self, request: v1::PullRequest) -> Result<v1::PullReply, Status> {
        let holder = holder_id(&request.holder)?;
        if request.positions.len() > self.context.partitions.len() {
            // Each is answered, possibly with a manifest: a short request must not make a huge answer.
            return Err(Error::invalid("a pull names each partition once").into());
        }
        let clock = &self.context.env.clock;
        let arrived_ns = clock.grantor_ns();
        let mut heard = false;
        let park = self.park_for(&request);
        let deadline = tokio::time::sleep(park);
        tokio::pin!(deadline);
        loop {
            // Registered before looking, so that no news is missed in between.
            let news = self.context.news.notified();
            tokio::pin!(news);
            news.as_mut().enable();
            let mut any = request.no_wait || request.positions.is_empty();
            for p in &request.positions {
                let Ok(handle) = self.context.partition(p.partition) else { continue };
                let shared = &handle.shared;
                let told = shared.desk.hear(holder, &position(p), shared.now());
                // A partition that is led elsewhere is no news to a holder that knows.
                any |= told.news && (p.has_filters || shared.serving_term.load(Ordering::Relaxed) != 0);
                if told.wake_worker && !heard && !shared.ack_signalled.swap(true, Ordering::AcqRel) {
                    let _ = handle.events.send(Event::Acknowledged);
                }
            }
            heard = true;
            if any {
                break;
            }
            tokio::select! {
                () = &mut news => {}
                () = &mut deadline => break,
            }
        }
        self.context.metrics.pulls.inc();
        let mut reply =
            v1::PullReply { pull: request.pull, server_boot: self.context.boot, ..Default::default() };
        let mut bytes = 0;
        for p in &request.positions {
            if bytes > REPLY_BYTES_MAX {
                // The rest comes with the next pull; nothing is granted for what is not sent.
                let status = v1::PartitionStatus::PartitionNotReady.into();
                let update = v1::PartitionUpdate { partition: p.partition, status, ..Default::default() };
                reply.updates.push(update);
                continue;
            }
            let update = self.update(holder, p, request.no_leases).await;
            bytes += update.runs.iter().map(|run| run.hashes.len()).sum::<usize>();
            reply.updates.push(update);
        }
        let now_ns = clock.grantor_ns();
        // Too short, if anything: this task may have changed threads since the request arrived.
        reply.parked_ns = now_ns.saturating_sub(arrived_ns).saturating_sub(CLOCK_DISAGREEMENT_NS);
        reply.server_mono_ns = now_ns;
        Ok(reply)
    }

    /// A pull is answered at the latest when one of the holder's leases is past half its life.
    fn park_for(&self, request: &v1::PullRequest) -> Duration {
        let until_half = request.positions.iter().filter(|p| p.has_filters).map(|p| {
            let handle = self.context.partition(p.partition).ok();
            let lease_ns = handle.map_or(0, |h| h.shared.configuration.load().lease_ns());
            Duration::from_nanos(p.lease_left_ns.saturating_sub(lease_ns / 2))
        });
        until_half.min().unwrap_or(PARK_MAX).min(PARK_MAX)
    }

    async fn update(
        &self,
        holder: HolderId,
        p: &v1::PartitionPosition,
        no_leases: bool,
    ) -> v1::PartitionUpdate {
        let mut update = v1::PartitionUpdate { partition: p.partition, ..Default::default() };
        let Ok(handle) = self.context.partition(p.partition) else {
            update.status = v1::PartitionStatus::PartitionNotLeader.into();
            return update;
        };
        let shared = &handle.shared;
        let (mut now, early) = (shared.now(), self.grantable(shared));
        self.context.env.pause_point(PausePoint::LeaseTimed).await;
        let mut grantable = self.grantable(shared);
        if mutant::active(Mutant::LeaseTimedLate) {
            (now, grantable) = (shared.now(), early);
        }
        let grantable = grantable.filter(|_| !no_leases);
        let status = match shared.desk.answer(holder, &position(p), grantable, now) {
            Answer::NotLeader => {
                update.leader = Some(shared.leader().into());
                v1::PartitionStatus::PartitionNotLeader
            }
            Answer::NotReady => v1::PartitionStatus::PartitionNotReady,
            Answer::NeedFilters { epoch } => {
                update.epoch = Some(epoch.into());
                v1::PartitionStatus::PartitionNeedFilters
            }
            Answer::News(news) => {
                update.epoch = Some(news.epoch.into());
                update.serial_from = news.from.0;
                update.serial_to = news.to.0;
                update.runs = news
                    .runs
                    .into_iter()
                    .map(|run| {
                        let bytes: Vec<u8> = run.hashes.iter().flat_map(|h| h.to_le_bytes()).collect();
                        v1::BfRun {
                            table: run.table.0,
                            generation: run.generation.0,
                            freeze: run.freeze,
                            hashes: Bytes::from(bytes),
                        }
                    })
                    .collect();
                update.manifest = news.manifest.map(|m| m.as_ref().into());
                update.lease = news.lease.map(|l| {
                    self.context.metrics.leases.inc();
                    self.context.env.tell(|| ProbeEvent::LeaseGranted {
                        partition: shared.id,
                        node: shared.node,
                        epoch: news.epoch,
                        holder,
                        serial: news.to,
                    });
                    v1::LeaseGrant {
                        manifest_version: l.manifest.0,
                        expiry_mono_ns: l.expiry_mono_ns,
                        expiry_wall_ns: l.expiry_wall_ns,
                        drift_ppm: shared.configuration.load().drift_ppm,
                        mode: mode_to_wire(l.mode).into(),
                    }
                });
                if news.throttled {
                    v1::PartitionStatus::PartitionThrottled
                } else {
                    v1::PartitionStatus::PartitionOk
                }
            }
        };
        update.status = status.into();
        update
    }
}

#[tonic::async_trait]
impl Lease for LeaseShell {
    type PullStream = Replies<v1::PullReply>;
    type FetchFiltersStream = Replies<v1::FilterChunk>;

    async fn pull(
        &self,
        request: Request<Streaming<v1::PullRequest>>,
    ) -> Result<Response<Self::PullStream>, Status> {
        let this = self.clone();
        let mut shutdown = self.context.shutdown.clone();
        let mut requests = request.into_inner();
        let (out, replies) = mpsc::channel(1);
        tokio::spawn(async move {
            loop {
                let message = tokio::select! {
                    message = requests.next() => message,
                    () = shutdown.wait() => return,
                    () = out.closed() => return,
                };
                let Some(Ok(message)) = message else { return };
                // A holder that is gone is granted nothing more.
                let answer = tokio::select! {
                    answer = LeaseShell::pull(&this, message) => answer,
                    () = out.closed() => return,
                };
                let failed = answer.is_err();
                if out.send(answer).await.is_err() || failed {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(replies))))
    }

    async fn fetch_filters(
        &self,
        request: Request<v1::FetchFiltersRequest>,
    ) -> Result<Response<Self::FetchFiltersStream>, Status> {
        let request = request.into_inner();
        holder_id(&request.holder)?;
        let handle = self.context.partition(request.partition)?;
        let (done, filters) = oneshot::channel();
        let _ = handle.events.send(Event::Filters(done));
        let set = tokio::time::timeout(FILTERS_TIMEOUT, filters).await.ok().and_then(Result::ok).flatten();
        let Some(set) = set else {
            let header = v1::FilterHeader {
                status: v1::PartitionStatus::PartitionNotReady.into(),
                leader: Some(handle.shared.leader().into()),
                ..Default::default()
            };
            let chunk = v1::FilterChunk { header: Some(header), data: Bytes::new() };
            return Ok(Response::new(Box::pin(tokio_stream::once(Ok(chunk)))));
        };
        self.context.metrics.whole_filters.inc();
        Ok(Response::new(Box::pin(tokio_stream::iter(chunks(set)))))
    }

    async fn release(
        &self,
        request: Request<v1::ReleaseRequest>,
    ) -> Result<Response<v1::ReleaseReply>, Status> {
        let holder = holder_id(&request.into_inner().holder)?;
        for handle in self.context.partitions.values() {
            handle.shared.desk.release(holder);
            let _ = handle.events.send(Event::Acknowledged);
        }
        Ok(Response::new(v1::ReleaseReply {}))
    }
}

/// A header, then the filters' bytes in its order.
fn chunks(set: FilterSet) -> Vec<Result<v1::FilterChunk, Status>> {
    let header = v1::FilterHeader {
        status: v1::PartitionStatus::PartitionOk.into(),
        epoch: Some(set.epoch.into()),
        serial: set.serial.0,
        manifest: Some(set.manifest.as_ref().into()),
        filters: set
            .filters
            .iter()
            .map(|(table, generation, bytes)| v1::MemtableFilter {
                table: table.0,
                generation: generation.0,
                bytes: bytes.len() as u64,
            })
            .collect(),
        leader: None,
    };
    let mut out = vec![Ok(v1::FilterChunk { header: Some(header), data: Bytes::new() })];
    for (_, _, bytes) in set.filters {
        let mut bytes = Bytes::from(bytes);
        while !bytes.is_empty() {
            let data = bytes.split_to(bytes.len().min(CHUNK_BYTES));
            out.push(Ok(v1::FilterChunk { header: None, data }));
        }
    }
    out
}
