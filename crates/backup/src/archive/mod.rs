//! The log after backups, archived: with it a backup can be restored as of a later time.
//!
//! Owns the [`segment`]s (bytes and names: docs/formats/backup.md) and how far they reach ([`reached`]), what follows what
//! ([`coverage`]), to which times that leads ([`reach`]), and the command that writes them ([`follow`], by way of a [`gather`]er). Does not own which entries of a log had an
//! effect: that the replicas say.
//!
//! Invariant: what is said to be covered stays so. Everything up to that time is in segments that follow one another from the backup's
//! position on, by term and index; what is archived later has a later time.

mod clocks;
pub mod coverage;
pub mod follow;
mod gather;
pub mod reach;
pub mod reached;
pub mod segment;
mod start;
pub mod store;
pub mod verify;

pub use coverage::{Coverage, End};
pub use segment::Name;

/// So far clocks may differ: a time that is later than the clock here by more is none.
const AHEAD_MS_MAX: u64 = 60_000;

/// A time as it is read and written everywhere.
pub fn time_text(ms: u64) -> String {
    let time = i64::try_from(ms).ok().and_then(chrono::DateTime::from_timestamp_millis).unwrap_or_default();
    time.format("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()
}

/// None: there was nothing that had a time.
pub(crate) fn time_text_if_any(ms: u64) -> Option<String> {
    (ms > 0).then(|| time_text(ms))
}

/// The other way; what is finer than a millisecond is cut off.
pub fn time_of(text: &str) -> sextant_common::Result<u64> {
    let bad = |why: String| {
        sextant_common::Error::invalid(format!("{text:?} is no time like 2026-11-25T20:00:00Z: {why}"))
    };
    let time = chrono::DateTime::parse_from_rfc3339(text).map_err(|e| bad(e.to_string()))?;
    u64::try_from(time.timestamp_millis()).map_err(|_| bad("it is before 1970".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_they_are_written_with_or_without_fractions_and_zones() {
        for ms in [0, 1_795_000_000_123] {
            assert_eq!(time_of(&time_text(ms)).unwrap(), ms);
        }
        assert_eq!(time_text(1_795_000_000_123), "2026-11-18T11:06:40.123Z");
        assert_eq!(time_of("2026-11-18T12:06:40.1239+01:00").unwrap(), 1_795_000_000_123);
        assert_eq!(time_of("2026-11-18T11:06:40Z").unwrap(), 1_795_000_000_000);
        for bad in ["", "yesterday", "2026-11-18", "2026-11-18T11:06:40", "1960-01-01T00:00:00Z"] {
            time_of(bad).unwrap_err();
        }
    }
}
