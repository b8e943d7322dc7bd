//! Pages of the log, as an archive reads and keeps them.

use sextant_common::archive::{LogAnswer, LogGroup, LogPage, LogTable, LogWrites};
use sextant_common::error::{Error, Result};
use sextant_common::ids::{LogPosition, TableId};
use sextant_common::limits;

use crate::v1;

impl From<LogAnswer> for v1::LogPage {
    fn from(answer: LogAnswer) -> Self {
        match answer {
            LogAnswer::Gone { lineage, first } => {
                Self { lineage, gone: true, first: Some(first.into()), ..Self::default() }
            }
            LogAnswer::Page(page) => Self {
                lineage: page.lineage,
                after: Some(page.after.into()),
                to: Some(page.to.into()),
                groups: page.groups.into_iter().map(Into::into).collect(),
                tables: page.tables.into_iter().map(Into::into).collect(),
                ends_by_load: page.ends_by_load,
                complete_until_ms: page.complete_until_ms,
                now_ms: page.now_ms,
                ..Self::default()
            },
        }
    }
}

impl TryFrom<v1::LogPage> for LogAnswer {
    type Error = Error;

    fn try_from(m: v1::LogPage) -> Result<Self> {
        let lineage = m.lineage;
        if lineage == 0 {
            return Err(Error::invalid("a page of the log without a lineage"));
        }
        if m.gone {
            return Ok(LogAnswer::Gone { lineage, first: m.first.unwrap_or_default().into() });
        }
        let (after, to) = (m.after.unwrap_or_default().into(), m.to.unwrap_or_default().into());
        let groups = groups(m.groups, after, to)?;
        let tables = tables(m.tables, &groups)?;
        Ok(LogAnswer::Page(LogPage {
            lineage,
            after,
            to,
            groups,
            tables,
            ends_by_load: m.ends_by_load,
            complete_until_ms: m.complete_until_ms,
            now_ms: m.now_ms,
        }))
    }
}

/// Groups of entries after one position and up to another.
pub fn groups(messages: Vec<v1::LogGroup>, after: LogPosition, to: LogPosition) -> Result<Vec<LogGroup>> {
    if to.index < after.index || to.term < after.term {
        return Err(Error::invalid(format!("log: {to} does not come after {after}")));
    }
    let (mut groups, mut last, mut time_ms) = (Vec::with_capacity(messages.len()), after.index, 0);
    for message in messages {
        let group = LogGroup::try_from(message)?;
        if group.index <= last || group.index > to.index || group.time_ms < time_ms {
            return Err(Error::invalid(format!("log: entry {} is not where it belongs", group.index)));
        }
        (last, time_ms) = (group.index, group.time_ms);
        groups.push(group);
    }
    Ok(groups)
}

/// The tables of these groups: each that they write is there, once.
pub fn tables(messages: Vec<v1::LogTable>, groups: &[LogGroup]) -> Result<Vec<LogTable>> {
    let tables = messages.into_iter().map(TryInto::try_into).collect::<Result<Vec<LogTable>>>()?;
    let mut ids: Vec<TableId> = tables.iter().map(|table| table.id).collect();
    ids.sort();
    if ids.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(Error::invalid("log: a table comes twice"));
    }
    let written = groups.iter().flat_map(|group| &group.writes);
    match written.map(|writes| writes.table).find(|table| ids.binary_search(table).is_err()) {
        Some(unknown) => Err(Error::invalid(format!("log: table {unknown} is not described"))),
        None => Ok(tables),
    }
}

impl From<LogGroup> for v1::LogGroup {
    fn from(group: LogGroup) -> Self {
        let writes = |writes: LogWrites| v1::LogWrites {
            table: writes.table.0,
            records: writes.records.into_iter().map(Into::into).collect(),
        };
        let LogGroup { index, time_ms, writes: all } = group;
        Self { index, time_ms, writes: all.into_iter().map(writes).collect() }
    }
}

impl TryFrom<v1::LogGroup> for LogGroup {
    type Error = Error;

    fn try_from(m: v1::LogGroup) -> Result<Self> {
        let writes = m.writes.into_iter().map(|writes| LogWrites {
            table: TableId(writes.table),
            records: writes.records.into_iter().map(Into::into).collect(),
        });
        let group = LogGroup { index: m.index, time_ms: m.time_ms, writes: writes.collect() };
        for writes in &group.writes {
            for record in &writes.records {
                limits::check_key(&record.key)?;
            }
            if writes.records.windows(2).any(|pair| pair[0].seq >= pair[1].seq) {
                return Err(Error::invalid(format!(
                    "log: the writes of entry {} have no order",
                    group.index
                )));
            }
        }
        Ok(group)
    }
}

impl From<LogTable> for v1::LogTable {
    fn from(table: LogTable) -> Self {
        Self { id: table.id.0, name: table.name, options: Some((&table.options).into()) }
    }
}

impl TryFrom<v1::LogTable> for LogTable {
    type Error = Error;

    fn try_from(m: v1::LogTable) -> Result<Self> {
        if m.name.is_empty() {
            return Err(Error::invalid(format!("log: table {} has no name", m.id)));
        }
        let options = m.options.unwrap_or_default().try_into()?;
        Ok(Self { id: TableId(m.id), name: m.name, options })
    }
}
