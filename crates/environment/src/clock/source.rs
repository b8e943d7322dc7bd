//! The configuration `[clock]`: where the bound on the wall clock's error comes from.

use serde::{Deserialize, Serialize};

/// `source = "unsynchronised"`, `"fixed"` (with `error_us`) or `"kernel"` (with `floor_us` and `cap_us`, both optional).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "ClockTable", into = "ClockTable")]
pub enum WallSource {
    /// No bound: leases rest on round trips alone. Always safe.
    #[default]
    Unsynchronised,
    /// The operator states a bound on the error, in microseconds.
    Fixed { error_us: u64 },
    /// The kernel's own estimate (`adjtimex`), but never less than `floor_us`; an estimate above `cap_us` counts as
    /// unsynchronised. Daemons that serve PTP tell the kernel an error of 0: with them a floor is needed.
    Kernel { floor_us: u64, cap_us: u64 },
}

/// Half a lease: with a worse clock the round trip is always the tighter bound.
const CAP_US: u64 = 150_000;

/// The table as it stands in a file. Flat, so that an error names a field.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ClockTable {
    source: Kind,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    floor_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cap_us: Option<u64>,
}

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    #[default]
    Unsynchronised,
    Fixed,
    Kernel,
}

impl TryFrom<ClockTable> for WallSource {
    type Error = String;

    fn try_from(table: ClockTable) -> Result<Self, String> {
        if table.error_us.is_some() && table.source != Kind::Fixed {
            return Err("error_us belongs to source = \"fixed\"".into());
        }
        if (table.floor_us.is_some() || table.cap_us.is_some()) && table.source != Kind::Kernel {
            return Err("floor_us and cap_us belong to source = \"kernel\"".into());
        }
        match table.source {
            Kind::Unsynchronised => Ok(WallSource::Unsynchronised),
            Kind::Fixed => match table.error_us {
                Some(error_us @ 1..) => Ok(WallSource::Fixed { error_us }),
                _ => Err("source = \"fixed\" needs error_us, 1 or more microseconds".into()),
            },
            Kind::Kernel => {
                let (floor_us, cap_us) = (table.floor_us.unwrap_or(0), table.cap_us.unwrap_or(CAP_US));
                if floor_us > cap_us {
                    return Err(format!("floor_us is {floor_us}: at most cap_us, which is {cap_us}"));
                }
                Ok(WallSource::Kernel { floor_us, cap_us })
            }
        }
    }
}

impl From<WallSource> for ClockTable {
    fn from(source: WallSource) -> Self {
        let table = ClockTable::default();
        match source {
            WallSource::Unsynchronised => table,
            WallSource::Fixed { error_us } => {
                ClockTable { source: Kind::Fixed, error_us: Some(error_us), ..table }
            }
            WallSource::Kernel { floor_us, cap_us } => {
                ClockTable { source: Kind::Kernel, floor_us: Some(floor_us), cap_us: Some(cap_us), ..table }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Serialize, Deserialize)]
    struct Config {
        #[serde(default)]
        clock: WallSource,
    }

    fn read(table: &str) -> Result<WallSource, String> {
        let text = format!("[clock]\n{table}");
        crate::config::parse::<Config>(&text, "s.toml", []).map(|c| c.clock).map_err(|e| e.to_string())
    }

    #[test]
    fn every_source_can_be_configured() {
        let kernel = |floor_us, cap_us| Ok(WallSource::Kernel { floor_us, cap_us });
        assert_eq!(read(""), Ok(WallSource::Unsynchronised));
        assert_eq!(read("source = 'unsynchronised'"), Ok(WallSource::Unsynchronised));
        assert_eq!(read("source = 'fixed'\nerror_us = 500"), Ok(WallSource::Fixed { error_us: 500 }));
        assert_eq!(read("source = 'kernel'"), kernel(0, CAP_US));
        assert_eq!(
            read("source = 'kernel'\nfloor_us = 50\ncap_us = 9"),
            read("source='kernel'\nfloor_us=50\ncap_us=9")
        );
        assert_eq!(read("source = 'kernel'\nfloor_us = 50\ncap_us = 900"), kernel(50, 900));
    }

    #[test]
    fn a_mistake_is_named() {
        for (table, expected) in [
            (
                "source = 'ntp'",
                "s.toml:2: clock.source: unknown variant `ntp`, expected one of `unsynchronised`",
            ),
            ("source = 'fixed'", "needs error_us"),
            ("source = 'fixed'\nerror_us = 0", "1 or more"),
            ("error_us = 5", "error_us belongs to source = \"fixed\""),
            ("source = 'fixed'\nerror_us = 5\nfloor_us = 1", "belong to source = \"kernel\""),
            ("source = 'kernel'\nfloor_us = 50\ncap_us = 9", "floor_us is 50: at most cap_us, which is 9"),
            ("source = 'kernel'\nfloor = 50", "s.toml:3: clock: unknown field `floor`"),
        ] {
            let error = read(table).unwrap_err();
            assert!(error.contains(expected), "{error:?} lacks {expected:?}");
        }
    }

    #[test]
    fn it_is_written_as_it_is_read() {
        for source in [
            WallSource::Unsynchronised,
            WallSource::Fixed { error_us: 3 },
            WallSource::Kernel { floor_us: 0, cap_us: 7 },
        ] {
            let json = serde_json::to_string(&source).unwrap();
            assert_eq!(serde_json::from_str::<WallSource>(&json).unwrap(), source, "{json}");
        }
    }
}
