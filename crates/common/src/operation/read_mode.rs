//! How a point read finds the tier.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// How a p-node finds the tier that holds a record. Every mode is linearizable; the slower two exist for measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ReadMode {
    /// Precise data access: the filters of both tiers.
    #[default]
    Pda,
    /// Filters of SSTables only: the memtables are always asked first.
    Bda,
    /// No filters: the memtables first, then every SSTable whose range holds the key.
    Nda,
}

impl ReadMode {
    pub const ALL: [ReadMode; 3] = [ReadMode::Pda, ReadMode::Bda, ReadMode::Nda];

    /// As it is written in options, metrics and reports.
    pub fn name(self) -> &'static str {
        match self {
            ReadMode::Pda => "pda",
            ReadMode::Bda => "bda",
            ReadMode::Nda => "nda",
        }
    }
}

impl fmt::Display for ReadMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ReadMode {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        ReadMode::ALL
            .into_iter()
            .find(|m| m.name() == s)
            .ok_or_else(|| Error::invalid(format!("unknown read mode {s:?}: pda, bda or nda")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_has_a_name_of_its_own() {
        for mode in ReadMode::ALL {
            assert_eq!(mode.name().parse::<ReadMode>().unwrap(), mode);
        }
        assert!("PDA".parse::<ReadMode>().is_err());
    }
}
