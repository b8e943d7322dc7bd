//! Objects of the Redis protocol as records: a *header* under the client's key in the table that clients see, and *elements* in a
//! hidden table beside it, placed in the partition of that key.
//!
//! Header, the value of a record with a [`Kind`](crate::marks::Kind): format u8 (1), version u64, count u64, and for a list the
//! positions of its first element and of the one after its last, u64 each. The version is random: elements of an object that is gone
//! are those of no object for ever. Of a sorted set it may have format 2 (of a partition's format 4): behind the count follow
//! [`Bounds`], a length u8 and so many bytes of the low one, and the same of the high one, whose length is 255 if there is none.
//!
//! Key of an element: length of the client's key u16, that key, version u64, tag u8, and what the tag says. Integers are big-endian,
//! so that keys sort as what they mean.
//!
//! | tag | key goes on with | value |
//! |---|---|---|
//! | 1 | a field of a hash | its value |
//! | 2 | a member of a set | nothing |
//! | 3 | a member of a sorted set | its score: 8 bytes, little-endian |
//! | 4 | a score, so that bytes sort as numbers, and a member | nothing |
//! | 5 | a position in a list, u64 | the element |

mod bounds;

use bytes::{BufMut, Bytes, BytesMut};

pub use bounds::{Bounds, Cut};

use crate::key::prefix_end;
use crate::limits::KEY_BYTES_MAX;
use crate::manifest::TableOptions;

/// The table of elements. (Clients cannot use tables whose names begin so.)
pub const ELEMENTS_TABLE: &str = "sextant.elements";

/// The options of the table of elements.
pub fn elements_options() -> TableOptions {
    TableOptions {
        partition_prefix: TableOptions::BY_INNER_KEY,
        filter_inserts: true,
        filter_prefix: TableOptions::BY_INNER_KEY,
        ..TableOptions::default()
    }
}

const FORMAT: u8 = 1;
const FORMAT_WITH_BOUNDS: u8 = 2;
const HEADER_BYTES: usize = 17;
const LIST_HEADER_BYTES: usize = HEADER_BYTES + 16;
/// Beside the client's key and the element.
const ELEMENT_KEY_BYTES: usize = 2 + 8 + 1;
/// The position of the first element that a list gets: far from both ends.
pub const LIST_MIDDLE: u64 = 1 << 63;

/// What the header of an object says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Random, never given twice.
    pub version: u64,
    /// Of elements: fields, members.
    pub count: u64,
    /// Of a list: the positions of its first element, and of the one after its last.
    pub ends: Option<(u64, u64)>,
    /// Of a sorted set.
    pub bounds: Bounds,
}

impl Header {
    pub fn new(version: u64, count: u64) -> Self {
        Self { version, count, ends: None, bounds: Bounds::default() }
    }

    pub fn encode(&self) -> Bytes {
        let has_bounds = self.bounds.are_known();
        let more = if has_bounds { self.bounds.encoded_len() } else { LIST_HEADER_BYTES - HEADER_BYTES };
        let mut out = BytesMut::with_capacity(HEADER_BYTES + more);
        out.put_u8(if has_bounds { FORMAT_WITH_BOUNDS } else { FORMAT });
        out.put_u64(self.version);
        out.put_u64(self.count);
        match self.ends {
            _ if has_bounds => self.bounds.encode(&mut out),
            Some((first, end)) => {
                out.put_u64(first);
                out.put_u64(end);
            }
            None => {}
        }
        out.freeze()
    }

    /// None: these bytes are no header.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let number = |at: usize| Some(u64::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
        let (ends, bounds) = match (bytes.first()?, bytes.len()) {
            (&FORMAT, HEADER_BYTES) => (None, Bounds::default()),
            (&FORMAT, LIST_HEADER_BYTES) => {
                (Some((number(HEADER_BYTES)?, number(HEADER_BYTES + 8)?)), Bounds::default())
            }
            (&FORMAT_WITH_BOUNDS, _) => (None, Bounds::decode(bytes.get(HEADER_BYTES..)?)?),
            _ => return None,
        };
        Some(Self { version: number(1)?, count: number(9)?, ends, bounds })
    }

    /// Of an encoded header: the same without bounds, as every version can read it, and the bounds.
    pub fn split_bounds(header: &Bytes) -> (Bytes, Bytes) {
        match header.first() {
            Some(&FORMAT_WITH_BOUNDS) if header.len() > HEADER_BYTES => {
                let plain = [&[FORMAT], &header[1..HEADER_BYTES]].concat();
                (plain.into(), header.slice(HEADER_BYTES..))
            }
            _ => (header.clone(), Bytes::new()),
        }
    }

    /// Of both parts. Bounds without sense are left out: it is as good without.
    pub fn join_bounds(header: Bytes, bounds: &[u8]) -> Bytes {
        match (Self::decode(&header), Bounds::decode(bounds)) {
            (Some(Header { ends: None, version, count, .. }), Some(bounds)) => {
                Header { version, count, ends: None, bounds }.encode()
            }
            _ => header,
        }
    }
}

