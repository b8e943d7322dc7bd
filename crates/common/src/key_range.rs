//! Ranges of keys: what a scan asks for, and what an SSTable answers for.

use bytes::Bytes;

/// The keys from `start` on, and before `end`. Empty: from the first key on, to the last. The default is all keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyRange {
    pub start: Bytes,
    pub end: Bytes,
}

impl KeyRange {
    pub fn new(start: impl Into<Bytes>, end: impl Into<Bytes>) -> Self {
        Self { start: start.into(), end: end.into() }
    }

    pub fn all() -> Self {
        Self::default()
    }

    pub fn is_all(&self) -> bool {
        self.start.is_empty() && self.end.is_empty()
    }

    /// Whether no key lies in it.
    pub fn is_empty(&self) -> bool {
        !self.end.is_empty() && self.start >= self.end
    }

    #[inline]
    pub fn contains(&self, key: &[u8]) -> bool {
        self.start.as_ref() <= key && (self.end.is_empty() || key < self.end.as_ref())
    }

    /// Whether a key lies in both.
    pub fn overlaps(&self, other: &Self) -> bool {
        (other.end.is_empty() || self.start < other.end) && (self.end.is_empty() || other.start < self.end)
    }

    /// Whether all keys of the other one lie in it.
    pub fn covers(&self, other: &Self) -> bool {
        self.start <= other.start && (self.end.is_empty() || !other.end.is_empty() && other.end <= self.end)
    }

    /// Whether it goes on below and above the key: cut there, both parts have keys.
    pub fn is_cut_by(&self, key: &[u8]) -> bool {
        self.start.as_ref() < key && self.contains(key)
    }

    /// What lies in both.
    pub fn intersection(&self, other: &Self) -> Self {
        let end = match (self.end.is_empty(), other.end.is_empty()) {
            (true, _) => &other.end,
            (_, true) => &self.end,
            _ => (&self.end).min(&other.end),
        };
        Self { start: (&self.start).max(&other.start).clone(), end: end.clone() }
    }

    /// What is left of it between the cuts around these keys. `cuts` rise.
    pub fn between(&self, cuts: &[Bytes], first: &[u8], last: &[u8]) -> Self {
        let start = cuts.iter().rev().find(|cut| cut.as_ref() <= first).cloned().unwrap_or_default();
        let end = cuts.iter().find(|cut| cut.as_ref() > last).cloned().unwrap_or_default();
        self.intersection(&Self { start, end })
    }

    /// Whether these, in this order, are apart and together this range.
    pub fn is_made_of<'r>(&self, parts: impl IntoIterator<Item = &'r KeyRange>) -> bool {
        let mut next = Some(&self.start);
        for part in parts {
            if part.is_empty() || next != Some(&part.start) {
                return false;
            }
            next = (!part.end.is_empty()).then_some(&part.end);
        }
        match next {
            None => self.end.is_empty(),
            Some(next) => *next == self.end && !self.end.is_empty(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn range(start: &'static str, end: &'static str) -> KeyRange {
        KeyRange::new(start, end)
    }

    #[test]
    fn parts_make_a_range_if_they_follow_each_other_from_its_start_to_its_end() {
        let all = KeyRange::all();
        assert!(all.is_made_of(&[range("", "")]));
        assert!(all.is_made_of(&[range("", "c"), range("c", "")]));
        assert!(range("b", "d").is_made_of(&[range("b", "c"), range("c", "d")]));
        for parts in [
            &[][..],
            &[range("", "c")],
            &[range("c", "")],
            &[range("", "c"), range("d", "")],
            &[range("", "c"), range("b", "")],
            &[range("", ""), range("", "")],
            &[range("c", ""), range("", "c")],
        ] {
            assert!(!all.is_made_of(parts), "{parts:?}");
        }
        assert!(!range("b", "d").is_made_of(&[range("b", "")]));
        assert!(!range("b", "d").is_made_of(&[range("b", "c"), range("c", "c"), range("c", "d")]));
    }

    #[test]
    fn cuts_leave_what_is_around_the_keys() {
        let cuts: Vec<Bytes> = ["c", "f", "m"].map(Bytes::from).into();
        let all = KeyRange::all();
        assert_eq!(all.between(&cuts, b"a", b"b"), range("", "c"));
        assert_eq!(all.between(&cuts, b"c", b"e"), range("c", "f"));
        assert_eq!(all.between(&cuts, b"d", b"g"), range("c", "m"));
        assert_eq!(all.between(&cuts, b"m", b"z"), range("m", ""));
        assert_eq!(all.between(&[], b"m", b"z"), all);
        assert_eq!(range("d", "k").between(&cuts, b"e", b"g"), range("d", "k"));
    }

    fn any_range() -> impl Strategy<Value = KeyRange> {
        let bound = || prop::collection::vec(0u8..3, 0..3);
        (bound(), bound())
            .prop_map(|(start, end)| KeyRange::new(start, end))
            .prop_filter("empty", |r| !r.is_empty())
    }

    proptest! {
        #[test]
        fn ranges_are_sets_of_keys(a in any_range(), b in any_range()) {
            // (Every key that the bounds can tell apart.)
            let mut keys: Vec<Vec<u8>> = vec![vec![], vec![0], vec![2, 2, 2, 2]];
            for bound in [&a.start, &a.end, &b.start, &b.end].into_iter().filter(|b| !b.is_empty()) {
                keys.push(bound.to_vec());
                keys.push([&bound[..], &[0]].concat());
            }
            let both = a.intersection(&b);
            prop_assert_eq!(a.overlaps(&b), keys.iter().any(|k| a.contains(k) && b.contains(k)));
            prop_assert_eq!(a.overlaps(&b), !both.is_empty());
            for key in &keys {
                prop_assert_eq!(both.contains(key), a.contains(key) && b.contains(key));
                if a.covers(&b) && b.contains(key) {
                    prop_assert!(a.contains(key));
                }
                if a.is_cut_by(key) {
                    let key = Bytes::copy_from_slice(key);
                    let parts = [KeyRange::new(a.start.clone(), key.clone()), KeyRange::new(key, a.end.clone())];
                    prop_assert!(a.is_made_of(&parts));
                }
            }
            if a.covers(&b) && b.covers(&a) {
                prop_assert_eq!(a, b);
            }
        }
    }
}
