//! Leases of a fake memtable server, and the bf-logs and filters that go with them.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use sextant_common::ids::Epoch;
use sextant_memtable_server::lease::ring::Run;
use sextant_proto::v1;
use sextant_proto::v1::lease_server::Lease;
use tonic::{Request, Response, Status, Streaming};

use super::fake_memtable::{Service, State};

impl Service {
    fn pull_update(&self, state: &mut State, at: &v1::PartitionPosition) -> (v1::PartitionUpdate, bool) {
        let mut update = v1::PartitionUpdate { partition: at.partition, ..Default::default() };
        let lease = state.lease;
        let hint = self.hint(state, at.partition);
        let Some(p) = state.partitions.get(&at.partition) else {
            update.status = v1::PartitionStatus::PartitionNotLeader as i32;
            update.leader = hint;
            return (update, true);
        };
        update.epoch = Some(p.epoch.into());
        if !at.has_filters || Epoch::from(at.epoch.unwrap_or_default()) != p.epoch || at.serial < p.log_start
        {
            update.status = v1::PartitionStatus::PartitionNeedFilters as i32;
            return (update, true);
        }
        update.published_tick = p.published.0;
        update.serial_from = at.serial;
        update.serial_to = p.serial();
        let new = p.log.iter().skip((at.serial - p.log_start) as usize);
        update.runs = new
            .map(|run| {
                let wire = v1::BfRun::default();
                match run {
                    Run::Bits { table, generation, hashes } => {
                        let hashes = hashes.iter().flat_map(|h| h.to_le_bytes()).collect();
                        v1::BfRun { table: table.0, generation: generation.0, hashes, ..wire }
                    }
                    Run::Freeze { table, generation } => {
                        v1::BfRun { table: table.0, generation: generation.0, freeze: true, ..wire }
                    }
                    Run::Invalidated { slots } => {
                        v1::BfRun { slots: slots.iter().flat_map(|s| s.to_le_bytes()).collect(), ..wire }
                    }
                    Run::Ticks { newest, entries } => v1::BfRun { tick: newest.0, ticks: *entries, ..wire },
                }
            })
            .collect();
        if p.manifest.version.0 > at.manifest_version {
            update.manifest = Some((&p.manifest).into());
        }
        let news = !update.runs.is_empty()
            || update.manifest.is_some()
            || at.lease_left_ns < lease.as_nanos() as u64 / 2;
        if !lease.is_zero() {
            update.lease = Some(v1::LeaseGrant {
                drift_ppm: 0,
                manifest_version: p.manifest.version.0,
                expiry_mono_ns: self.clock.grantor_ns() + lease.as_nanos() as u64,
                expiry_wall_ns: 0,
                mode: if state.timed { v1::LeaseMode::Timed } else { v1::LeaseMode::Ack }.into(),
            });
        }
        (update, news)
    }

    async fn pull(&self, request: v1::PullRequest) -> v1::PullReply {
        let arrived = self.clock.grantor_ns();
        {
            let mut state = self.state.lock();
            for at in request.positions.iter().filter(|p| p.has_filters) {
                let epoch = at.epoch.unwrap_or_default().into();
                state.positions.push((at.partition, epoch, at.serial, at.manifest_version));
            }
        }
        for round in 0.. {
            let news = self.news.notified();
            tokio::pin!(news);
            news.as_mut().enable();
            let mut updates = Vec::new();
            let mut any = request.no_wait || round > 0;
            let boot = {
                let mut state = self.state.lock();
                for at in &request.positions {
                    let (update, news) = self.pull_update(&mut state, at);
                    any |= news;
                    updates.push(update);
                }
                state.boot
            };
            if any {
                let now = self.clock.grantor_ns();
                return v1::PullReply {
                    pull: request.pull,
                    parked_ns: now - arrived,
                    server_mono_ns: now,
                    updates,
                    server_boot: boot,
                };
            }
            let _ = tokio::time::timeout(Duration::from_millis(100), news).await;
        }
        unreachable!("the second round answers")
    }
}

#[tonic::async_trait]
impl Lease for Service {
    type PullStream = BoxStream<'static, Result<v1::PullReply, Status>>;
    type FetchFiltersStream = BoxStream<'static, Result<v1::FilterChunk, Status>>;

    async fn pull(
        &self,
        request: Request<Streaming<v1::PullRequest>>,
    ) -> Result<Response<Self::PullStream>, Status> {
        let service = self.clone();
        let replies = request.into_inner().then(move |pull| {
            let service = service.clone();
            async move { Ok(Service::pull(&service, pull?).await) }
        });
        Ok(Response::new(replies.boxed()))
    }

    async fn fetch_filters(
        &self,
        request: Request<v1::FetchFiltersRequest>,
    ) -> Result<Response<Self::FetchFiltersStream>, Status> {
        let mut state = self.state.lock();
        state.whole_fetches += 1;
        let partition = request.into_inner().partition;
        let leader = self.hint(&state, partition);
        let mut chunks = Vec::new();
        match state.partitions.get(&partition) {
            None => {
                let status = v1::PartitionStatus::PartitionNotLeader as i32;
                let header = Some(v1::FilterHeader { status, leader, ..Default::default() });
                chunks.push(Ok(v1::FilterChunk { header, data: Bytes::new() }));
            }
            Some(p) => {
                let filters = p.filters();
                let header = v1::FilterHeader {
                    status: v1::PartitionStatus::PartitionOk as i32,
                    epoch: Some(p.epoch.into()),
                    serial: p.serial(),
                    manifest: Some((&p.manifest).into()),
                    // As an older server.
                    manifest_bytes: 0,
                    manifest_digest: 0,
                    manifest_news: None,
                    filters: filters
                        .iter()
                        .map(|(table, generation, bytes)| v1::MemtableFilter {
                            table: table.0,
                            generation: generation.0,
                            bytes: bytes.len() as u64,
                        })
                        .collect(),
                    leader: None,
                    registration_slots: p.slots.as_ref().map_or(0, |slots| slots.count() as u32),
                    tick: p.announced.0,
                };
                chunks.push(Ok(v1::FilterChunk { header: Some(header), data: Bytes::new() }));
                // Chunks need not end where filters do.
                let bytes: Vec<u8> = filters.into_iter().flat_map(|(_, _, b)| b).collect();
                let data = bytes.chunks(1000);
                chunks.extend(
                    data.map(|d| Ok(v1::FilterChunk { header: None, data: Bytes::copy_from_slice(d) })),
                );
            }
        }
        Ok(Response::new(futures::stream::iter(chunks).boxed()))
    }

    async fn release(
        &self,
        request: Request<v1::ReleaseRequest>,
    ) -> Result<Response<v1::ReleaseReply>, Status> {
        self.state.lock().releases.push(request.into_inner().holder);
        Ok(Response::new(v1::ReleaseReply {}))
    }
}
