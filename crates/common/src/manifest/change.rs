//! Changes of a manifest, from one version to the next: what travels instead of it.
//!
//! A change is made by comparing two manifests, whatever command led from one to the other. Whoever applies it gets a manifest with
//! the digest that the change names, or nothing.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::digest::ManifestDigest;
use super::{FlushRecord, Manifest, SstList, SstMeta, TableManifest, TableOptions};
use crate::ids::{Generation, LogPosition, ManifestVersion, PartitionId, SstId, TableId};
use crate::shared_list::Differing;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestChange {
    pub partition: PartitionId,
    pub from: ManifestVersion,
    pub to: ManifestVersion,
    /// Of the manifest at `to`.
    pub digest: ManifestDigest,
    /// Those that are not as they were, or are new; by rising id.
    pub tables: Vec<TableChange>,
    /// New ones, oldest first.
    pub flushes: Vec<FlushRecord>,
    /// So many of the oldest are remembered no more.
    pub flushes_forgotten: usize,
    pub flushes_known_after: ManifestVersion,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableChange {
    pub table: TableId,
    /// Of a new one: its name and options.
    pub created: Option<(String, TableOptions)>,
    pub flushed_generation: Generation,
    pub last_flush_version: ManifestVersion,
    pub persisted: LogPosition,
    /// By rising places in the list before, with entries that stay between them.
    pub edits: Vec<ListEdit>,
}

/// Entries of a list that give way to others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListEdit {
    pub place: usize,
    pub removed: usize,
    pub added: Vec<Arc<SstMeta>>,
}

/// Why a change is not applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// It is for another version, or partition.
    OtherVersion,
    /// It names tables or places that there are not.
    DoesNotFit,
    /// What it leads to is not what it was made for.
    Digest,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mismatch::OtherVersion => "a change of another version",
            Mismatch::DoesNotFit => "a change of what is not there",
            Mismatch::Digest => "after the change the digest is another",
        })
    }
}

impl ManifestChange {
    /// None: it cannot be said as a change (a table is gone).
    pub fn between(before: &Manifest, after: &Manifest) -> Option<Self> {
        let mut tables = Vec::new();
        for table in &after.tables {
            match before.table(table.table) {
                None => tables.push(TableChange::of(table, &SstList::default(), true)),
                Some(old) if (&old.name, &old.options) != (&table.name, &table.options) => return None,
                Some(old) if old != table => tables.push(TableChange::of(table, &old.ssts, false)),
                Some(_) => {}
            }
        }
        if before.tables.iter().any(|old| after.table(old.table).is_none()) {
            return None;
        }
        let is_new = |record: &&FlushRecord| record.version > before.version;
        let flushes: Vec<FlushRecord> = after.recent_flushes.iter().filter(is_new).copied().collect();
        let kept = after.recent_flushes.len() - flushes.len();
        Some(Self {
            partition: after.partition,
            from: before.version,
            to: after.version,
            digest: after.digest(),
            tables,
            flushes_forgotten: before.recent_flushes.len().checked_sub(kept)?,
            flushes,
            flushes_known_after: after.flushes_known_after,
        })
    }

    pub fn added(&self) -> impl Iterator<Item = &Arc<SstMeta>> {
        self.tables.iter().flat_map(|table| &table.edits).flat_map(|edit| &edit.added)
    }

    /// About how many bytes it takes, in memory and as it travels.
    pub fn weight(&self) -> usize {
        let edits: usize = self.tables.iter().map(|table| table.edits.len()).sum();
        let added: usize = self.added().map(|sst| entry_weight(sst)).sum();
        128 * (1 + self.tables.len()) + 16 * edits + 56 * self.flushes.len() + added
    }
}

fn entry_weight(sst: &SstMeta) -> usize {
    let keys = [&sst.min_key, &sst.max_key, &sst.range.start, &sst.range.end];
    160 + 8 * sst.replicas.len() + keys.map(Bytes::len).iter().sum::<usize>()
}

impl TableChange {
    fn of(after: &TableManifest, before: &SstList, is_new: bool) -> Self {
        Self {
            table: after.table,
            created: is_new.then(|| (after.name.clone(), after.options.clone())),
            flushed_generation: after.flushed_generation,
            last_flush_version: after.last_flush_version,
            persisted: after.persisted,
            edits: edits(before, &after.ssts),
        }
    }

