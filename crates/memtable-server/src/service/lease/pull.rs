//! A pull: what a holder has is heard, and answered with news and leases, at once or when there are any.

use std::sync::atomic::Ordering;
use std::time::Duration;

use sextant_common::error::Error;
use sextant_common::ids::{ManifestVersion, Serial};
use sextant_common::manifest::ManifestDigest;
use sextant_environment::clock::CLOCK_DISAGREEMENT_NS;
use sextant_environment::env::status_of;
use sextant_proto::v1;
use tonic::Status;

use super::{LeaseShell, holder_id};
use crate::command::ConfigurationRules;
use crate::lease::desk::{Answer, Position};
use crate::lease::grantor::HolderId;
use crate::lease::parking::park_for;
use crate::replica::Event;

/// bf-logs that one answer carries; a ring holds at most half as much again.
const REPLY_BYTES_MAX: usize = 8 * 1024 * 1024;

fn position(p: &v1::PartitionPosition) -> Position {
    Position {
        epoch: p.epoch.unwrap_or_default().into(),
        serial: Serial(p.serial),
        manifest: ManifestVersion(p.manifest_version),
        digest: p.takes_changes.then_some(ManifestDigest(p.manifest_digest)),
        has_filters: p.has_filters,
    }
}

impl LeaseShell {
    pub(super) async fn answer(&self, request: v1::PullRequest) -> Result<v1::PullReply, Status> {
        let holder = holder_id(&request.holder)?;
        if request.positions.len() > self.context.partitions.len() {
            // Each is answered, possibly with a manifest: a short request must not make a huge answer.
            return Err(status_of(Error::invalid("a pull names each partition once")));
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
            bytes += update.runs.iter().map(|run| run.hashes.len() + run.slots.len()).sum::<usize>();
            bytes += update.manifest.as_ref().map_or(0, prost::Message::encoded_len);
            bytes += update.manifest_news.as_ref().map_or(0, prost::Message::encoded_len);
            reply.updates.push(update);
        }
        let now_ns = clock.grantor_ns();
        // Too short, if anything: this task may have changed threads since the request arrived.
        reply.parked_ns = now_ns.saturating_sub(arrived_ns).saturating_sub(CLOCK_DISAGREEMENT_NS);
        reply.server_mono_ns = now_ns;
        Ok(reply)
    }

    fn park_for(&self, request: &v1::PullRequest) -> Duration {
        park_for(request.positions.iter().filter(|p| p.has_filters).map(|p| {
            let handle = self.context.partition(p.partition).ok();
            (p.lease_left_ns, handle.map_or(0, |h| h.shared.configuration.load().lease_ns()))
        }))
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
        let group_interval_ns = self.context.cluster.lease.group_interval_us * 1000;
        let offer = shared.offer(group_interval_ns).await;
        let grantable = offer.grantable.filter(|_| !no_leases);
        let position = position(p);
        let status = match shared.desk.answer(holder, &position, grantable, offer.now) {
            Answer::NotLeader => {
                update.leader = Some(shared.leader().into());
                v1::PartitionStatus::PartitionNotLeader
            }
            Answer::NotReady => v1::PartitionStatus::PartitionNotReady,
            Answer::NeedFilters { epoch } => {
                update.epoch = Some(epoch.into());
                v1::PartitionStatus::PartitionNeedFilters
            }
            Answer::News(news) => self.news_to_wire(shared, holder, &position, news, &mut update),
        };
        update.status = status.into();
        update
    }
}
