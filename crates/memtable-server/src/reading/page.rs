//! A page of a scan: memtables merged over a range. Pure.

use std::iter::Peekable;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

use crate::memtable::{Memtable, Version};

/// What a record costs on the wire beyond its key and value.
pub const RECORD_OVERHEAD_BYTES: usize = 24;

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Range {
    /// Inclusive; empty: from the beginning.
    pub start: Bytes,
    /// Exclusive; empty: to the end.
    pub end: Bytes,
    pub reverse: bool,
    pub records_max: usize,
    pub bytes_max: usize,
    /// A longer record does not come first. None: any does.
    pub first_bytes_max: Option<usize>,
}

/// Versions in the order of the scan, tombstones among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    pub records: Vec<(Bytes, Version)>,
    /// It covers all of the range.
    pub complete: bool,
}

/// The page would begin with a record of so many bytes, more than the request allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge(pub usize);

type Versions<'m> = Box<dyn Iterator<Item = (Bytes, Version)> + 'm>;

/// What a record costs in an answer.
pub fn cost(key: &Bytes, value: Option<&Bytes>) -> usize {
    key.len() + value.map_or(0, Bytes::len) + RECORD_OVERHEAD_BYTES
}

/// Merges memtables (newest first) over the range, as of seq `at`. The page has more bytes than asked for only if it is a single
/// record.
pub fn merge(memtables: &[Arc<Memtable>], range: &Range, at: u64) -> Result<Page, TooLarge> {
    let bound = |key: &Bytes| if key.is_empty() { None } else { Some(key.clone()) };
    let start = bound(&range.start).map_or(Bound::Unbounded, Bound::Included);
    let end = bound(&range.end).map_or(Bound::Unbounded, Bound::Excluded);
    let mut page = Page::default();
    if let (Bound::Included(low), Bound::Excluded(high)) = (&start, &end)
        && low >= high
    {
        page.complete = true;
        return Ok(page);
    }
    let versions = memtables.iter().map(|m| -> Versions<'_> {
        match range.reverse {
            true => Box::new(m.range_rev(start.clone(), end.clone(), at)),
            false => Box::new(m.range(start.clone(), end.clone(), at)),
        }
    });
    let mut sources: Vec<_> = versions.map(Iterator::peekable).collect();
    let mut bytes = 0;
    loop {
        let heads = sources.iter_mut().filter_map(|s| s.peek().map(|(key, _)| key.clone()));
        let next = if range.reverse { heads.max() } else { heads.min() };
        let Some(key) = next else {
            page.complete = true;
            return Ok(page);
        };
        if page.records.len() >= range.records_max {
            return Ok(page);
        }
        let Some(version) = newest_of(&mut sources, &key) else { continue };
        let more = cost(&key, version.value.as_ref());
        if page.records.is_empty() && range.first_bytes_max.is_some_and(|max| more > max) {
            return Err(TooLarge(more));
        }
        if bytes + more > range.bytes_max && !page.records.is_empty() {
            return Ok(page);
        }
        bytes += more;
        page.records.push((key, version));
    }
}

/// Takes the versions of a key from all sources that have one next.
fn newest_of(sources: &mut [Peekable<Versions<'_>>], key: &Bytes) -> Option<Version> {
    let mut newest: Option<Version> = None;
    for source in sources {
        if source.peek().is_some_and(|(k, _)| k == key)
            && let Some((_, version)) = source.next()
            && newest.as_ref().is_none_or(|n| n.seq < version.seq)
        {
            newest = Some(version);
        }
    }
    newest
}

#[cfg(test)]
mod tests {
    use sextant_common::ids::Generation;

    use super::*;

    /// Memtables with (key, seq, value) each, newest first.
    fn memtables(of: &[&[(&'static str, u64, Option<&'static str>)]]) -> Vec<Arc<Memtable>> {
        let memtable = |versions: &&[(&'static str, u64, Option<&'static str>)]| {
            let memtable = Memtable::new(Generation(1));
            for (key, seq, value) in *versions {
                let value = value.map(|v| Bytes::from_static(v.as_bytes()));
                memtable.insert(Bytes::from_static(key.as_bytes()), *seq, value, *seq, 0);
            }
            Arc::new(memtable)
        };
        of.iter().map(memtable).collect()
    }

    fn all() -> Range {
        Range {
            start: Bytes::new(),
            end: Bytes::new(),
            reverse: false,
            records_max: 100,
            bytes_max: 10_000,
            first_bytes_max: None,
        }
    }

    fn seqs(page: &Page) -> Vec<(&str, u64)> {
        page.records.iter().map(|(key, v)| (std::str::from_utf8(key).unwrap(), v.seq)).collect()
    }

    fn three_keys() -> Vec<Arc<Memtable>> {
        memtables(&[
            &[("b", 7, None), ("c", 9, Some("too new"))],
            &[("a", 1, Some("1")), ("b", 2, Some("2")), ("c", 3, Some("3"))],
        ])
    }

    #[test]
    fn of_each_key_the_newest_published_version_comes_tombstones_too() {
        let page = merge(&three_keys(), &all(), 8).unwrap();
        assert_eq!((seqs(&page), page.complete), (vec![("a", 1), ("b", 7), ("c", 3)], true));
        assert_eq!(page.records[1].1.value, None);
        let reverse = merge(&three_keys(), &Range { reverse: true, ..all() }, 8).unwrap();
        assert_eq!(seqs(&reverse), [("c", 3), ("b", 7), ("a", 1)]);
    }

    #[test]
    fn bounds_and_limits_end_a_page_and_only_the_end_of_the_range_completes_it() {
        let (b, c) = (Bytes::from_static(b"b"), Bytes::from_static(b"c"));
        let part = merge(&three_keys(), &Range { start: b.clone(), end: c.clone(), ..all() }, 8).unwrap();
        assert_eq!((seqs(&part), part.complete), (vec![("b", 7)], true));
        let nothing = merge(&three_keys(), &Range { start: c, end: b, ..all() }, 8).unwrap();
        assert_eq!(nothing, Page { records: Vec::new(), complete: true });
        let two = merge(&three_keys(), &Range { records_max: 2, ..all() }, 8).unwrap();
        assert_eq!((two.records.len(), two.complete), (2, false));
        let short = merge(&three_keys(), &Range { bytes_max: 1, ..all() }, 8).unwrap();
        assert_eq!((short.records.len(), short.complete), (1, false), "one record always comes");
    }

    #[test]
    fn a_page_does_not_begin_with_a_record_that_is_longer_than_allowed() {
        let limited = Range { first_bytes_max: Some(RECORD_OVERHEAD_BYTES + 1), ..all() };
        let expected = cost(&Bytes::from_static(b"a"), Some(&Bytes::from_static(b"1")));
        assert_eq!(merge(&three_keys(), &limited, 8), Err(TooLarge(expected)));
        let start = Bytes::from_static(b"b");
        assert_eq!(merge(&three_keys(), &Range { start, ..limited }, 8).unwrap().records.len(), 2);
    }
}
