//! What a record carries beside its value: what it is, and until when. One word, so that both pass through the log, memtables, tables
//! and answers as one.
//!
//! The word: 0: nothing. Its highest bit is not set: from when on there is no record (milliseconds since 1970) of plain bytes. It is
//! set: three bits of the kind, 60 of that time, 0: it does not expire. Words of older versions, which know no kinds, mean what they
//! meant.

use crate::expiry::Tick;

/// What the value of a record is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// The bytes that a client has written.
    #[default]
    Plain,
    /// The header of an object of the Redis protocol ([`crate::object`]): its elements are records of their own.
    Hash,
    Set,
    SortedSet,
    List,
}

impl Kind {
    /// Those of objects.
    pub const OBJECTS: [Kind; 4] = [Kind::Hash, Kind::Set, Kind::SortedSet, Kind::List];

    /// As it is stored and travels.
    pub fn number(self) -> u8 {
        self as u8
    }

    pub fn from_number(number: u8) -> Option<Self> {
        [Kind::Plain].into_iter().chain(Kind::OBJECTS).find(|kind| kind.number() == number)
    }

    /// As Redis calls it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Plain => "string",
            Kind::Hash => "hash",
            Kind::Set => "set",
            Kind::SortedSet => "zset",
            Kind::List => "list",
        }
    }
}

/// What a record carries beside its value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Marks(u64);

const OBJECT: u64 = 1 << 63;
const KIND_SHIFT: u32 = 60;
/// The latest time that an object may end at: millions of years from now. What is later counts as this.
const TIME_MAX: u64 = (1 << KIND_SHIFT) - 1;

impl Marks {
    /// Plain bytes that do not expire.
    pub const NONE: Marks = Marks(0);

    pub fn new(kind: Kind, expires_at: Option<Tick>) -> Self {
        let at = expires_at.map(|at| at.0.max(1));
        match kind {
            Kind::Plain => Self(at.map_or(0, |at| at.min(OBJECT - 1))),
            kind => {
                Self(OBJECT | u64::from(kind.number()) << KIND_SHIFT | at.map_or(0, |at| at.min(TIME_MAX)))
            }
        }
    }

    /// Of plain bytes.
    pub fn until(at: Tick) -> Self {
        Self::new(Kind::Plain, Some(at))
    }

    pub fn from_word(word: u64) -> Self {
        let kind = Kind::from_number((word >> KIND_SHIFT & 7) as u8);
        match kind.filter(|kind| *kind != Kind::Plain) {
            _ if word < OBJECT => Self(word),
            Some(_) => Self(word),
            // Of a version before kinds: so late that it never comes.
            None => Self(OBJECT - 1),
        }
    }

    pub fn word(self) -> u64 {
        self.0
    }

    /// Neither a kind nor an end.
    #[inline]
    pub fn is_none(self) -> bool {
        self.0 == 0
    }

    /// None: it does not expire.
    #[inline]
    pub fn expires_at(self) -> Option<Tick> {
        let at = if self.0 < OBJECT { self.0 } else { self.0 & TIME_MAX };
        (at > 0).then_some(Tick(at))
    }

    #[inline]
    pub fn kind(self) -> Kind {
        if self.0 < OBJECT {
            return Kind::Plain;
        }
        Kind::from_number((self.0 >> KIND_SHIFT & 7) as u8).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn words_of_older_versions_mean_what_they_meant() {
        assert_eq!(Marks::from_word(0), Marks::NONE);
        assert_eq!(Marks::from_word(9).expires_at(), Some(Tick(9)));
        assert_eq!(Marks::from_word(i64::MAX as u64).expires_at(), Some(Tick(i64::MAX as u64)));
        assert_eq!(Marks::from_word(u64::MAX).kind(), Kind::Plain);
        assert_eq!(Marks::from_word(u64::MAX).expires_at(), Some(Tick(i64::MAX as u64)), "later than any");
    }

    proptest! {
        #[test]
        fn kind_and_end_are_found_again(kind in 0u8..5, at in prop::option::of(1..TIME_MAX), word in any::<u64>()) {
            let kind = Kind::from_number(kind).unwrap();
            let marks = Marks::new(kind, at.map(Tick));
            prop_assert_eq!((marks.kind(), marks.expires_at()), (kind, at.map(Tick)));
            prop_assert_eq!(marks.is_none(), kind == Kind::Plain && at.is_none());
            prop_assert_eq!(Marks::from_word(marks.word()), marks);
            let marks = Marks::from_word(word);
            prop_assert_eq!(Marks::new(marks.kind(), marks.expires_at()), marks);
        }
    }
}
