//! Which orders of leaders are too old to be obeyed.
//!
//! A table may move from one server to another and back, and a leader that was deposed goes on for a while with what it knew: its
//! order to release a copy may come when its successor counts on that copy. So this server remembers, for each partition (and lineage
//! of it: one that is founded anew counts terms from the first again), the newest order to copy a table and the newest question for what there is; older orders to release are refused. (Nothing else
//! needs this: a table that no manifest names is never named again.)
//!
//! Invariant: what was ordered is remembered, over restarts, before it is done. A question whose term is known is remembered in memory
//! only: orders of one leader do not outlive its connection, nor that the process.
//!
//! The file: `FENCES`, JSON, in the data directory. Format 1 knew of no lineages, nor do older servers: what is of lineage 0 is
//! compared with all.

use std::collections::BTreeMap;

use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use sextant_common::error::{Error, Result};
use sextant_common::ids::PartitionId;
use sextant_common::sstable::OrderNumber;

use crate::data_dir::{DataDir, check_format};

const FORMAT: u32 = 2;

#[derive(Debug, Default, Serialize, Deserialize)]
struct File {
    format: u32,
    fences: Vec<Fence>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Fence {
    partition: u32,
    #[serde(default)]
    lineage: u64,
    term: u64,
    number: u64,
}

/// By partition and lineage. (Partitions are not founded often: there are few.)
type Known = BTreeMap<(PartitionId, u64), OrderNumber>;

#[derive(Debug)]
pub(super) struct Fences {
    known: RwLock<Known>,
    /// What the file says. Held while it is written.
    written: Mutex<Known>,
}

impl Fences {
    pub fn read(dir: &DataDir) -> Result<Self> {
        let known = match dir.read_fences()? {
            None => Known::new(),
            Some(text) => {
                check_format("FENCES", &text, FORMAT)?;
                parse(&text).map_err(|e| {
                    Error::corrupt(format!(
                        "FENCES cannot be read: {e}. Once no earlier leader of a partition is alive any more, it may be removed"
                    ))
                })?
            }
        };
        Ok(Self { known: RwLock::new(known.clone()), written: Mutex::new(known) })
    }

    /// Whether an order of this number is not to be obeyed any more.
    pub fn forbid(&self, partition: PartitionId, order: OrderNumber) -> bool {
        let rank = |order: &OrderNumber| (order.term, order.number);
        let is_of_it = |lineage: u64| lineage == order.lineage || lineage == 0 || order.lineage == 0;
        let known = self.known.read();
        let mut of_partition = known.range((partition, 0)..=(partition, u64::MAX));
        of_partition.any(|((_, lineage), newest)| is_of_it(*lineage) && rank(&order) < rank(newest))
    }

    /// An order is about to be carried out. Durable when it returns.
    pub fn ordered(&self, dir: &DataDir, partition: PartitionId, order: OrderNumber) -> Result<()> {
        self.raise(partition, order);
        self.write(dir, partition, order)
    }

    /// Whether a question has to be made durable ([`Fences::ordered`]): its leader is new here. Remembered in any case.
    pub fn asked(&self, partition: PartitionId, order: OrderNumber) -> bool {
        self.raise(partition, order)
    }

    /// Whether the term is news.
    fn raise(&self, partition: PartitionId, order: OrderNumber) -> bool {
        let mut known = self.known.write();
        let newest = known.entry((partition, order.lineage)).or_default();
        let is_new = order.term > newest.term;
        *newest = order.max(*newest);
        is_new
    }

