//! What a memtable server remembers: its data directory, with its log in `log`. Emptied, copied, put back.
//!
//! A volume of its own stays mounted: what is in it goes.

use std::io;
use std::path::{Path, PathBuf};

/// Where the copy of a directory is kept: beside it.
pub fn copy_of(dir: &Path) -> PathBuf {
    dir.with_extension("copy")
}

/// Removes everything in a directory; one that is not there is empty.
pub fn empty(dir: &Path) -> io::Result<()> {
    for path in entries(dir)? {
        match path.is_dir() {
            true => std::fs::remove_dir_all(&path)?,
            false => std::fs::remove_file(&path)?,
        }
    }
    Ok(())
}

/// Removes the files in a directory, not what is in directories below it.
pub fn empty_files(dir: &Path) -> io::Result<()> {
    entries(dir)?.into_iter().filter(|path| !path.is_dir()).try_for_each(std::fs::remove_file)
}

/// Copies a directory while its server runs, as a snapshot of the volume would.
///
/// # Errors
/// Files that come and go meanwhile: there is no copy then.
pub fn copy(dir: &Path) -> io::Result<()> {
    let to = copy_of(dir);
    if to.exists() {
        std::fs::remove_dir_all(&to)?;
    }
    copy_tree(dir, &to).inspect_err(|_| {
        let _ = std::fs::remove_dir_all(&to);
    })
}

/// Replaces what is in a directory by its copy; without one it is emptied.
pub fn put_back(dir: &Path, copy: &Path) -> io::Result<()> {
    empty(dir)?;
    if copy.exists() { copy_tree(copy, dir) } else { Ok(()) }
}

fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::create_dir_all(to)?;
    for path in entries(from)? {
        let Some(name) = path.file_name() else { continue };
        match path.is_dir() {
            true if name == "lost+found" => {}
            true => copy_tree(&path, &to.join(name))?,
            false => std::fs::copy(&path, to.join(name)).map(|_| ())?,
        }
    }
    Ok(())
}

fn entries(dir: &Path) -> io::Result<Vec<PathBuf>> {
    match std::fs::read_dir(dir) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_emptied_and_put_back_as_it_was() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("memtable-1");
        let write = |name: &str, text: &str| std::fs::write(dir.join(name), text).unwrap();
        std::fs::create_dir_all(dir.join("log")).unwrap();
        write("snapshot", "old");
        write("log/segment", "old");
        copy(&dir).unwrap();
        write("snapshot", "new");
        empty_files(&dir).unwrap();
        assert!(!dir.join("snapshot").exists() && dir.join("log/segment").exists());
        empty(&dir.join("log")).unwrap();
        assert!(!dir.join("log/segment").exists());
        put_back(&dir, &copy_of(&dir)).unwrap();
        assert_eq!(std::fs::read_to_string(dir.join("snapshot")).unwrap(), "old");
        assert_eq!(std::fs::read_to_string(dir.join("log/segment")).unwrap(), "old");
        put_back(&dir, &place.path().join("nothing")).unwrap();
        assert!(entries(&dir).unwrap().is_empty());
    }
}
