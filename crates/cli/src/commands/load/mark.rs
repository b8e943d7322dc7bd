//! What is remembered beside the input of a load until all of it is committed, so that another attempt is the same load: a partition that
//! has it does not take it twice, and records expire when they were to.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use crate::exit::Failure;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mark {
    /// Of the load; not 0.
    pub id: u64,
    pub table: String,
    /// From when on lifetimes count, in milliseconds since 1970.
    pub time_ms: u64,
    /// Size and time of the file: another one is another load.
    pub input: String,
}

fn failed(at: &Path, e: impl std::fmt::Display) -> Failure {
    Failure::usage(format!("{}: {e}", at.display()))
}

pub fn path(input: &Path) -> PathBuf {
    let mut name = OsString::from(input);
    name.push(".sextant-load");
    name.into()
}

pub fn of_input(input: &Path) -> Result<String, Failure> {
    let metadata = std::fs::metadata(input).map_err(|e| failed(input, e))?;
    let changed = metadata.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    Ok(format!("{} bytes of {}", metadata.len(), changed.map_or(0, |at| at.as_millis())))
}

pub fn read(at: &Path, table: &str, input: &str) -> Result<Mark, Failure> {
    let text = std::fs::read_to_string(at).map_err(|e| failed(at, format!("nothing to resume: {e}")))?;
    let mark: Mark = serde_json::from_str(&text).map_err(|e| failed(at, e))?;
    if mark.table != table {
        return Err(failed(at, format!("this load is of table {:?}", mark.table)));
    }
    if mark.input != input {
        return Err(failed(at, "the input has changed since: it is another load, without --resume"));
    }
    Ok(mark)
}

pub fn write(at: &Path, mark: &Mark) -> Result<(), Failure> {
    let text = serde_json::to_string(mark).map_err(|e| failed(at, e))?;
    std::fs::write(at, text).map_err(|e| failed(at, e))
}

pub fn remove(at: &Path) -> Result<(), Failure> {
    std::fs::remove_file(at).map_err(|e| failed(at, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_resumed_with_the_same_table_and_an_unchanged_file() {
        let dir = tempfile::tempdir().unwrap();
        let input = dir.path().join("x.csv");
        std::fs::write(&input, "a,1\n").unwrap();
        let (at, of_input) = (path(&input), of_input(&input).unwrap());
        assert!(at.to_str().unwrap().ends_with("x.csv.sextant-load"));
        assert!(read(&at, "t", &of_input).is_err(), "nothing to resume");
        let mark = Mark { id: 7, table: "t".into(), time_ms: 5, input: of_input.clone() };
        write(&at, &mark).unwrap();
        assert_eq!(read(&at, "t", &of_input).unwrap(), mark);
        assert!(read(&at, "other", &of_input).is_err());
        assert!(read(&at, "t", "1 bytes of 9").is_err());
        remove(&at).unwrap();
    }
}