/// What an element is of its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Tag {
    Field = 1,
    Member = 2,
    Score = 3,
    ByScore = 4,
    Position = 5,
}

impl Tag {
    pub const ALL: [Tag; 5] = [Tag::Field, Tag::Member, Tag::Score, Tag::ByScore, Tag::Position];
}

/// The client's key with its length: what decides the partition of an element. None: there is no such part.
pub fn inner_key(element_key: &[u8]) -> Option<&[u8]> {
    let (len, rest) = element_key.split_first_chunk::<2>()?;
    rest.get(..usize::from(u16::from_be_bytes(*len)))
}

/// The version in the key of an element.
pub fn version_of(element_key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(*version_part(element_key)?.last_chunk()?))
}

/// The beginning of the key of an element that all of one version have: [`version_prefix`].
pub fn version_part(element_key: &[u8]) -> Option<&[u8]> {
    let inner = inner_key(element_key)?;
    element_key.get(..2 + inner.len() + 8)
}

/// The longest field or member that an element of this key may have, in bytes.
pub fn element_bytes_max(key: &[u8]) -> usize {
    // (A sorted set's index has eight bytes more.)
    KEY_BYTES_MAX.saturating_sub(key.len() + ELEMENT_KEY_BYTES + 8)
}

/// How the keys of all elements of all versions of an object begin.
pub fn object_prefix(key: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(2 + key.len());
    out.put_u16(key.len() as u16);
    out.put_slice(key);
    out.freeze()
}

/// How the keys of all elements of one version begin.
pub fn version_prefix(key: &[u8], version: u64) -> Bytes {
    let mut out = Vec::with_capacity(2 + key.len() + 8);
    put_version_prefix(&mut out, key, version);
    out.into()
}

fn put_version_prefix(out: &mut Vec<u8>, key: &[u8], version: u64) {
    out.extend_from_slice(&(key.len() as u16).to_be_bytes());
    out.extend_from_slice(key);
    out.extend_from_slice(&version.to_be_bytes());
}

pub fn element_key(key: &[u8], version: u64, tag: Tag, element: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(ELEMENT_KEY_BYTES + key.len() + element.len());
    put_version_prefix(&mut out, key, version);
    out.push(tag as u8);
    out.extend_from_slice(element);
    out.into()
}

/// Makes the keys of many elements of one version with one tag.
pub struct ElementKeys(Bytes);

impl ElementKeys {
    pub fn new(key: &[u8], version: u64, tag: Tag) -> Self {
        Self(element_key(key, version, tag, &[]))
    }

    pub fn of(&self, element: &[u8]) -> Bytes {
        let mut out = Vec::with_capacity(self.0.len() + element.len());
        out.extend_from_slice(&self.0);
        out.extend_from_slice(element);
        out.into()
    }
}

/// The keys of all places of a sorted set, as far as its header says where they are: from here (inclusive) to there (exclusive).
pub fn places_range(key: &[u8], version: u64, bounds: &Bounds) -> (Bytes, Bytes) {
    let start = element_key(key, version, Tag::ByScore, bounds.low.as_bytes());
    let high = bounds.high.as_ref().map_or(&[][..], Cut::as_bytes);
    let end = prefix_end(&element_key(key, version, Tag::ByScore, high));
    (start, end)
}

/// Where the member of a sorted set stands, by the key and the value of the element with its score. None: it is none.
pub fn place_of_score(element_key: &[u8], score: &[u8]) -> Option<Cut> {
    let name = element_key.get(version_part(element_key)?.len()..)?;
    let (tag, member) = name.split_first()?;
    let score = f64::from_le_bytes(score.try_into().ok()?);
    (*tag == Tag::Score as u8).then(|| Cut::of(score, member))
}

/// The keys of all elements of one version with one tag: from here (inclusive) to there (exclusive).
pub fn element_range(key: &[u8], version: u64, tag: Tag) -> (Bytes, Bytes) {
    let start = element_key(key, version, tag, &[]);
    let end = prefix_end(&start);
    (start, end)
}

/// The element in the key of one of this client's key.
pub fn element_of<'e>(element_key: &'e [u8], key: &[u8]) -> &'e [u8] {
    element_key.get(ELEMENT_KEY_BYTES + key.len()..).unwrap_or_default()
}

/// A score so that bytes sort as numbers do. (No NaN; -0 is 0.)
pub fn sortable(score: f64) -> [u8; 8] {
    let bits = (score + 0.0).to_bits();
    (if bits >> 63 == 1 { !bits } else { bits | 1 << 63 }).to_be_bytes()
}

