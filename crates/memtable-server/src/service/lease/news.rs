//! News and leases, as they travel.

use bytes::Bytes;
use prost::Message as _;
use sextant_common::manifest::{News, Versions};
use sextant_proto::convert::manifest_change::news as news_of;
use sextant_proto::v1;
use sextant_rules::probe::ProbeEvent;

use super::{CHANGES_BYTES_MAX, LeaseShell};
use crate::lease::desk::{News as LeaseNews, Position};
use crate::lease::grantor::HolderId;
use crate::lease::ring::Run;
use crate::replica::ReplicaState;

/// A whole manifest travels along if it has at most so many bytes; else on a stream of its own.
const WHOLE_BYTES_MAX: usize = 64 * 1024;

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
        position: &Position,
        news: LeaseNews,
        update: &mut v1::PartitionUpdate,
    ) -> v1::PartitionStatus {
        update.epoch = Some(news.epoch.into());
        update.serial_from = news.from.0;
        update.serial_to = news.to.0;
        update.runs = news.runs.into_iter().map(run_to_wire).collect();
        update.published_tick = shared.published_tick_in(news.epoch.term).0;
        if let Some(versions) = news.manifest {
            self.tell_of_manifest(shared, &versions, position, update);
        }
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

    /// Changes for who takes them, if there are any for it; else the whole, or word that there is one to be fetched.
    fn tell_of_manifest(
        &self,
        shared: &ReplicaState,
        versions: &Versions,
        position: &Position,
        update: &mut v1::PartitionUpdate,
    ) {
        let metrics = &self.context.metrics;
        if position.digest.is_some() {
            let news = news_of(versions, position.manifest, position.digest, CHANGES_BYTES_MAX);
            metrics.manifest_changes.inc_by(news.changes.len() as u64);
            let is_told = !news.changes.is_empty();
            update.manifest_news = Some(news);
            if is_told {
                return;
            }
            // (Whoever has nothing yet means nothing by it: a partition that was rebuilt has tables from its first version on.)
            if position.manifest.0 > 0 && versions.news(position.manifest, position.digest) == News::Differs {
                metrics.manifest_mismatches.inc();
                let (partition, version) = (shared.id, position.manifest);
                tracing::error!(%partition, %version, "a p-node means another manifest by this version: it gets the whole");
                self.context.env.tell(|| ProbeEvent::ManifestDiffers { partition, version });
            }
        }
        let whole = v1::Manifest::from(versions.newest.as_ref());
        if position.digest.is_none() || whole.encoded_len() <= WHOLE_BYTES_MAX {
            metrics.whole_manifests.inc();
            update.manifest = Some(whole);
        }
    }
}