    fn write(&self, dir: &DataDir, partition: PartitionId, order: OrderNumber) -> Result<()> {
        let mut written = self.written.lock();
        if written.get(&(partition, order.lineage)).is_some_and(|newest| order <= *newest) {
            return Ok(());
        }
        // All that is known: others need not write then.
        let known = self.known.read().clone();
        let fence = |((partition, lineage), order): (&(PartitionId, u64), &OrderNumber)| Fence {
            partition: partition.0,
            lineage: *lineage,
            term: order.term,
            number: order.number,
        };
        let file = File { format: FORMAT, fences: known.iter().map(fence).collect() };
        let text = serde_json::to_vec(&file).map_err(|e| Error::internal(e.to_string()))?;
        dir.write_fences(&text)?;
        *written = known;
        Ok(())
    }
}

fn parse(text: &[u8]) -> Result<Known, String> {
    let file: File = serde_json::from_slice(text).map_err(|e| e.to_string())?;
    if !(1..=FORMAT).contains(&file.format) {
        return Err(format!("it has format {}", file.format));
    }
    let known = |Fence { partition, lineage, term, number }: Fence| {
        ((PartitionId(partition), lineage), OrderNumber { lineage, term, number })
    };
    Ok(file.fences.into_iter().map(known).collect())
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use sextant_common::error::ErrorKind;
    use sextant_common::ids::NodeId;
    use sextant_simulated::FaultyVfs;

    use super::*;

    const P: PartitionId = PartitionId(1);

    fn order(term: u64, number: u64) -> OrderNumber {
        of(7, term, number)
    }

    fn of(lineage: u64, term: u64, number: u64) -> OrderNumber {
        OrderNumber { lineage, term, number }
    }

    fn open(vfs: &FaultyVfs) -> DataDir {
        DataDir::open(Arc::new(vfs.clone()), Path::new("/data"), "a", 4, NodeId(1)).unwrap()
    }

    #[test]
    fn what_was_ordered_is_remembered_over_a_restart() {
        let vfs = FaultyVfs::new(1);
        let dir = open(&vfs);
        let fences = Fences::read(&dir).unwrap();
        assert!(!fences.forbid(P, order(0, 0)));
        fences.ordered(&dir, P, order(3, 7)).unwrap();
        fences.ordered(&dir, P, order(2, 9)).unwrap();
        drop(dir);
        let fences = Fences::read(&open(&vfs)).unwrap();
        assert!(fences.forbid(P, order(3, 6)) && fences.forbid(P, order(2, 99)));
        assert!(!fences.forbid(P, order(3, 7)) && !fences.forbid(P, order(4, 0)));
        assert!(!fences.forbid(PartitionId(2), order(1, 1)), "another one's leaders have other terms");
    }

    #[test]
    fn a_question_of_a_newer_leader_fences_older_ones() {
        let vfs = FaultyVfs::new(1);
        let dir = open(&vfs);
        let fences = Fences::read(&dir).unwrap();
        assert!(fences.asked(P, order(5, 1)), "to be written down");
        fences.ordered(&dir, P, order(5, 1)).unwrap();
        assert!(!fences.asked(P, order(5, 2)) && !fences.asked(P, order(4, 8)));
        assert!(fences.forbid(P, order(4, 8)) && fences.forbid(P, order(5, 1)));
        drop(dir);
        let fences = Fences::read(&open(&vfs)).unwrap();
        assert!(fences.forbid(P, order(4, 8)) && !fences.forbid(P, order(5, 1)));
    }

    #[test]
    fn a_partition_that_is_founded_anew_counts_its_terms_from_the_first() {
        let vfs = FaultyVfs::new(1);
        let dir = open(&vfs);
        let fences = Fences::read(&dir).unwrap();
        fences.ordered(&dir, P, of(7, 90, 1)).unwrap();
        fences.ordered(&dir, P, of(8, 1, 5)).unwrap();
        for _ in 0..2 {
            let fences = Fences::read(&dir).unwrap();
            assert!(!fences.forbid(P, of(8, 1, 5)) && fences.forbid(P, of(8, 1, 4)));
            assert!(fences.forbid(P, of(7, 89, 9)));
            assert!(fences.forbid(P, of(0, 89, 9)), "an older server's: it may be of either");
        }
    }

    #[test]
    fn a_file_without_lineages_counts_for_all() {
        let vfs = FaultyVfs::new(1);
        let dir = open(&vfs);
        dir.write_fences(br#"{"format":1,"fences":[{"partition":1,"term":5,"number":2}]}"#).unwrap();
        let fences = Fences::read(&dir).unwrap();
        assert!(fences.forbid(P, of(7, 5, 1)) && fences.forbid(P, of(0, 4, 9)));
        assert!(!fences.forbid(P, of(7, 5, 2)));
        fences.ordered(&dir, P, of(7, 6, 1)).unwrap();
        let fences = Fences::read(&dir).unwrap();
        assert!(fences.forbid(P, of(0, 4, 9)) && fences.forbid(P, of(7, 5, 9)));
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let vfs = FaultyVfs::new(1);
        let dir = open(&vfs);
        for text in ["", "{}", r#"{"format":0,"fences":[]}"#] {
            dir.write_fences(text.as_bytes()).unwrap();
            let error = Fences::read(&dir).unwrap_err();
            assert!(error.kind == ErrorKind::Corrupt && error.message.contains("FENCES"), "{error}");
        }
    }

    #[test]
    fn nobody_is_told_to_remove_the_file_of_a_newer_version() {
        let vfs = FaultyVfs::new(1);
        let dir = open(&vfs);
        for text in [r#"{"format":3,"fences":[]}"#, r#"{"format":4,"by_lineage":{}}"#] {
            dir.write_fences(text.as_bytes()).unwrap();
            let error = Fences::read(&dir).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Outdated, "{error}");
            assert!(
                error.message.contains("FENCES has format") && !error.message.contains("remove"),
                "{error}"
            );
        }
    }
}
