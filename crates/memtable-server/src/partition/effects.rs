//! What an entry of the log did, for whoever keeps the log elsewhere: the records that it wrote, in the order of their seqs.

use sextant_common::archive::{LogGroup, LogWrites};
use sextant_common::error::Result;
use sextant_common::ids::{LogPosition, Seq};
use sextant_common::sstable::RecordVersion;

use super::ingest::Body;
use super::verdicts::Verdicts;
use crate::command::{Alteration, ChangeTable, Command, Group};

/// What a committed entry did to the records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    Nothing,
    Wrote(LogGroup),
    /// SSTables came from outside, or a table was dropped: who has only what was written does not know what there is.
    Unwritten,
}

/// Of a committed entry that the verdicts know of.
pub fn effect(at: LogPosition, body: &Body, verdicts: &Verdicts) -> Result<Effect> {
    let Body::Payload(payload) = body else { return Ok(Effect::Nothing) };
    if verdicts.is_ignored(at.index) {
        return Ok(Effect::Nothing);
    }
    Ok(match Command::decode(payload)? {
        Command::Group(group) => match written(at.index, group) {
            group if group.writes.is_empty() => Effect::Nothing,
            group => Effect::Wrote(group),
        },
        Command::Load(_) => Effect::Unwritten,
        Command::ChangeTable(ChangeTable { alteration: Alteration::Drop, .. }) => Effect::Unwritten,
        Command::Freeze(_)
        | Command::Flush(_)
        | Command::Compaction(_)
        | Command::Placement(_)
        | Command::EnsureTable(_)
        | Command::ChangeTable(_)
        | Command::OpenSession(_)
        | Command::Configure(_)
        | Command::Tick(_)
        | Command::OpenCut(_)
        | Command::EndCut(_) => Effect::Nothing,
    })
}

fn written(index: u64, group: Group) -> LogGroup {
    let Group { first_seq, time_ms, tables, .. } = group;
    let tables = tables.into_iter().filter(|table| !table.writes.is_empty()).map(|table| {
        let record = |write: crate::command::Write| RecordVersion {
            key: write.key,
            seq: Seq(first_seq + u64::from(write.ordinal)),
            value: write.value,
            marks: write.marks,
        };
        let mut records: Vec<RecordVersion> = table.writes.into_iter().map(record).collect();
        records.sort_by_key(|record| record.seq);
        LogWrites { table: table.table, records }
    });
    LogGroup { index, time_ms, writes: tables.collect() }
}