pub fn from_sortable(bytes: [u8; 8]) -> f64 {
    let bits = u64::from_be_bytes(bytes);
    f64::from_bits(if bits >> 63 == 1 { bits & !(1 << 63) } else { !bits })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::key::routing_part;

    #[test]
    fn a_header_has_these_bytes() {
        let header = Header { ends: Some((4, 5)), ..Header::new(2, 3) };
        let bytes = header.encode();
        assert_eq!(bytes.len(), LIST_HEADER_BYTES);
        assert_eq!(&bytes[..10], [1, 0, 0, 0, 0, 0, 0, 0, 2, 0]);
        assert_eq!(Header::decode(&bytes), Some(header));
        assert_eq!(Header::decode(&bytes[..HEADER_BYTES]), Some(Header::new(2, 3)));
        for cut in 0..HEADER_BYTES {
            assert_eq!(Header::decode(&bytes[..cut]), None);
        }
    }

    #[test]
    fn a_header_with_bounds_has_these_bytes_and_every_version_can_read_its_first_part() {
        let bounds = Bounds { low: Cut::of(1.0, b"a"), high: Some(Cut::new(b"b")) };
        let header = Header { bounds, ..Header::new(2, 3) };
        let bytes = header.encode();
        let places = [9, 0xbf, 0xf0, 0, 0, 0, 0, 0, 0, b'a', 1, b'b'];
        assert_eq!(&bytes[..], &[&[2][..], &2u64.to_be_bytes(), &3u64.to_be_bytes(), &places].concat());
        assert_eq!(Header::decode(&bytes), Some(header));
        for cut in 0..bytes.len() {
            assert_eq!(Header::decode(&bytes[..cut]), None);
        }
        let (plain, more) = Header::split_bounds(&bytes);
        assert_eq!((Header::decode(&plain), &more[..]), (Some(Header::new(2, 3)), &places[..]));
        assert_eq!(Header::join_bounds(plain.clone(), &more), bytes);
        assert_eq!(Header::join_bounds(plain.clone(), b"?"), plain);
        let list = Header { ends: Some((4, 5)), ..Header::new(2, 3) }.encode();
        assert_eq!(Header::split_bounds(&list), (list.clone(), Bytes::new()));
        assert_eq!(Header::join_bounds(list.clone(), &more), list);
    }

    #[test]
    fn places_are_between_their_bounds() {
        let place = |score: f64, member: &[u8]| {
            element_key(b"key", 7, Tag::ByScore, &[&sortable(score)[..], member].concat())
        };
        let within = |bounds: &Bounds, place: &Bytes| {
            let (start, end) = places_range(b"key", 7, bounds);
            start <= *place && *place < end
        };
        for member in [&b""[..], b"m", &[0xff; 16], &[0xff; 40], &[7; 20]] {
            for score in [f64::NEG_INFINITY, -1.0, 0.0, 1e300, f64::INFINITY] {
                let (here, cut) = (place(score, member), Cut::of(score, member));
                let value = score.to_le_bytes();
                assert_eq!(place_of_score(&element_key(b"key", 7, Tag::Score, member), &value), Some(cut));
                for bounds in [Bounds::default(), Bounds { low: cut, high: Some(cut) }] {
                    assert!(within(&bounds, &here), "{bounds:?}");
                }
                assert!(!within(&Bounds { low: cut, high: Some(cut) }, &place(-2.0, b"m")));
                assert!(!within(&Bounds { low: cut, high: Some(cut) }, &place(2.0, b"m")));
            }
        }
        assert_eq!(places_range(b"key", 7, &Bounds::default()), element_range(b"key", 7, Tag::ByScore));
        assert_eq!(place_of_score(&element_key(b"key", 7, Tag::Field, b"m"), &[0; 8]), None);
        assert_eq!(place_of_score(b"k", &[0; 8]), None);
    }

    proptest! {
        #[test]
        fn elements_are_where_their_object_is(
            key in prop::collection::vec(any::<u8>(), 1..40), version: u64, element in prop::collection::vec(any::<u8>(), 0..20),
            other in prop::collection::vec(any::<u8>(), 1..40),
        ) {
            let elements = elements_options();
            let name = element_key(&key, version, Tag::Field, &element);
            prop_assert_eq!(routing_part(&name, &elements), routing_part(&key, &TableOptions::default()));
            prop_assert_eq!((inner_key(&name), version_of(&name)), (Some(&key[..]), Some(version)));
            prop_assert_eq!(element_of(&name, &key), &element[..]);
            let (start, end) = element_range(&key, version, Tag::Field);
            prop_assert!(start <= name && name < end);
            prop_assert_eq!(name.starts_with(&object_prefix(&other)), key == other);
        }

        #[test]
        fn scores_sort_as_numbers(a in any::<f64>(), b in any::<f64>()) {
            prop_assume!(!a.is_nan() && !b.is_nan());
            prop_assert_eq!(sortable(a).cmp(&sortable(b)), (a + 0.0).partial_cmp(&(b + 0.0)).unwrap());
            prop_assert_eq!(from_sortable(sortable(a)), a);
        }

        #[test]
        fn no_key_is_too_strange(key in prop::collection::vec(any::<u8>(), 0..20)) {
            let _ = (inner_key(&key), version_of(&key), element_of(&key, &key), Header::decode(&key), place_of_score(&key, &[0; 8]));
            let _ = routing_part(&key, &elements_options());
        }
    }
}
