//! Writing to a directory for a moment, as a log does and as a flush does.

use std::io;
use std::path::Path;
use std::sync::Arc;

use sextant_environment::Env;
use sextant_environment::vfs::{OpenMode, VfsFile};

/// A small batch of the log.
pub const WRITE_BYTES: usize = 4096;
const WRITES: usize = 100;
/// A slow disk need not be measured any better.
const WRITES_NS_MAX: u64 = 5_000_000_000;
pub const SEQUENTIAL_BYTES: u64 = 64 << 20;
const PIECE_BYTES: usize = 1 << 20;

pub struct Trial {
    /// How long each write took, with its fdatasync.
    pub fsync_ns: Vec<u64>,
    /// None: not tried.
    pub sequential_ns: Option<u64>,
}

/// Blocks for as long as the disk does.
pub fn run(env: &Env, dir: &Path, with_sequential: bool) -> io::Result<Trial> {
    let file = nameless(env, dir)?;
    let start_ns = env.clock.holder_ns();
    let mut fsync_ns = Vec::new();
    while fsync_ns.len() < WRITES && env.clock.holder_ns() - start_ns < WRITES_NS_MAX {
        let before_ns = env.clock.holder_ns();
        file.write_all_at(&[0x5A; WRITE_BYTES], (fsync_ns.len() * WRITE_BYTES) as u64)?;
        file.sync_data()?;
        fsync_ns.push(env.clock.holder_ns() - before_ns);
    }
    let sequential_ns = match with_sequential {
        true => Some(sequential(env, &*file)?),
        false => None,
    };
    Ok(Trial { fsync_ns, sequential_ns })
}

fn sequential(env: &Env, file: &dyn VfsFile) -> io::Result<u64> {
    let piece: Vec<u8> = (0..PIECE_BYTES / 8).flat_map(|_| env.rng.next_u64().to_le_bytes()).collect();
    let before_ns = env.clock.holder_ns();
    for number in 0..SEQUENTIAL_BYTES / PIECE_BYTES as u64 {
        file.write_all_at(&piece, number * PIECE_BYTES as u64)?;
    }
    file.sync_data()?;
    Ok(env.clock.holder_ns() - before_ns)
}

/// A file that has lost its name as soon as it is there: it goes with this process, however that ends.
fn nameless(env: &Env, dir: &Path) -> io::Result<Arc<dyn VfsFile>> {
    let path = dir.join(format!(".sextant-doctor-{:016x}", env.rng.next_u64()));
    let file = env.vfs.open(&path, OpenMode::CreateNew)?;
    env.vfs.remove_file(&path)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_of_a_trial() {
        let dir = tempfile::tempdir().unwrap();
        let trial = run(&Env::real(), dir.path(), true).unwrap();
        assert!(!trial.fsync_ns.is_empty() && trial.sequential_ns.is_some_and(|ns| ns > 0));
        assert_eq!(run(&Env::real(), dir.path(), false).unwrap().sequential_ns, None);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(run(&Env::real(), &dir.path().join("nowhere"), false).is_err());
    }
}
