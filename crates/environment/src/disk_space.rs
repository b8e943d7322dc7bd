//! How full the disks are that a server writes to: asked of the system whenever somebody asks the server. A disk that hangs keeps
//! a thread, nobody else.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::env::{Env, Workers};

/// Whoever scrapes is not kept for longer, whatever a disk does.
const ANSWER_MAX: Duration = Duration::from_millis(100);

/// The directories of one server. What the system does not tell of is left out; while a disk hangs, what it said last is told.
pub struct DiskSpace {
    disks: Vec<Disk>,
    workers: Arc<dyn Workers>,
    ask: Ask,
    /// How long an answer is waited for.
    patience: Duration,
}

type Ask = fn(&Path) -> Option<Space>;

struct Disk {
    directory: PathBuf,
    /// Held by no one who asks the system.
    known: Arc<Mutex<Known>>,
}

#[derive(Debug, Default)]
struct Known {
    /// The system was asked, and has not answered.
    is_asked: bool,
    last: Option<Space>,
}

impl std::fmt::Debug for DiskSpace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.disks.iter().map(|disk| (&disk.directory, &disk.known))).finish()
    }
}

impl DiskSpace {
    /// `env`: its blocking threads are those that a hung disk keeps, one for each directory.
    pub fn register(env: &Env, directories: Vec<PathBuf>, registry: &mut Registry) {
        registry.register_collector(Box::new(Self::new(env, directories, space)));
    }

    fn new(env: &Env, directories: Vec<PathBuf>, ask: Ask) -> Self {
        let disk = |directory| Disk { directory, known: Arc::default() };
        Self {
            disks: directories.into_iter().map(disk).collect(),
            workers: env.workers.clone(),
            ask,
            patience: ANSWER_MAX,
        }
    }

    /// Asks for all of them, and waits for those that answer soon.
    fn measure(&self) -> Vec<(&Path, Space)> {
        let (answered, answers) = mpsc::channel();
        let mut waiting = 0;
        for disk in &self.disks {
            if std::mem::replace(&mut disk.known.lock().is_asked, true) {
                continue;
            }
            waiting += 1;
            let (ask, directory) = (self.ask, disk.directory.clone());
            let (known, answered) = (disk.known.clone(), answered.clone());
            self.workers.blocking(Box::new(move || {
                let last = ask(&directory);
                *known.lock() = Known { is_asked: false, last };
                // Whoever asked may have gone on.
                let _ = answered.send(());
            }));
        }
        for _ in 0..waiting {
            if answers.recv_timeout(self.patience).is_err() {
                break;
            }
        }
        let known = |disk: &Disk| disk.known.lock().last;
        self.disks.iter().filter_map(|disk| Some((disk.directory.as_path(), known(disk)?))).collect()
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
        let measured = self.measure();
        for (name, help, of) in families {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (directory, space) in &measured {
                // In a label some characters would have to be escaped.
                let shown = directory.display().to_string().replace(['"', '\\', '\n'], "_");
                let label = [("directory", shown)];
                ConstGauge::new(of(*space) as f64).encode(family.encode_family(&label)?)?;
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
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// However slow the machine is.
    const PATIENCE: Duration = Duration::from_secs(60);

    fn text(registry: &Registry) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
        text
    }

    #[tokio::test]
    async fn a_directory_that_is_there_has_a_disk_and_others_are_left_out() {
        let directory = tempfile::tempdir().unwrap();
        let of = space(directory.path()).unwrap();
        assert!(of.size_bytes > 0 && of.free_bytes <= of.size_bytes, "{of:?}");
        let mut registry = Registry::default();
        let missing = directory.path().join("missing");
        let directories = vec![directory.path().to_owned(), missing.clone()];
        let mut disks = DiskSpace::new(&Env::real(), directories, space);
        disks.patience = PATIENCE;
        registry.register_collector(Box::new(disks));
        let text = text(&registry);
        let shown = format!("sextant_disk_free_bytes{{directory=\"{}\"}} ", directory.path().display());
        assert!(text.contains(&shown), "{text}");
        assert!(!text.contains(&missing.display().to_string()), "{text}");
    }

    /// What `hung` does: the first time it answers, the second time only when the test lets it.
    static TIMES: AtomicUsize = AtomicUsize::new(0);
    static HELD: Mutex<()> = Mutex::new(());

    fn hung(_: &Path) -> Option<Space> {
        let times = TIMES.fetch_add(1, Ordering::SeqCst);
        let _held = (times == 1).then(|| HELD.lock());
        Some(Space { free_bytes: times as u64, size_bytes: 10 })
    }

    #[tokio::test]
    async fn while_a_disk_hangs_what_it_said_last_is_told_and_it_is_not_asked_again() {
        let mut disks = DiskSpace::new(&Env::real(), vec!["/data".into()], hung);
        let free =
            |disks: &DiskSpace| disks.measure().iter().map(|(_, space)| space.free_bytes).collect::<Vec<_>>();
        disks.patience = PATIENCE;
        assert_eq!(free(&disks), [0]);
        let held = HELD.lock();
        disks.patience = ANSWER_MAX;
        assert_eq!([free(&disks), free(&disks), free(&disks)], [[0], [0], [0]]);
        disks.patience = PATIENCE;
        drop(held);
        while disks.disks[0].known.lock().is_asked {
            tokio::task::yield_now().await;
        }
        assert_eq!(TIMES.load(Ordering::SeqCst), 2, "a hung disk was asked again");
        assert_eq!(free(&disks), [2]);
    }
}
