//! Between which places all members of a sorted set are, in the order of their scores: what is removed at its ends leaves tombstones,
//! and whoever reads from an end would pass over all of them. The header of the object knows where to begin.
//!
//! They are bounds and not places of members: there may be none at either. They get wider with every member that is added beyond them,
//! and narrower only when the first or last members are removed. What says nothing is as good as no bounds.

use std::fmt;

use super::sortable;

/// Of a place as it stands in a header: a score, and how its member begins.
const CUT_BYTES_MAX: usize = 24;
/// Stands for the length of a bound that is not known.
const UNKNOWN: u8 = u8::MAX;

/// A score, so that bytes sort as numbers, and a member: of both as much as a header has. It sorts before the place that it is cut from,
/// or is that.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Cut {
    len: u8,
    bytes: [u8; CUT_BYTES_MAX],
}

impl Cut {
    pub fn new(place: &[u8]) -> Self {
        let mut cut = Self::default();
        cut.push(place);
        cut
    }

    pub fn of(score: f64, member: &[u8]) -> Self {
        let mut cut = Self::new(&sortable(score));
        cut.push(member);
        cut
    }

    fn push(&mut self, bytes: &[u8]) {
        let at = usize::from(self.len);
        let room = bytes.len().min(CUT_BYTES_MAX - at);
        self.bytes[at..at + room].copy_from_slice(&bytes[..room]);
        self.len += room as u8;
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.as_bytes().escape_ascii())
    }
}

impl PartialOrd for Cut {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Cut {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

/// The default: nothing is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// No place sorts before it. (None does before nothing.)
    pub low: Cut,
    /// No place sorts behind it, cut as it is. None: not known.
    pub high: Option<Cut>,
}

impl Bounds {
    pub fn are_known(&self) -> bool {
        *self != Self::default()
    }

    /// So that there may be a member at this place.
    #[must_use]
    pub fn and(self, place: Cut) -> Self {
        Self { low: self.low.min(place), high: self.high.map(|high| high.max(place)) }
    }

    /// So that what is within either is within.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            low: self.low.min(other.low),
            high: self.high.zip(other.high).map(|(mine, other)| mine.max(other)),
        }
    }

    pub(super) fn encoded_len(&self) -> usize {
        2 + usize::from(self.low.len) + self.high.map_or(0, |high| usize::from(high.len))
    }

    pub(super) fn encode(&self, out: &mut impl bytes::BufMut) {
        out.put_u8(self.low.len);
        out.put_slice(self.low.as_bytes());
        match &self.high {
            Some(high) => {
                out.put_u8(high.len);
                out.put_slice(high.as_bytes());
            }
            None => out.put_u8(UNKNOWN),
        }
    }

    /// None: these bytes, all of them, are no bounds.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (low, rest) = cut(bytes)?;
        let (high, rest) = match rest {
            [UNKNOWN, rest @ ..] => (None, rest),
            rest => cut(rest).map(|(high, rest)| (Some(high), rest))?,
        };
        rest.is_empty().then_some(Self { low, high })
    }
}

fn cut(bytes: &[u8]) -> Option<(Cut, &[u8])> {
    let (len, rest) = bytes.split_first()?;
    let (place, rest) = rest.split_at_checked(usize::from(*len))?;
    (place.len() <= CUT_BYTES_MAX).then(|| (Cut::new(place), rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn places() -> impl Strategy<Value = Vec<u8>> {
        // (Long ones that begin alike.)
        let member = prop_oneof![Just(vec![]), Just(vec![0xff; 20]), Just(vec![7; 15]), Just(vec![7; 17])];
        (0u8..3, member, prop::collection::vec(any::<u8>(), 0..3)).prop_map(|(score, mut member, more)| {
            member.extend(more);
            [&sortable(f64::from(score))[..], &member].concat()
        })
    }

    proptest! {
        #[test]
        fn a_cut_sorts_as_places_do(a in places(), b in places()) {
            prop_assert!(Cut::new(&a).as_bytes() <= &a[..]);
            if a <= b {
                prop_assert!(Cut::new(&a) <= Cut::new(&b));
            }
        }

        #[test]
        fn what_is_added_is_within(low in places(), high in prop::option::of(places()), added in places()) {
            let bounds = Bounds { low: Cut::new(&low), high: high.as_deref().map(Cut::new) };
            for wide in [bounds.and(Cut::new(&added)), bounds.or(Bounds { low: Cut::new(&added), high: None })] {
                prop_assert!(wide.low.as_bytes() <= &added[..] && wide.low <= bounds.low);
                prop_assert!(wide.high.is_none_or(|high| Cut::new(&added) <= high && bounds.high.unwrap() <= high));
            }
        }

        #[test]
        fn bounds_are_the_same_after_their_way(low in places(), high in prop::option::of(places())) {
            let bounds = Bounds { low: Cut::new(&low), high: high.as_deref().map(Cut::new) };
            let mut bytes = Vec::new();
            bounds.encode(&mut bytes);
            prop_assert_eq!(bytes.len(), bounds.encoded_len());
            prop_assert_eq!(Bounds::decode(&bytes), Some(bounds));
            for cut in 0..bytes.len() {
                prop_assert_eq!(Bounds::decode(&bytes[..cut]), None);
            }
            bytes.push(0);
            prop_assert_eq!(Bounds::decode(&bytes), None);
        }
    }

    #[test]
    fn a_score_and_a_member_are_a_place() {
        let place = [&sortable(-1.5)[..], b"member"].concat();
        assert_eq!(Cut::of(-1.5, b"member"), Cut::new(&place));
        assert_eq!(Cut::of(1.0, &[7; 40]).as_bytes().len(), CUT_BYTES_MAX);
        assert_eq!(Bounds::decode(&[30; 40]), None, "longer than any");
    }
}
