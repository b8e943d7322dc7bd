//! A directory, or where it would be made: whose it is, and on what.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::Space;
use crate::commands::doctor::report::Finding;

pub struct Place {
    /// The directory itself, or the nearest one around it that exists.
    pub there: PathBuf,
    is_missing: bool,
    owner: Option<u32>,
    is_directory: bool,
    pub is_writable: bool,
    pub space: Option<Space>,
    file_system: u64,
}

/// A kind of file system, by the number that `statfs` has for it.
struct Kind {
    magic: u64,
    name: &'static str,
    /// Why a server's data should not be there.
    but: Option<&'static str>,
}

const MEMORY: Option<&str> = Some("it is gone when the machine stops");
const FAR: Option<&str> = Some("over a network: each fsync is a journey, and may hang");
const CONTAINER: Option<&str> = Some("a container's own layer: it goes with the container");

const KINDS: [Kind; 14] = [
    Kind { magic: 0xEF53, name: "ext4", but: None },
    Kind { magic: 0x5846_5342, name: "xfs", but: None },
    Kind { magic: 0x9123_683E, name: "btrfs", but: None },
    Kind { magic: 0x2FC1_2FC1, name: "zfs", but: None },
    Kind { magic: 0xF2F5_2010, name: "f2fs", but: None },
    Kind { magic: 0xCA45_1A4E, name: "bcachefs", but: None },
    Kind { magic: 0x0102_1994, name: "tmpfs", but: MEMORY },
    Kind { magic: 0x8584_58F6, name: "ramfs", but: MEMORY },
    Kind { magic: 0x794C_7630, name: "overlayfs", but: CONTAINER },
    Kind { magic: 0x6969, name: "nfs", but: FAR },
    Kind { magic: 0xFF53_4D42, name: "cifs", but: FAR },
    Kind { magic: 0xFE53_4D42, name: "smb", but: FAR },
    Kind { magic: 0x0102_1997, name: "9p", but: FAR },
    Kind { magic: 0x6573_5546, name: "fuse", but: Some("it is a program that says when a write is durable") },
];

impl Place {
    pub fn of(dir: &Path) -> Self {
        let around = dir.ancestors().find(|dir| dir.exists()).unwrap_or(Path::new("."));
        let around = if around.as_os_str().is_empty() { Path::new(".") } else { around };
        let metadata = std::fs::metadata(around).ok();
        let (file_system, space) = measure(around).map_or((0, None), |(kind, space)| (kind, Some(space)));
        Self {
            there: around.to_owned(),
            is_missing: !dir.exists(),
            owner: metadata.as_ref().map(MetadataExt::uid),
            is_directory: metadata.is_some_and(|metadata| metadata.is_dir()),
            is_writable: is_writable(around),
            space,
            file_system,
        }
    }

    pub fn judge(&self) -> Finding {
        let there = self.there.display();
        let kind = KINDS.iter().find(|kind| kind.magic == self.file_system);
        let name =
            kind.map_or_else(|| format!("file system {:#x}", self.file_system), |kind| kind.name.into());
        let what = match self.is_missing {
            true => format!("it can be made in {there}; {name}"),
            false => {
                format!("user {} owns it; {name}", self.owner.map_or("?".into(), |owner| owner.to_string()))
            }
        };
        match kind.and_then(|kind| kind.but) {
            _ if !self.is_directory => Finding::bad(format!("{there} is no directory")),
            _ if !self.is_writable && self.is_missing => Finding::bad(format!(
                "it does not exist, and user {} may not make it in {there}: run this as the servers' user, or as root",
                user()
            )),
            _ if !self.is_writable => Finding::bad(format!(
                "{what}, and user {} may not write there: run this as the servers' user, or as root",
                user()
            )),
            Some(but) => Finding::warning(format!("{what}: {but}")),
            None => Finding::ok(what),
        }
    }
}

fn user() -> u32 {
    // SAFETY: it has no preconditions.
    unsafe { libc::geteuid() }
}

fn is_writable(dir: &Path) -> bool {
    let Ok(path) = CString::new(dir.as_os_str().as_bytes()) else { return false };
    // SAFETY: `path` is a string that ends with 0, and lives.
    unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::W_OK | libc::X_OK, libc::AT_EACCESS) == 0 }
}

/// The kind of the file system, and how much of it is left for this user.
fn measure(dir: &Path) -> Option<(u64, Space)> {
    let path = CString::new(dir.as_os_str().as_bytes()).ok()?;
    // SAFETY: all zeroes is a valid `statfs`.
    let mut said: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `path` is a string that ends with 0, and `said` is valid for writing.
    if unsafe { libc::statfs(path.as_ptr(), &mut said) } != 0 {
        return None;
    }
    let block_bytes = said.f_bsize as u64;
    let space = Space {
        free_bytes: said.f_bavail.saturating_mul(block_bytes),
        total_bytes: said.f_blocks.saturating_mul(block_bytes),
        free_inodes: said.f_ffree,
        total_inodes: said.f_files,
    };
    // Some are negative where they have 32 bits.
    Some((said.f_type as u64 & u64::from(u32::MAX), space))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::report::Verdict::{Bad, Ok, Warning};

    fn good() -> Place {
        Place {
            there: "/var/lib/sextant".into(),
            is_missing: false,
            owner: Some(998),
            is_directory: true,
            is_writable: true,
            space: None,
            file_system: 0xEF53,
        }
    }

    #[test]
    fn a_directory_has_to_be_writable_and_to_stay() {
        let cases = [
            (good(), Ok, "user 998 owns it; ext4"),
            (Place { is_missing: true, ..good() }, Ok, "it can be made in /var/lib/sextant; ext4"),
            (Place { file_system: 7, ..good() }, Ok, "file system 0x7"),
            (Place { file_system: 0x0102_1994, ..good() }, Warning, "gone when the machine stops"),
            (Place { file_system: 0x6969, ..good() }, Warning, "over a network"),
            (Place { is_writable: false, ..good() }, Bad, "may not write there"),
            (Place { is_writable: false, is_missing: true, ..good() }, Bad, "may not make it"),
            (Place { is_directory: false, ..good() }, Bad, "/var/lib/sextant is no directory"),
        ];
        for (place, verdict, why) in cases {
            let found = place.judge();
            assert!(found.verdict == verdict && found.why.contains(why), "{found:?}");
        }
    }

    #[test]
    fn what_is_missing_is_looked_for_around_it() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::of(&dir.path().join("a/b"));
        assert_eq!((place.there.as_path(), place.is_missing), (dir.path(), true));
        assert!(place.space.is_some_and(|space| space.total_bytes > 0));
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert_eq!(Place::of(&file).judge().verdict, Bad);
        assert_eq!(Place::of(Path::new("nowhere")).there, Path::new("."));
    }
}
