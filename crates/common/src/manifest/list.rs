//! A table's SSTables: a list whose copies share nearly everything, and which knows its digest after each change.

use std::fmt;
use std::iter::Map;
use std::ops::Index;
use std::sync::Arc;

use super::SstMeta;
use super::digest::{links, of_entry};
use crate::shared_list::{self, SharedList};

/// Newest first for every key.
#[derive(Clone)]
pub struct SstList {
    list: SharedList<Arc<SstMeta>>,
    /// The sum of what each two neighbours hash to: says which entries there are, and in which order.
    links: u64,
}

pub type Iter<'l> = Map<shared_list::Iter<'l, Arc<SstMeta>>, fn(&'l Arc<SstMeta>) -> &'l SstMeta>;

impl SstList {
    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub fn iter(&self) -> Iter<'_> {
        let entry: fn(&Arc<SstMeta>) -> &SstMeta = |sst| sst;
        self.list.iter().map(entry)
    }

    /// The entries themselves.
    pub fn shared(&self) -> &SharedList<Arc<SstMeta>> {
        &self.list
    }

    pub fn get(&self, place: usize) -> Option<&SstMeta> {
        self.list.get(place).map(|sst| &**sst)
    }

    pub fn first(&self) -> Option<&SstMeta> {
        self.list.first().map(|sst| &**sst)
    }

    pub fn last(&self) -> Option<&SstMeta> {
        self.list.last().map(|sst| &**sst)
    }

    pub fn to_vec(&self) -> Vec<SstMeta> {
        self.iter().cloned().collect()
    }

    /// As [`SharedList::splice`].
    pub fn splice(&mut self, place: usize, removed: usize, added: impl IntoIterator<Item = Arc<SstMeta>>) {
        let place = place.min(self.len());
        let removed = removed.min(self.len() - place);
        let added: Vec<Arc<SstMeta>> = added.into_iter().collect();
        let hash_at = |place: usize| self.list.get(place).map_or(0, |sst| of_entry(sst));
        let before = if place == 0 { 0 } else { hash_at(place - 1) };
        let after = hash_at(place + removed);
        let gone = self.list.iter_from(place).take(removed).map(|sst| of_entry(sst));
        self.links = self.links.wrapping_sub(links(before, gone, after));
        self.links = self.links.wrapping_add(links(before, added.iter().map(|sst| of_entry(sst)), after));
        self.list.splice(place, removed, added);
    }

    pub fn insert(&mut self, place: usize, sst: SstMeta) {
        self.splice(place, 0, [Arc::new(sst)]);
    }

    /// Any change, for the price of a new list.
    pub fn edit<R>(&mut self, change: impl FnOnce(&mut Vec<SstMeta>) -> R) -> R {
        let mut all = self.to_vec();
        let result = change(&mut all);
        *self = all.into();
        result
    }

    /// Says the same of two lists only if they are equal.
    pub(super) fn digest(&self) -> u64 {
        self.links
    }
}

impl Default for SstList {
    fn default() -> Self {
        Self::from_iter([])
    }
}

impl From<Vec<SstMeta>> for SstList {
    fn from(ssts: Vec<SstMeta>) -> Self {
        ssts.into_iter().collect()
    }
}

impl FromIterator<SstMeta> for SstList {
    fn from_iter<I: IntoIterator<Item = SstMeta>>(ssts: I) -> Self {
        let list: SharedList<Arc<SstMeta>> = ssts.into_iter().map(Arc::new).collect();
        let links = links(0, list.iter().map(|sst| of_entry(sst)), 0);
        Self { list, links }
    }
}

impl Index<usize> for SstList {
    type Output = SstMeta;

    fn index(&self, place: usize) -> &SstMeta {
        &self.list[place]
    }
}

impl<'l> IntoIterator for &'l SstList {
    type Item = &'l SstMeta;
    type IntoIter = Iter<'l>;

    fn into_iter(self) -> Iter<'l> {
        self.iter()
    }
}

impl PartialEq for SstList {
    fn eq(&self, other: &Self) -> bool {
        self.links == other.links && self.list == other.list
    }
}

impl Eq for SstList {}

impl fmt::Debug for SstList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self).finish()
    }
}
