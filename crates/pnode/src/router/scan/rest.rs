//! What is left of a range that is scanned.

use bytes::Bytes;
use sextant_common::key_range::KeyRange;

/// What is left of a range, in the direction of the scan.
#[derive(Clone, Debug)]
pub(super) struct Rest {
    pub start: Bytes,
    pub end: Bytes,
    pub reverse: bool,
    /// Where a source is known to go on with a record that is longer than a page.
    pub large_at: Option<Bytes>,
    /// Records that servers are asked for at least, since they had none for a while; 0: as many as are wanted.
    pub ask_at_least: u32,
}

impl Rest {
    /// What is left after a page; None: nothing.
    pub fn after(&self, covered_to: Option<&Bytes>) -> Option<Rest> {
        let to = covered_to?;
        let rest = if self.reverse {
            Rest { end: to.clone(), ..self.clone() }
        } else {
            Rest { start: successor(to), ..self.clone() }
        };
        let empty = !rest.end.is_empty() && rest.start >= rest.end;
        // A reverse scan that has reached the empty key has nothing below it.
        let nothing_below = self.reverse && to.is_empty();
        if empty || nothing_below { None } else { Some(rest) }
    }

    /// What is left from a key on, the key too.
    pub fn going_on_at(&self, key: &Bytes) -> Rest {
        match self.reverse {
            false => Rest { start: key.clone(), ..self.clone() },
            true => Rest { end: successor(key), ..self.clone() },
        }
    }

    /// Where it goes on: its `start`, in reverse its `end`.
    pub fn front(&self) -> &Bytes {
        if self.reverse { &self.end } else { &self.start }
    }

    /// Whether it goes on from an earlier place than another one of the same scan.
    pub fn is_before(&self, other: &Rest) -> bool {
        match self.reverse {
            false => self.start < other.start,
            // (Empty: from the last key on.)
            true => !other.end.is_empty() && (self.end.is_empty() || self.end > other.end),
        }
    }

    pub fn contains(&self, key: &Bytes) -> bool {
        self.start <= *key && (self.end.is_empty() || *key < self.end)
    }

    pub fn range(&self) -> KeyRange {
        KeyRange { start: self.start.clone(), end: self.end.clone() }
    }

    /// The same with another range.
    pub fn of(&self, KeyRange { start, end }: KeyRange) -> Self {
        Self { start, end, ..self.clone() }
    }

    /// What comes before a record that is longer than a page, so that only that one has to be asked for alone; or all of it.
    pub fn before_large(&self) -> Self {
        let Some(at) = &self.large_at else { return self.clone() };
        let range = match self.reverse {
            false => KeyRange { start: self.start.clone(), end: at.clone() },
            true => KeyRange { start: successor(at), end: self.end.clone() },
        };
        let is_inside = match self.reverse {
            false => self.start < *at && (self.end.is_empty() || *at < self.end),
            true => self.start <= *at && (self.end.is_empty() || range.start < self.end),
        };
        if is_inside { self.of(range) } else { self.clone() }
    }

    /// What comes after a window of it; None: nothing.
    pub fn after_window(&self, window: &Rest) -> Option<Rest> {
        match self.reverse {
            false if window.end != self.end => Some(Rest { start: window.end.clone(), ..self.clone() }),
            true if window.start != self.start => Some(Rest { end: window.start.clone(), ..self.clone() }),
            _ => None,
        }
    }
}

/// The smallest key above `key`.
fn successor(key: &[u8]) -> Bytes {
    [key, b"\0"].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rest(start: &'static str, end: &'static str, reverse: bool) -> Rest {
        Rest { start: start.into(), end: end.into(), reverse, large_at: None, ask_at_least: 0 }
    }

    #[test]
    fn the_rest_of_a_range_begins_right_after_the_page() {
        let to = |s: &'static str| Bytes::from(s);
        assert!(rest("a", "c", false).after(None).is_none());
        assert_eq!(rest("a", "c", false).after(Some(&to("b"))).unwrap().start, Bytes::from("b\0"));
        assert!(rest("a", "b\0", false).after(Some(&to("b"))).is_none());
        let after_window = |window: Rest| rest("a", "e", window.reverse).after_window(&window);
        assert!(
            after_window(rest("a", "e", false)).is_none() && after_window(rest("a", "e", true)).is_none()
        );
        assert_eq!(after_window(rest("a", "c", false)).unwrap().range(), KeyRange::new("c", "e"));
        assert_eq!(after_window(rest("c", "e", true)).unwrap().range(), KeyRange::new("a", "c"));
        let r = rest("a", "", true).after(Some(&to("b"))).unwrap();
        assert_eq!((r.start, r.end), (Bytes::from("a"), Bytes::from("b")));
        assert!(rest("a", "", true).after(Some(&to("a"))).is_none());
    }

    #[test]
    fn of_several_rests_the_first_one_is_known_in_either_direction() {
        let key = Bytes::from("k");
        let (forward, reverse) = (rest("a", "", false), rest("a", "", true));
        assert_eq!(forward.going_on_at(&key).range(), KeyRange::new("k", ""));
        assert_eq!(reverse.going_on_at(&key).range(), KeyRange::new("a", "k\0"));
        for whole in [&forward, &reverse] {
            let (here, behind) = (whole.going_on_at(&key), whole.after(Some(&key)).unwrap());
            assert!(here.contains(&key) && !behind.contains(&key));
            assert!(whole.is_before(&here) && here.is_before(&behind) && whole.is_before(&behind));
            assert!(!here.is_before(whole) && !behind.is_before(&here) && !behind.is_before(whole));
            assert!(!here.is_before(&here) && !whole.is_before(whole));
        }
    }

    #[test]
    fn what_comes_before_a_record_that_is_longer_than_a_page_ends_there() {
        let before = |start, end, reverse, at: &'static str| {
            let rest = Rest { large_at: Some(at.into()), ..rest(start, end, reverse) };
            let window = rest.before_large();
            (window.range(), rest.after_window(&window).map(|rest| rest.range()))
        };
        let range = KeyRange::new;
        assert_eq!(before("a", "", false, "c"), (range("a", "c"), Some(range("c", ""))));
        assert_eq!(before("a", "", true, "c"), (range("c\0", ""), Some(range("a", "c\0"))));
        // It is the next one, or not in what is left.
        for (start, end, reverse, at) in [
            ("c", "", false, "c"),
            ("d", "", false, "c"),
            ("a", "c", false, "c"),
            ("a", "c\0", true, "c"),
            ("d", "", true, "c"),
        ] {
            assert_eq!(before(start, end, reverse, at), (range(start, end), None), "{start} {end} {reverse}");
        }
    }
}
