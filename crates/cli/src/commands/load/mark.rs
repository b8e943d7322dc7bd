//! What is remembered beside the input of a load until all of it is committed, so that another attempt is the same load: a partition that
//! has it does not take it twice, and records expire when they were to.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};
use sextant_client::TableInfo;

use crate::exit::Failure;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mark {
    /// Of the load; not 0.
    pub id: u64,
    pub table: String,
    /// Which one of that name; marks of earlier versions do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table_id: Option<u32>,
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

/// Of this table: partitions know a load by its number only, and would take one for done that went into a table that was dropped.
pub fn read(at: &Path, table: &TableInfo, input: &str) -> Result<Mark, Failure> {
    let text = std::fs::read_to_string(at).map_err(|e| failed(at, format!("nothing to resume: {e}")))?;
    let mark: Mark = serde_json::from_str(&text).map_err(|e| failed(at, e))?;
    if mark.table != table.name {
        return Err(failed(at, format!("this load is of table {:?}", mark.table)));
    }
    if mark.table_id.is_some_and(|id| id != table.id.0) {
        let why = format!(
            "table {:?} was dropped and made anew since: it is another load, without --resume",
            table.name
        );
        return Err(failed(at, why));
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
    use sextant_common::ids::TableId;

    use super::*;

    fn table(id: u32, name: &str) -> TableInfo {
        TableInfo { id: TableId(id), name: name.into(), options: Default::default() }
    }

    #[test]
    fn a_load_is_resumed_with_the_same_table_and_an_unchanged_file() {
        let dir = tempfile::tempdir().unwrap();
        let input = dir.path().join("x.csv");
        std::fs::write(&input, "a,1\n").unwrap();
        let (at, of_input) = (path(&input), of_input(&input).unwrap());
        assert!(at.to_str().unwrap().ends_with("x.csv.sextant-load"));
        assert!(read(&at, &table(3, "t"), &of_input).is_err(), "nothing to resume");
        let mark = Mark { id: 7, table: "t".into(), table_id: Some(3), time_ms: 5, input: of_input.clone() };
        write(&at, &mark).unwrap();
        assert_eq!(read(&at, &table(3, "t"), &of_input).unwrap(), mark);
        assert!(read(&at, &table(3, "other"), &of_input).is_err());
        assert!(read(&at, &table(3, "t"), "1 bytes of 9").is_err());
        remove(&at).unwrap();
    }

    #[test]
    fn a_load_is_not_resumed_into_a_table_that_was_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("mark");
        let mark = Mark { id: 7, table: "t".into(), table_id: Some(3), time_ms: 5, input: "i".into() };
        write(&at, &mark).unwrap();
        let refused = format!("{:?}", read(&at, &table(4, "t"), "i").unwrap_err());
        assert!(refused.contains("dropped and made anew"), "{refused}");
        // (As a version wrote it that knew no ids.)
        std::fs::write(&at, r#"{"id":7,"table":"t","time_ms":5,"input":"i"}"#).unwrap();
        assert_eq!(read(&at, &table(4, "t"), "i").unwrap(), Mark { table_id: None, ..mark });
    }
}
