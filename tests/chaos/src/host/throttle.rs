//! A limit on what a server writes to its disk: cgroup v1's `blkio`.

use std::path::{Path, PathBuf};

use sextant_common::error::{Error, Result};

use super::shell;

const ROOT: &str = "/sys/fs/cgroup/blkio";

/// A control group for one server. Removed when dropped, if it is empty by then.
#[derive(Debug)]
pub struct Throttle {
    group: PathBuf,
    /// `major:minor` of the server's disk.
    device: String,
}

impl Throttle {
    /// `volume`: where the server's disk is mounted.
    pub async fn make(name: &str, volume: &Path) -> Result<Self> {
        let at = volume.to_string_lossy();
        let device = shell::run(&["findmnt", "--noheadings", "--output", "MAJ:MIN", "--target", &at]).await?;
        let group = Path::new(ROOT).join(format!("sextant-chaos-{}-{name}", random_name()));
        std::fs::create_dir(&group)?;
        Ok(Self { group, device: device.trim().to_owned() })
    }

    /// Bytes per second; 0: no limit.
    pub fn limit(&self, bytes: u64) -> Result<()> {
        let line = format!("{} {bytes}", self.device);
        std::fs::write(self.group.join("blkio.throttle.write_bps_device"), line)?;
        Ok(())
    }

    /// A process, with all its threads, is limited from now on.
    pub fn add(&self, pid: u32) -> Result<()> {
        std::fs::write(self.group.join("cgroup.procs"), pid.to_string())?;
        Ok(())
    }

    /// A process is free again.
    pub fn release(&self, pid: u32) -> Result<()> {
        std::fs::write(Path::new(ROOT).join("cgroup.procs"), pid.to_string())?;
        Ok(())
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.group);
    }
}

/// Control groups are the machine's: two runs must not share one.
fn random_name() -> String {
    format!("{:08x}", sextant_environment::Env::real().rng.next_u64() as u32)
}

/// Whether a group can be made and limited here.
pub async fn probe(dir: &Path) -> Result<()> {
    if !Path::new(ROOT).join("blkio.throttle.write_bps_device").exists() {
        return Err(Error::unavailable(format!("{ROOT}: no cgroup v1 controller")));
    }
    let volume = super::volume::Volume::make(&dir.join("probe-throttle"), 16).await?;
    let used = async {
        let throttle = Throttle::make("probe", volume.path()).await?;
        throttle.limit(1 << 20)
    }
    .await;
    volume.remove().await?;
    used
}
