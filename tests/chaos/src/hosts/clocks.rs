//! Clocks that are off, within what the servers are told. The servers add the error themselves: no library can be put between a
//! static binary and its clocks. (Timers run as ever; what is compared with clocks is wrong.)

use std::path::{Path, PathBuf};

use sextant_common::error::Result;

use super::SERVICES;

/// What servers are told of their wall clocks, in microseconds.
const BOUND_US: i64 = 60_000;
/// How far they are off: no two servers agree.
const WALL_US: [i64; 8] = [54_000, -54_000, 20_000, -20_000, 40_000, -40_000, -50_000, 50_000];
/// How much faster monotonic clocks run, in parts per million; the configured bound is 500.
const DRIFT_PPM: [i64; 8] = [450, -450, 0, -200, 200, 450, -450, 450];

/// The compose file that gives the servers such clocks, in `dir`.
pub fn off(dir: &Path) -> Result<PathBuf> {
    let file = dir.join("compose.clocks.yaml");
    std::fs::write(&file, text())?;
    Ok(file)
}

fn text() -> String {
    let mut text = "services:\n".to_owned();
    for ((service, wall_us), drift_ppm) in SERVICES.iter().zip(WALL_US).zip(DRIFT_PPM) {
        text += &format!(
            "  {service}:\n    environment:\n      \
             SEXTANT_TEST_CLOCK: \"wall_us={wall_us},drift_ppm={drift_ppm}\"\n"
        );
        // Sstable servers grant and hold nothing.
        if !service.starts_with("sstable") {
            text += &format!(
                "      SEXTANT_CLOCK__SOURCE: fixed\n      SEXTANT_CLOCK__ERROR_US: \"{BOUND_US}\"\n"
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_clock_is_further_off_than_its_server_is_told() {
        assert!(WALL_US.iter().all(|us| us.abs() < BOUND_US));
        assert!(DRIFT_PPM.iter().all(|ppm| ppm.abs() < 500));
    }

    #[test]
    fn every_server_gets_a_wrong_clock_and_those_with_leases_a_bound() {
        let text = text();
        assert_eq!(text.matches("SEXTANT_TEST_CLOCK: ").count(), 8);
        assert_eq!(text.matches("ERROR_US: \"60000\"").count(), 5);
        let first =
            "  memtable-1:\n    environment:\n      SEXTANT_TEST_CLOCK: \"wall_us=54000,drift_ppm=450\"\n";
        assert!(text.contains(first), "{text}");
    }
}
