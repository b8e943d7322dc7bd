//! Messages of the service `Lease` <-> domain.

use sextant_common::ids::{Generation, ManifestVersion, PartitionId, Serial, TableId};
use sextant_common::manifest::Manifest;
use sextant_common::{Error, Result};
use sextant_environment::Clock;
use sextant_environment::config::LeaseMode;
use sextant_proto::v1;

use super::copy::{Run, RunKind, Update, UpdateStatus};
use crate::lease::Grant;
use crate::view::PartitionView;

/// What the holder uses of a partition, and so acknowledges.
pub(super) fn position(
    partition: PartitionId,
    view: &PartitionView,
    clock: &dyn Clock,
) -> v1::PartitionPosition {
    let copies = view.copies.as_ref();
    v1::PartitionPosition {
        partition: partition.0,
        epoch: Some(copies.map(|c| c.epoch).unwrap_or_default().into()),
        serial: copies.map_or(0, |c| c.serial.0),
        manifest_version: view.manifest.version.0,
        has_filters: copies.is_some(),
        lease_left_ns: view.lease.as_ref().map_or(0, |l| l.left_ns(clock)),
    }
}

/// A position that acknowledges nothing and asks only who leads.
pub(super) fn question(partition: PartitionId, view: &PartitionView) -> v1::PartitionPosition {
    v1::PartitionPosition {
        partition: partition.0,
        epoch: Some(v1::Epoch::default()),
        serial: 0,
        manifest_version: view.manifest.version.0,
        has_filters: false,
        lease_left_ns: 0,
    }
}

pub(super) fn status(status: i32) -> Result<UpdateStatus> {
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

pub(super) fn update(update: v1::PartitionUpdate) -> Result<Update> {
    let status = status(update.status)?;
    let runs = update.runs.into_iter().map(run).collect::<Result<Vec<_>>>()?;
    Ok(Update {
        status,
        epoch: update.epoch.unwrap_or_default().into(),
        serial_from: Serial(update.serial_from),
        serial_to: Serial(update.serial_to),
        runs,
        manifest: manifest_of(PartitionId(update.partition), update.manifest)?,
        grant: update.lease.map(grant).transpose()?,
    })
}

fn grant(l: v1::LeaseGrant) -> Result<Grant> {
    let mode = match v1::LeaseMode::try_from(l.mode) {
        Ok(v1::LeaseMode::Ack) => LeaseMode::Ack,
        Ok(v1::LeaseMode::Timed) => LeaseMode::Timed,
        Err(_) => return Err(Error::internal(format!("unknown lease mode {}", l.mode))),
    };
    Ok(Grant {
        manifest_version: ManifestVersion(l.manifest_version),
        expiry_mono_ns: l.expiry_mono_ns,
        expiry_wall_ns: l.expiry_wall_ns,
        drift_ppm: l.drift_ppm,
        mode,
    })
}

/// The manifest of a message about `partition`, if there is one.
pub(super) fn manifest_of(
    partition: PartitionId,
    manifest: Option<v1::Manifest>,
) -> Result<Option<Manifest>> {
    let manifest = manifest.map(Manifest::try_from).transpose()?;
    match manifest {
        Some(m) if m.partition != partition => {
            Err(Error::internal(format!("manifest of partition {} for partition {partition}", m.partition)))
        }
        other => Ok(other),
    }
}

fn run(run: v1::BfRun) -> Result<Run> {
    let kind = match (run.freeze, run.hashes.len()) {
        (true, 0) => RunKind::Freeze,
        (false, len) if len % 8 == 0 => RunKind::Hashes(run.hashes),
        _ => return Err(Error::internal("malformed run of bf-log entries")),
    };
    Ok(Run { table: TableId(run.table), generation: Generation(run.generation), kind })
}
