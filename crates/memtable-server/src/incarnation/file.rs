//! The file INCARNATION, and what the files of all directories of a server say together.
//!
//! TOML: `format = 1`, `cluster`, `node`, `incarnation` (16 hex digits), `run` (how often the server was started with these
//! directories; 0: never yet), `partitions` (of the cluster; 0 or not there: not known yet), `lost` (in the data directory's file: partitions whose group this server has to be let into again),
//! `before` (in the data directory's file: the incarnation that the log devices may still have, while the server takes another one).

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_environment::vfs::{Vfs, read_file, write_file_atomically};

pub const NAME: &str = "INCARNATION";
const FORMAT: u32 = 1;
const HEAD: &str = "# Which life of which memtable server this directory belongs to. Written by Sextant; not to be copied or edited:\n\
                    # docs/operations.md, \"A memtable server that lost its memory\".\n";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    format: u32,
    cluster: String,
    node: u64,
    incarnation: String,
    run: u64,
    #[serde(default, skip_serializing_if = "is_unknown")]
    partitions: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    lost: Vec<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    before: Option<String>,
}

/// What all versions write.
#[derive(Deserialize)]
struct Format {
    format: u32,
}

fn is_unknown(partitions: &u32) -> bool {
    *partitions == 0
}

/// What a directory's file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub cluster: String,
    pub node: u64,
    pub incarnation: u64,
    pub run: u64,
    /// How many the cluster has: which keys this server's partitions hold. 0: written by a version that did not say.
    pub partitions: u32,
    pub lost: Vec<u32>,
    /// The server takes another incarnation: log devices that still have this one are to follow.
    pub before: Option<u64>,
}

impl Record {
    pub fn read(vfs: &dyn Vfs, dir: &Path) -> Result<Option<Record>> {
        let path = dir.join(NAME);
        if !vfs.exists(&path) {
            return Ok(None);
        }
        let bytes = read_file(vfs, &path).map_err(|e| named(&path, e))?;
        let damaged = |what: &str| Error::corrupt(format!("{}: {what}", path.display()));
        let text = String::from_utf8(bytes).map_err(|_| damaged("not text"))?;
        let outdated = |what: String| Error::new(ErrorKind::Outdated, format!("{}: {what}", path.display()));
        if let Ok(Format { format }) = toml::from_str(&text)
            && format != FORMAT
        {
            return Err(outdated(format!("format {format}: this program knows {FORMAT}")));
        }
        let text: Text = toml::from_str(&text).map_err(|e| match e.message() {
            what if what.starts_with("unknown field") => outdated(what.to_owned()),
            what => damaged(what),
        })?;
        let number = |text: &str| {
            let number = u64::from_str_radix(text, 16).ok().filter(|i| *i != 0);
            number.ok_or_else(|| damaged("an incarnation is not a number"))
        };
        Ok(Some(Record {
            cluster: text.cluster,
            node: text.node,
            incarnation: number(&text.incarnation)?,
            run: text.run,
            partitions: text.partitions,
            lost: text.lost,
            before: text.before.as_deref().map(number).transpose()?,
        }))
    }

    pub fn write(&self, vfs: &dyn Vfs, dir: &Path) -> Result<()> {
        let text = Text {
            format: FORMAT,
            cluster: self.cluster.clone(),
            node: self.node,
            incarnation: format!("{:016x}", self.incarnation),
            run: self.run,
            partitions: self.partitions,
            lost: self.lost.clone(),
            before: self.before.map(|before| format!("{before:016x}")),
        };
        let text = toml::to_string(&text).map_err(|e| Error::internal(format!("INCARNATION: {e}")))?;
        let path = dir.join(NAME);
        write_file_atomically(vfs, &path, format!("{HEAD}{text}").as_bytes()).map_err(|e| named(&path, e))
    }
}

fn named(path: &Path, e: std::io::Error) -> Error {
    let text = format!("{}: {e}", path.display());
    Error::new(Error::from(e).kind, text)
}

/// One directory of a server, as it was found.
#[derive(Clone, Debug)]
pub struct Found {
    pub dir: PathBuf,
    pub record: Option<Record>,
    /// It has records of a log, or a snapshot.
    pub holds: bool,
}

