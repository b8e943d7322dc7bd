//! How full the disks are that a server writes to: asked of the system whenever somebody asks the server.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

/// The directories of one server. What the system does not tell of is left out.
#[derive(Debug)]
pub struct DiskSpace(Vec<PathBuf>);

impl DiskSpace {
    pub fn register(directories: Vec<PathBuf>, registry: &mut Registry) {
        registry.register_collector(Box::new(Self(directories)));
    }
}

impl Collector for DiskSpace {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        type Of = fn(Space) -> u64;
        let families: [(&str, &str, Of); 2] = [
            (
                "sextant_disk_free_bytes",
                "Bytes that this server may still write to a directory's disk",
                |s| s.free_bytes,
            ),
            ("sextant_disk_size_bytes", "Size of a directory's disk in bytes", |s| s.size_bytes),
        ];
        for (name, help, of) in families {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for directory in &self.0 {
                let Some(space) = space(directory) else { continue };
                // In a label some characters would have to be escaped.
                let shown = directory.display().to_string().replace(['"', '\\', '\n'], "_");
                let label = [("directory", shown)];
                ConstGauge::new(of(space) as f64).encode(family.encode_family(&label)?)?;
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
struct Space {
    free_bytes: u64,
    size_bytes: u64,
}

/// None: there is no such directory, or the system does not say.
fn space(directory: &Path) -> Option<Space> {
    let path = CString::new(directory.as_os_str().as_bytes()).ok()?;
    // SAFETY: an all-zero statvfs is valid, and statvfs only writes to it.
    let mut of: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: `path` ends with a zero byte, `of` is valid for writing.
    if unsafe { libc::statvfs(path.as_ptr(), &mut of) } != 0 {
        return None;
    }
    let bytes = |blocks: u64| blocks.saturating_mul(of.f_frsize);
    Some(Space { free_bytes: bytes(of.f_bavail), size_bytes: bytes(of.f_blocks) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_there_has_a_disk_and_others_are_left_out() {
        let directory = tempfile::tempdir().unwrap();
        let of = space(directory.path()).unwrap();
        assert!(of.size_bytes > 0 && of.free_bytes <= of.size_bytes, "{of:?}");
        let mut registry = Registry::default();
        let missing = directory.path().join("missing");
        DiskSpace::register(vec![directory.path().to_owned(), missing.clone()], &mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let shown = format!("sextant_disk_free_bytes{{directory=\"{}\"}} ", directory.path().display());
        assert!(text.contains(&shown), "{text}");
        assert!(!text.contains(&missing.display().to_string()), "{text}");
    }
}
