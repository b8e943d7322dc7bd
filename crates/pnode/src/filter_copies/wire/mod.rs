//! Messages of the service `Lease` <-> domain.

mod pulls;
mod whole;

use sextant_common::expiry::Tick;
use sextant_common::ids::{Epoch, Generation, ManifestVersion, PartitionId, Serial, TableId};
use sextant_common::manifest::{Manifest, ManifestDigest};
use sextant_common::{Error, Result};
use sextant_environment::Clock;
use sextant_proto::convert::configuration::lease_mode_from_wire;
use sextant_proto::convert::manifest_change::ToldOfManifest;
use sextant_proto::v1;

use super::copy::{Run, Update, UpdateStatus};
use crate::lease::Grant;
use crate::upstream::Hint;
use crate::view::PartitionView;

pub(super) use pulls::{PullStream, pull_once};
pub(super) use whole::{Wanted, WholeHeader, open_whole};

/// Where a holder stands in a partition.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    partition: PartitionId,
    epoch: Epoch,
    serial: Serial,
    manifest: ManifestVersion,
    digest: ManifestDigest,
    has_filters: bool,
    lease_left_ns: u64,
}

impl Position {
    /// What the holder uses of a partition, and so acknowledges.
    pub fn in_use(partition: PartitionId, view: &PartitionView, clock: &dyn Clock) -> Self {
        let copies = view.copies.as_ref();
        Self {
            partition,
            epoch: copies.map(|c| c.epoch).unwrap_or_default(),
            serial: copies.map_or(Serial(0), |c| c.serial),
            manifest: view.manifest.version,
            digest: view.manifest.digest,
            has_filters: copies.is_some(),
            lease_left_ns: view.lease.as_ref().map_or(0, |l| l.left_ns(clock)),
        }
    }

    /// Acknowledges nothing and asks only who leads.
    pub fn question(partition: PartitionId, view: &PartitionView) -> Self {
        Self {
            partition,
            epoch: Epoch::default(),
            serial: Serial(0),
            manifest: view.manifest.version,
            digest: view.manifest.digest,
            has_filters: false,
            lease_left_ns: 0,
        }
    }
}

/// One pull.
#[derive(Clone, Debug)]
pub(super) struct Pull {
    pub holder: bytes::Bytes,
    pub number: u64,
    pub positions: Vec<Position>,
    pub no_wait: bool,
    pub no_leases: bool,
}

/// What a server answered to a pull.
#[derive(Debug)]
pub(super) struct PullReply {
    pub number: u64,
    pub parked_ns: u64,
    pub server_mono_ns: u64,
    pub server_boot: u64,
    pub partitions: Vec<PartitionReply>,
}

/// Its part about a partition.
#[derive(Debug)]
pub(super) struct PartitionReply {
    pub partition: PartitionId,
    pub hint: Option<Hint>,
    /// An error: nobody can make sense of it.
    pub update: Result<Update>,
}

fn position(p: Position) -> v1::PartitionPosition {
    v1::PartitionPosition {
        partition: p.partition.0,
        epoch: Some(p.epoch.into()),
        serial: p.serial.0,
        manifest_version: p.manifest.0,
        manifest_digest: p.digest.0,
        takes_changes: true,
        has_filters: p.has_filters,
        lease_left_ns: p.lease_left_ns,
    }
}

fn request(pull: Pull) -> v1::PullRequest {
    v1::PullRequest {
        holder: pull.holder,
        pull: pull.number,
        positions: pull.positions.into_iter().map(position).collect(),
        no_wait: pull.no_wait,
        no_leases: pull.no_leases,
    }
}

pub(super) fn reply(reply: v1::PullReply) -> PullReply {
    let partitions = reply.updates.into_iter().map(|u| PartitionReply {
        partition: PartitionId(u.partition),
        hint: u.leader.as_ref().map(Hint::from),
        update: update(u),
    });
    PullReply {
        number: reply.pull,
        parked_ns: reply.parked_ns,
        server_mono_ns: reply.server_mono_ns,
        server_boot: reply.server_boot,
        partitions: partitions.collect(),
    }
}

fn status(status: i32) -> Result<UpdateStatus> {
    use v1::PartitionStatus as S;
    Ok(match S::try_from(status) {
        Ok(S::PartitionOk) => UpdateStatus::Ok,
        Ok(S::PartitionNotLeader) => UpdateStatus::NotLeader,
        Ok(S::PartitionNeedFilters) => UpdateStatus::NeedFilters,
        Ok(S::PartitionNotReady) => UpdateStatus::NotReady,
        Ok(S::PartitionThrottled) => UpdateStatus::Throttled,
        Err(_) => return Err(Error::internal(format!("unknown partition status {status}"))),
    })
}

fn update(update: v1::PartitionUpdate) -> Result<Update> {
    let status = status(update.status)?;
    let runs = update.runs.into_iter().map(run).collect::<Result<Vec<_>>>()?;
    Ok(Update {
        status,
        epoch: update.epoch.unwrap_or_default().into(),
        serial_from: Serial(update.serial_from),
        serial_to: Serial(update.serial_to),
        runs,
        manifest: manifest_of(PartitionId(update.partition), update.manifest)?,
        told: told_of(PartitionId(update.partition), update.manifest_news)?,
        grant: update.lease.map(grant).transpose()?,
        published: Tick(update.published_tick),
    })
}

fn grant(l: v1::LeaseGrant) -> Result<Grant> {
    let mode = lease_mode_from_wire(l.mode).map_err(|e| Error::internal(e.message))?;
    Ok(Grant {
        manifest_version: ManifestVersion(l.manifest_version),
        expiry_mono_ns: l.expiry_mono_ns,
        expiry_wall_ns: l.expiry_wall_ns,
        drift_ppm: l.drift_ppm,
        mode,
    })
}

/// The manifest of a message about `partition`, if there is one.
fn manifest_of(partition: PartitionId, manifest: Option<v1::Manifest>) -> Result<Option<Manifest>> {
    is_of(partition, manifest.map(Manifest::try_from).transpose()?)
}

fn is_of(partition: PartitionId, manifest: Option<Manifest>) -> Result<Option<Manifest>> {
    match manifest {
        Some(m) if m.partition != partition => {
            Err(Error::internal(format!("manifest of partition {} for partition {partition}", m.partition)))
        }
        other => Ok(other),
    }
}

/// The same of what is told of it.
fn told_of(partition: PartitionId, news: Option<v1::ManifestNews>) -> Result<Option<ToldOfManifest>> {
    let told = news.map(ToldOfManifest::try_from).transpose()?;
    match told {
        Some(told) if told.partition != partition => {
            Err(Error::internal(format!("news of partition {} for partition {partition}", told.partition)))
        }
        other => Ok(other),
    }
}

fn run(run: v1::BfRun) -> Result<Run> {
    let (table, generation) = (TableId(run.table), Generation(run.generation));
    if run.ticks > 0 {
        let is_plain = !run.freeze && run.hashes.is_empty() && run.slots.is_empty();
        let ticks = is_plain.then_some(Run::Ticks { newest: Tick(run.tick), entries: run.ticks });
        return ticks.ok_or_else(|| Error::internal("malformed run of ticks"));
    }
    Ok(match (run.freeze, run.hashes.len(), run.slots.len()) {
        (true, 0, 0) => Run::Freeze { table, generation },
        (false, hashes, 0) if hashes % 8 == 0 => Run::Hashes { table, generation, hashes: run.hashes },
        (false, 0, slots) if slots % 4 == 0 => Run::Invalidated { slots: run.slots },
        _ => return Err(Error::internal("malformed run of bf-log entries")),
    })
}