/// What a server's directories say together. The first is the data directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing was ever written here.
    Fresh,
    /// They belong together: the data directory's record. If it says `before`, the log devices' files have to be written first.
    Known(Record),
}

/// Why a server cannot go on with what is in its directories, and what to do.
fn untrusted<'a>(what: &str, dirs: impl IntoIterator<Item = &'a Path>) -> Error {
    Error::corrupt(with_what_to_do(what, dirs))
}

fn with_what_to_do<'a>(what: &str, dirs: impl IntoIterator<Item = &'a Path>) -> String {
    let all: Vec<String> = dirs.into_iter().map(|dir| dir.display().to_string()).collect();
    format!(
        "{what}. This server has no memory that can be trusted: if the others of its partitions are sound, empty all of its \
         directories ({}) and start it again; they let it in as a new one",
        all.join(", ")
    )
}

/// What was found while the directories of a server were read, with what to do if they are damaged.
pub fn with_advice(e: Error, dirs: &[PathBuf]) -> Error {
    match e.kind {
        ErrorKind::Corrupt => untrusted(&e.message, dirs.iter().map(|dir| &**dir)),
        _ => e,
    }
}

/// Whether the directories belong to `node` of `cluster`, and together. An error says what does not, and what to do.
pub fn judge(cluster: &str, node: u64, found: &[Found]) -> Result<Verdict> {
    let refuse = |what: String| Err(untrusted(&what, found.iter().map(|f| &*f.dir)));
    let Some((data, logs)) = found.split_first() else { return Err(Error::internal("no directories")) };
    for f in found {
        if let Some(r) = &f.record
            && (r.cluster != cluster || r.node != node)
        {
            return Err(Error::invalid(format!(
                "{} belongs to cluster {:?}, memtable server {}; this is cluster {cluster:?}, memtable server {node}: check the \
                 configuration",
                f.dir.display(),
                r.cluster,
                r.node
            )));
        }
    }
    // A first start that did not get far.
    if found.iter().all(|f| !f.holds && f.record.as_ref().is_none_or(|r| r.run == 0)) {
        return Ok(Verdict::Fresh);
    }
    if let Some(without) = found.iter().find(|f| f.record.is_none()) {
        let what = match found.iter().find(|f| f.record.is_some()) {
            Some(with) => format!(
                "{} is empty or foreign (it has no {NAME}), but {} is not: is it mounted? Otherwise one of them was lost or replaced",
                without.dir.display(),
                with.dir.display()
            ),
            None => format!("{} holds data, but no {NAME}", without.dir.display()),
        };
        if without.holds {
            return refuse(what);
        }
        // A disk that is not mounted yet looks like this: whoever started the server may start it again.
        return Err(Error::new(ErrorKind::Disk, with_what_to_do(&what, found.iter().map(|f| &*f.dir))));
    }
    let Some(first) = data.record.clone() else { return Err(Error::internal("no record")) };
    for f in logs {
        let Some(r) = &f.record else { continue };
        // Another incarnation is written to the data directory first, which says so until all log devices have it.
        if r.incarnation != first.incarnation && Some(r.incarnation) != first.before {
            return refuse(format!(
                "{} and {} are of different incarnations ({:016x} and {:016x})",
                data.dir.display(),
                f.dir.display(),
                first.incarnation,
                r.incarnation
            ));
        }
        if r.run > 0 && !f.holds {
            return refuse(format!("the log in {} is gone", f.dir.display()));
        }
        // A start writes the logs' files first, then the data directory's.
        let older = match r.run {
            run if run < first.run => Some((&f.dir, run, first.run)),
            run if run > first.run + 1 => Some((&data.dir, first.run, run)),
            _ => None,
        };
        if let Some((dir, run, of)) = older {
            return refuse(format!(
                "{} is an older copy: it was last used in start {run}, the others in start {of}",
                dir.display()
            ));
        }
    }
    Ok(Verdict::Known(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(incarnation: u64, run: u64) -> Option<Record> {
        let cluster = "prod".into();
        Some(Record { cluster, node: 2, incarnation, run, partitions: 4, lost: Vec::new(), before: None })
    }

    fn dir(name: &str, record: Option<Record>, holds: bool) -> Found {
        Found { dir: name.into(), record, holds }
    }

    fn verdict(data: (Option<Record>, bool), log: (Option<Record>, bool)) -> Result<Verdict> {
        judge("prod", 2, &[dir("data", data.0, data.1), dir("log", log.0, log.1)])
    }

    fn refusal(data: (Option<Record>, bool), log: (Option<Record>, bool)) -> String {
        verdict(data, log).unwrap_err().to_string()
    }

    #[test]
    fn a_first_start_may_be_interrupted_anywhere_before_the_log_was_used() {
        assert_eq!(verdict((None, false), (None, false)).unwrap(), Verdict::Fresh);
        assert_eq!(verdict((None, false), (record(7, 0), false)).unwrap(), Verdict::Fresh);
        assert_eq!(verdict((record(7, 0), false), (record(7, 0), false)).unwrap(), Verdict::Fresh);
        // The log was begun, the run was not counted yet.
        assert_eq!(
            verdict((record(7, 0), false), (record(7, 0), true)).unwrap(),
            Verdict::Known(record(7, 0).unwrap())
        );
        assert!(verdict((record(7, 0), false), (record(7, 1), true)).is_ok(), "half of the files counted");
    }

    #[test]
    fn what_belongs_together_is_known() {
        let known = verdict((record(7, 3), true), (record(7, 3), true)).unwrap();
        assert_eq!(known, Verdict::Known(record(7, 3).unwrap()));
        assert!(verdict((record(7, 3), true), (record(7, 4), true)).is_ok(), "a start that was interrupted");
    }

    #[test]
    fn a_directory_that_was_lost_is_refused_by_name() {
        let text = refusal((record(7, 3), true), (None, false));
        assert!(text.starts_with("log is empty or foreign") && text.contains("(data, log)"), "{text}");
        assert!(refusal((None, false), (record(7, 3), true)).starts_with("data is empty or foreign"));
        assert!(refusal((record(7, 3), true), (record(7, 3), false)).contains("the log in log is gone"));
        assert!(refusal((None, true), (None, true)).contains("no INCARNATION"), "of an earlier version");
        assert!(refusal((None, false), (record(7, 0), true)).contains("lost or replaced"));
    }

    #[test]
    fn an_older_copy_of_one_directory_is_refused() {
        assert!(refusal((record(7, 5), true), (record(7, 4), true)).starts_with("log is an older copy"));
        assert!(refusal((record(7, 2), true), (record(7, 4), true)).starts_with("data is an older copy"));
        assert!(refusal((record(7, 5), true), (record(8, 5), true)).contains("different incarnations"));
    }

    #[test]
    fn only_the_incarnation_before_is_taken_for_one_that_is_being_given_up() {
        let renewing = |run| Some(Record { before: Some(7), ..record(8, run).unwrap() });
        for log in [7, 8] {
            let known = verdict((renewing(3), true), (record(log, 3), true)).unwrap();
            assert_eq!(known, Verdict::Known(renewing(3).unwrap()));
        }
        assert!(refusal((renewing(3), true), (record(9, 3), true)).contains("different incarnations"));
        // The other way round it is an older copy of the data directory, and what it lost is not known.
        assert!(refusal((record(7, 3), true), (renewing(3), true)).contains("different incarnations"));
        // Whatever else does not belong together is refused as ever.
        assert!(refusal((renewing(3), true), (record(7, 2), true)).starts_with("log is an older copy"));
        assert!(refusal((renewing(3), true), (record(7, 3), false)).contains("the log in log is gone"));
        assert!(refusal((renewing(3), true), (None, false)).starts_with("log is empty or foreign"));
    }

    #[test]
    fn another_servers_directory_is_refused_without_the_advice_to_empty_it() {
        let other = Some(Record { node: 3, ..record(7, 1).unwrap() });
        let text = refusal((record(7, 1), true), (other, true));
        assert!(text.contains("memtable server 3") && !text.contains("empty all"), "{text}");
    }
}
