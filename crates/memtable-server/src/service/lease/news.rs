//! News and leases, as they travel.

use bytes::Bytes;
use sextant_proto::v1;
use sextant_rules::probe::ProbeEvent;

use super::LeaseShell;
use crate::lease::desk::News;
use crate::lease::grantor::HolderId;
use crate::lease::ring::Run;
use crate::replica::ReplicaState;

fn run_to_wire(run: Run) -> v1::BfRun {
    let wire = v1::BfRun::default();
    match run {
        Run::Bits { table, generation, hashes } => {
            let bytes: Vec<u8> = hashes.iter().flat_map(|h| h.to_le_bytes()).collect();
            v1::BfRun { table: table.0, generation: generation.0, hashes: Bytes::from(bytes), ..wire }
        }
        Run::Freeze { table, generation } => {
            v1::BfRun { table: table.0, generation: generation.0, freeze: true, ..wire }
        }
        Run::Invalidated { slots } => {
            let bytes: Vec<u8> = slots.iter().flat_map(|slot| slot.to_le_bytes()).collect();
            v1::BfRun { slots: Bytes::from(bytes), ..wire }
        }
        Run::Ticks { newest, entries } => v1::BfRun { tick: newest.0, ticks: entries, ..wire },
    }
}

impl LeaseShell {
    /// Puts the news into the update of their partition.
    pub(super) fn news_to_wire(
        &self,
        shared: &ReplicaState,
        holder: HolderId,
        news: News,
        update: &mut v1::PartitionUpdate,
    ) -> v1::PartitionStatus {
        update.epoch = Some(news.epoch.into());
        update.serial_from = news.from.0;
        update.serial_to = news.to.0;
        update.runs = news.runs.into_iter().map(run_to_wire).collect();
        update.published_tick = shared.published_tick_in(news.epoch.term).0;
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
                mode: v1::LeaseMode::from(l.mode).into(),
            }
        });
        match news.throttled {
            true => v1::PartitionStatus::PartitionThrottled,
            false => v1::PartitionStatus::PartitionOk,
        }
    }
}