    /// Whether the list can be edited so.
    fn fits(&self, ssts: &SstList) -> bool {
        let mut free = 0;
        self.edits.iter().all(|edit| {
            let end = edit.place.checked_add(edit.removed);
            let fits = edit.place >= free && end.is_some_and(|end| end <= ssts.len());
            free = end.map_or(usize::MAX, |end| end.saturating_add(1));
            fits
        })
    }
}

/// What makes one list of another: looks only at what they do not share.
fn edits(before: &SstList, after: &SstList) -> Vec<ListEdit> {
    let mut edits: Vec<ListEdit> = Vec::new();
    for part in before.shared().differing(after.shared()) {
        edits_of(&part, &mut edits);
    }
    edits
}

type Name<'s> = (SstId, &'s Bytes);

fn name(sst: &SstMeta) -> Name<'_> {
    (sst.id, &sst.range.start)
}

fn edits_of(part: &Differing<'_, Arc<SstMeta>>, edits: &mut Vec<ListEdit>) {
    let (mine, others) = (&part.mine, &part.others);
    let there: HashSet<Name<'_>> = others.iter().map(|sst| name(sst)).collect();
    let (mut at, mut to) = (0, 0);
    let mut edit = |place: usize, removed: usize, added: Option<&Arc<SstMeta>>| {
        let follows = edits.last().filter(|last| last.place + last.removed == place);
        if follows.is_none() {
            edits.push(ListEdit { place, removed: 0, added: Vec::new() });
        }
        if let Some(last) = edits.last_mut() {
            last.removed += removed;
            last.added.extend(added.cloned());
        }
    };
    loop {
        match (mine.get(at), others.get(to)) {
            (None, None) => return,
            (Some(a), Some(b)) if a == b => {
                at += 1;
                to += 1;
            }
            (Some(a), Some(b)) if name(a) == name(b) => {
                edit(part.place + at, 1, Some(*b));
                at += 1;
                to += 1;
            }
            (Some(a), b) if b.is_none() || !there.contains(&name(a)) => {
                edit(part.place + at, 1, None);
                at += 1;
            }
            (_, Some(b)) => {
                edit(part.place + at, 0, Some(*b));
                to += 1;
            }
            (Some(_), None) => unreachable!("taken above"),
        }
    }
}

impl SstList {
    /// Edits of one change, the last first, so that places stay what they were.
    fn apply(&mut self, edits: &[ListEdit]) {
        for edit in edits.iter().rev() {
            self.splice(edit.place, edit.removed, edit.added.iter().cloned());
        }
    }
}

impl Manifest {
    /// What the change makes of it. Shares with it what stays.
    pub fn changed(&self, change: &ManifestChange) -> Result<Manifest, Mismatch> {
        if (change.partition, change.from) != (self.partition, self.version) || change.to <= change.from {
            return Err(Mismatch::OtherVersion);
        }
        let mut next = self.clone();
        for table in &change.tables {
            next.change_table(table)?;
        }
        if change.flushes_forgotten > next.recent_flushes.len() {
            return Err(Mismatch::DoesNotFit);
        }
        next.recent_flushes.drain(..change.flushes_forgotten);
        next.recent_flushes.extend(&change.flushes);
        next.flushes_known_after = change.flushes_known_after;
        next.version = change.to;
        if next.digest() == change.digest { Ok(next) } else { Err(Mismatch::Digest) }
    }

    fn change_table(&mut self, change: &TableChange) -> Result<(), Mismatch> {
        let place = self.tables.binary_search_by_key(&change.table, |t| t.table);
        let at = match (place, &change.created) {
            (Ok(at), None) => at,
            (Err(at), Some((name, options))) => {
                self.tables.insert(at, TableManifest::new(change.table, name.clone(), options.clone()));
                at
            }
            _ => return Err(Mismatch::DoesNotFit),
        };
        let table = &mut self.tables[at];
        if !change.fits(&table.ssts) {
            return Err(Mismatch::DoesNotFit);
        }
        table.flushed_generation = change.flushed_generation;
        table.last_flush_version = change.last_flush_version;
        table.persisted = change.persisted;
        table.ssts.apply(&change.edits);
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests;
