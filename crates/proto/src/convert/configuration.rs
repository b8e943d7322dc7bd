//! A partition's replicated configuration, and changes of it.

use prost::Message;
use sextant_common::configuration::{Configuration, ConfigurationChange, LeaseMode, PartitionFormat};
use sextant_common::error::{Error, Result};
use sextant_common::ids::PartitionId;

use crate::v1;

impl From<LeaseMode> for v1::LeaseMode {
    fn from(mode: LeaseMode) -> Self {
        match mode {
            LeaseMode::Ack => v1::LeaseMode::Ack,
            LeaseMode::Timed => v1::LeaseMode::Timed,
        }
    }
}

/// Not prost's accessor: it takes what it does not know for the default.
pub fn lease_mode_from_wire(mode: i32) -> Result<LeaseMode> {
    match v1::LeaseMode::try_from(mode) {
        Ok(v1::LeaseMode::Ack) => Ok(LeaseMode::Ack),
        Ok(v1::LeaseMode::Timed) => Ok(LeaseMode::Timed),
        Err(_) => Err(Error::invalid(format!("unknown lease mode {mode}"))),
    }
}

impl From<&Configuration> for v1::PartitionConfiguration {
    fn from(c: &Configuration) -> Self {
        Self {
            revision: c.revision,
            lease_mode: v1::LeaseMode::from(c.mode).into(),
            lease_ms: c.lease_ms,
            leader_lease_ms: c.leader_lease_ms,
            drift_ppm: c.drift_ppm,
            memory_bytes: c.memory_bytes,
            lineage: c.lineage,
            left_out: c.left_out.iter().copied().collect(),
            draining: c.draining.iter().copied().collect(),
            format: c.format,
            format_open: c.format_open,
        }
    }
}

/// Whether its lengths make sense is for whoever counts with them to say.
impl TryFrom<v1::PartitionConfiguration> for Configuration {
    type Error = Error;

    fn try_from(m: v1::PartitionConfiguration) -> Result<Self> {
        Ok(Self {
            revision: m.revision,
            mode: lease_mode_from_wire(m.lease_mode)?,
            lease_ms: m.lease_ms,
            leader_lease_ms: m.leader_lease_ms,
            drift_ppm: m.drift_ppm,
            memory_bytes: m.memory_bytes,
            lineage: m.lineage,
            left_out: m.left_out.into_iter().collect(),
            draining: m.draining.into_iter().collect(),
            format: m.format,
            format_open: m.format_open,
        })
    }
}

/// As it is stored: two configurations with the same bytes are the same.
pub fn encode(configuration: &Configuration) -> Vec<u8> {
    v1::PartitionConfiguration::from(configuration).encode_to_vec()
}

/// Of all partitions.
impl From<&ConfigurationChange> for v1::ConfigureRequest {
    fn from(change: &ConfigurationChange) -> Self {
        Self {
            partitions: Vec::new(),
            lease_mode: change.mode.map(|mode| v1::LeaseMode::from(mode).into()),
            lease_ms: change.lease_ms,
            leader_lease_ms: change.leader_lease_ms,
            drift_ppm: change.drift_ppm,
            memory_bytes: change.memory_bytes,
            draining: change
                .draining
                .as_ref()
                .map(|nodes| v1::Draining { nodes: nodes.iter().copied().collect() }),
        }
    }
}

impl TryFrom<v1::ConfigureRequest> for ConfigurationChange {
    type Error = Error;

    fn try_from(m: v1::ConfigureRequest) -> Result<Self> {
        Ok(Self {
            mode: m.lease_mode.map(lease_mode_from_wire).transpose()?,
            lease_ms: m.lease_ms,
            leader_lease_ms: m.leader_lease_ms,
            drift_ppm: m.drift_ppm,
            memory_bytes: m.memory_bytes,
            draining: m.draining.map(|draining| draining.nodes.into_iter().collect()),
        })
    }
}

impl From<PartitionFormat> for v1::PartitionFormat {
    fn from(p: PartitionFormat) -> Self {
        let PartitionFormat { partition, format, possible, hindrances, refused } = p;
        Self { partition: partition.0, format, possible, hindrances, refused }
    }
}

impl From<v1::PartitionFormat> for PartitionFormat {
    fn from(p: v1::PartitionFormat) -> Self {
        let v1::PartitionFormat { partition, format, possible, hindrances, refused } = p;
        Self { partition: PartitionId(partition), format, possible, hindrances, refused }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_the_same_after_its_way() {
        let configuration = Configuration {
            revision: 7,
            mode: LeaseMode::Timed,
            lease_ms: 300,
            leader_lease_ms: 400,
            drift_ppm: 500,
            memory_bytes: 1 << 20,
            lineage: 9,
            left_out: [3, 4].into(),
            draining: [2].into(),
            format: 1,
            format_open: true,
        };
        let wire = v1::PartitionConfiguration::from(&configuration);
        assert_eq!(Configuration::try_from(wire.clone()).unwrap(), configuration);
        let unknown = v1::PartitionConfiguration { lease_mode: 2, ..wire };
        assert!(Configuration::try_from(unknown).unwrap_err().message.contains("lease mode 2"));
    }
}
