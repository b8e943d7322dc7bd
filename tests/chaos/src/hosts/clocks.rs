//! Clocks that are off, within what the servers are told: a library stands between a server and its clocks ([`crate::host::shim`]).
//!
//! The deployed binary cannot load one, since it is static, and no setting moves its clocks: so it takes another binary.

use std::path::{Path, PathBuf};

use sextant_common::error::Result;

use super::SERVICES;
use crate::host::shim;

/// What servers are told of their wall clocks, in microseconds.
const BOUND_US: i64 = 60_000;
/// How far they are off: no two servers agree.
const WALL_US: [i64; 8] = [54_000, -54_000, 20_000, -20_000, 40_000, -40_000, -50_000, 50_000];
/// How much faster monotonic clocks run, in parts per million; the configured bound is 500.
const DRIFT_PPM: [i64; 8] = [450, -450, 0, -200, 200, 450, -450, 450];

/// The compose file that gives the servers such clocks. `dir`: where the library is made.
pub async fn off(dir: &Path) -> Result<PathBuf> {
    shim::probe(dir).await?;
    let file = dir.join("compose.clocks.yaml");
    let library = dir.join("libshim.so");
    std::fs::write(&file, text(&library.to_string_lossy()))?;
    Ok(file)
}

fn text(library: &str) -> String {
    let mut text = "services:\n".to_owned();
    for ((service, wall_us), drift_ppm) in SERVICES.iter().zip(WALL_US).zip(DRIFT_PPM) {
        text += &format!(
            "  {service}:\n    volumes: [\"{library}:/libshim.so:ro\"]\n    environment:\n      \
             LD_PRELOAD: /libshim.so\n      CHAOS_WALL_NS: \"{}\"\n      CHAOS_DRIFT_PPM: \"{drift_ppm}\"\n",
            wall_us * 1_000
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
    fn every_server_gets_the_library_and_those_with_leases_a_bound() {
        let text = text("/tmp/libshim.so");
        assert_eq!(text.matches("LD_PRELOAD: /libshim.so").count(), 8);
        assert_eq!(text.matches("ERROR_US: \"60000\"").count(), 5);
        assert!(
            text.contains("  memtable-1:\n    volumes: [\"/tmp/libshim.so:/libshim.so:ro\"]\n"),
            "{text}"
        );
    }
}
