//! The library between servers and the kernel (`shim/shim.rs`): compiled by the run, told what to do through files.

use std::path::{Path, PathBuf};

use sextant_common::error::Result;

use super::shell;

const SOURCE: &str = include_str!("../../shim/shim.rs");
const LIBRARY: &str = "libshim.so";

/// What a server's fsyncs do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    Normal,
    /// EIO.
    Fail,
    /// Until told otherwise.
    Hang,
    /// Take so many milliseconds more.
    Slow(u64),
}

/// How far a server's clocks are off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skew {
    /// The wall clock, in nanoseconds.
    pub wall_ns: i64,
    /// Monotonic clocks, in parts per million.
    pub drift_ppm: i64,
}

/// The library, and one server's orders.
#[derive(Clone, Debug)]
pub struct Shim {
    library: PathBuf,
    orders: PathBuf,
}

impl Shim {
    /// `name`: of the server.
    pub fn new(dir: &Path, name: &str) -> Self {
        Self { library: dir.join(LIBRARY), orders: dir.join(format!("fsync-{name}")) }
    }

    /// Words that load the library into what follows them.
    pub fn wrap(&self, skew: Skew) -> Vec<String> {
        vec![
            "env".into(),
            format!("LD_PRELOAD={}", self.library.display()),
            format!("CHAOS_FSYNC={}", self.orders.display()),
            format!("CHAOS_WALL_NS={}", skew.wall_ns),
            format!("CHAOS_DRIFT_PPM={}", skew.drift_ppm),
        ]
    }

    pub fn order(&self, sync: Sync) -> Result<()> {
        let text = match sync {
            Sync::Normal => String::new(),
            Sync::Fail => "fail".into(),
            Sync::Hang => "hang".into(),
            Sync::Slow(ms) => format!("slow {ms}"),
        };
        // Replaced as a whole: a server never reads half an order.
        let new = self.orders.with_extension("new");
        std::fs::write(&new, text)?;
        std::fs::rename(&new, &self.orders)?;
        Ok(())
    }
}

/// Compiles the library and loads it into a program.
pub async fn probe(dir: &Path) -> Result<()> {
    let source = dir.join("shim.rs");
    std::fs::write(&source, SOURCE)?;
    let library = dir.join(LIBRARY);
    let compiler = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let (source, out) = (source.to_string_lossy(), library.to_string_lossy());
    let words = [&compiler, "--edition=2024", "--crate-type=cdylib", "-Copt-level=2", "-o", &out, &source];
    shell::run(&words).await?;
    let shim = Shim::new(dir, "probe");
    shim.order(Sync::Fail)?;
    let wrap = shim.wrap(Skew::default());
    let probe = dir.join("probe-file");
    let probe = probe.to_string_lossy();
    std::fs::write(&*probe, "x")?;
    let words: Vec<&str> = wrap.iter().map(String::as_str).chain(["sync", "--data", &probe]).collect();
    match shell::run(&words).await {
        Err(_) => Ok(()),
        Ok(_) => Err(sextant_common::Error::unavailable("a loaded library does not stand before the kernel")),
    }
}
