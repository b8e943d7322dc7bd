//! The kept inputs: `corpus/<target>/<name>` beside this crate's sources. Seeds are named `seed-<number>`; anything else was
//! found, and its name says by whom or why.

use std::io;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use crate::targets::Target;

/// The folder of a target's inputs.
pub fn dir(target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name)
}

/// The kept inputs and their files' names, in the order of the names.
///
/// # Errors
/// If the folder cannot be read.
pub fn kept(target: &Target) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut inputs = Vec::new();
    for entry in std::fs::read_dir(dir(target))? {
        let entry = entry?;
        inputs.push((entry.file_name().to_string_lossy().into_owned(), std::fs::read(entry.path())?));
    }
    inputs.sort();
    Ok(inputs)
}

/// Writes the seeds in the place of earlier ones.
///
/// # Errors
/// If the folder cannot be written.
pub fn write_seeds(target: &Target) -> io::Result<usize> {
    let dir = dir(target);
    std::fs::create_dir_all(&dir)?;
    for (name, _) in kept(target)?.iter().filter(|(name, _)| name.starts_with("seed-")) {
        std::fs::remove_file(dir.join(name))?;
    }
    let seeds = (target.seeds)();
    for (number, seed) in seeds.iter().enumerate() {
        std::fs::write(dir.join(format!("seed-{number:03}")), seed)?;
    }
    Ok(seeds.len())
}

/// Keeps an input that was found; the name of its file.
///
/// # Errors
/// If the folder cannot be written.
pub fn keep(target: &Target, input: &[u8]) -> io::Result<PathBuf> {
    let dir = dir(target);
    std::fs::create_dir_all(&dir)?;
    let path = dir.join(format!("found-{:016x}", xxh3_64(input)));
    std::fs::write(&path, input)?;
    Ok(path)
}
