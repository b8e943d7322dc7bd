//! Unix sockets as configuration has them: a path, and who may come in by it.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sextant_common::error::{Error, Result};

/// What an address begins with that is a path.
const UNIX: &str = "unix:";
/// The kernel takes 107 bytes on Linux, 103 on macOS; a socket has a longer name for a moment before it is at its path.
const PATH_BYTES_MAX: usize = 99;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnixListen {
    pub path: PathBuf,
    pub mode: FileMode,
}

impl UnixListen {
    /// `Invalid` if nobody can listen there.
    pub fn check(&self, field: &str) -> Result<()> {
        check_unix(field, &self.path)
    }
}

/// The permissions of a file, in octal as `chmod` has them: who may write to a socket may connect to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FileMode(pub u32);

/// Its owner only.
impl Default for FileMode {
    fn default() -> Self {
        Self(0o600)
    }
}

impl TryFrom<String> for FileMode {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let is_octal = (3..=4).contains(&text.len()) && text.bytes().all(|b| (b'0'..=b'7').contains(&b));
        let mode = u32::from_str_radix(&text, 8).ok().filter(|mode| is_octal && *mode <= 0o777);
        mode.map(Self).ok_or_else(|| format!("{text:?} is no mode of a file: \"0600\", \"0660\", \"0666\""))
    }
}

impl From<FileMode> for String {
    fn from(FileMode(mode): FileMode) -> Self {
        format!("{mode:04o}")
    }
}

/// The path of an address that is one.
pub fn unix_path(addr: &str) -> Option<&Path> {
    addr.strip_prefix(UNIX).map(Path::new)
}

pub(super) fn check_unix(field: &str, path: &Path) -> Result<()> {
    let bytes = path.as_os_str().as_bytes();
    let why = match bytes {
        [] => "no path".to_owned(),
        bytes if bytes.contains(&0) => "no path of a file".to_owned(),
        [.., b'/'] => "a directory, not a file".to_owned(),
        bytes if bytes.len() > PATH_BYTES_MAX => {
            format!(
                "{} bytes are too long for the path of a Unix socket: {PATH_BYTES_MAX} at most",
                bytes.len()
            )
        }
        _ => return Ok(()),
    };
    Err(Error::invalid(format!("{field}: {:?}: {why}", path.display().to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::check_reached_here;

    #[test]
    fn paths_are_addresses_on_this_machine_and_no_others() {
        assert_eq!(unix_path("unix:/run/s.sock"), Some(Path::new("/run/s.sock")));
        assert_eq!(unix_path("unix:s"), Some(Path::new("s")));
        assert_eq!(unix_path("127.0.0.1:1"), None);
        for good in ["unix:/run/s.sock", "unix:s", "a:1", "[::1]:1"] {
            check_reached_here("server", good).unwrap();
        }
        let long = format!("unix:/{}", "x".repeat(PATH_BYTES_MAX));
        for (bad, why) in [
            ("unix:", "no path"),
            ("unix:/run/", "a directory"),
            (&long, "100 bytes are too long"),
            ("unix:a\0", "no path"),
            ("unix", "host:port"),
            ("a:0", "host:port"),
        ] {
            let error = check_reached_here("server", bad).unwrap_err();
            assert!(error.message.starts_with("server: ") && error.message.contains(why), "{bad}: {error}");
        }
    }

    #[test]
    fn modes_are_octal() {
        let read = |text: &str| FileMode::try_from(text.to_owned());
        assert_eq!(read("0660"), Ok(FileMode(0o660)));
        assert_eq!(read("600"), Ok(FileMode::default()));
        assert_eq!(String::from(FileMode(0o66)), "0066");
        for bad in ["", "6", "0o660", "0680", "1777", "+660", "00660", "rw-"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
