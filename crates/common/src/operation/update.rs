//! Changes that depend on the value they meet, and what is told of them. The sequencer of a partition makes them, against the
//! newest appended state: so a contended counter needs no retries.
//!
//! The rules for numbers are those of Redis, so that its clients find what they know: an integer is a 64-bit one in decimal
//! text, without blanks, sign of plus or leading zeros; a record that does not exist counts as 0, or as empty.

use std::str::FromStr;

use bytes::{Bytes, BytesMut};
use rust_decimal::Decimal;

use super::Effect;
use crate::limits::VALUE_BYTES_MAX;
use crate::marks::Kind;
use crate::object::{Cut, Header, place_of_score};

/// Most digits after the point of a sum of decimals: it is rounded to so many.
const FRACTION_DIGITS_MAX: u32 = 17;

/// A change of the value that it meets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    /// Adds to an integer.
    Increment(i64),
    /// Adds to a decimal number. Both, and the sum, are rounded to 17 digits after the point, and to 28 in all.
    IncrementDecimal(Decimal),
    Append(Bytes),
    /// Writes over what stands from `offset` on, in bytes; what is missing before is filled with zeros. Without bytes it
    /// changes nothing.
    SetRange {
        offset: u32,
        bytes: Bytes,
    },
    /// The value stays: for a change of the record's lifetime. Where there is no record, none is made.
    Touch,
    /// Of the header of an object: counts what the `counted` operations right before this one in its batch have done to elements.
    /// None of them took effect: it stays as it is; there are none left: it goes.
    Count {
        kind: Kind,
        /// The header has to be of this version.
        version: u64,
        /// Or there is none, and then one is made.
        creates: bool,
        counted: u32,
    },
    /// Puts the header of an object, whatever is there.
    Header {
        kind: Kind,
        value: Bytes,
    },
}

/// What operations have done to the elements of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub changed: bool,
    pub added: u64,
    pub removed: u64,
    /// The first and the last place that members of a sorted set have got.
    pub places: Option<(Cut, Cut)>,
}

impl Tally {
    /// Of operations, each on this key, with whether it took effect, and whether there was a record before.
    pub fn of<'o>(done: impl IntoIterator<Item = (&'o Bytes, &'o Effect, bool, bool)>) -> Self {
        let mut tally = Self::default();
        for (key, effect, applied, existed) in done {
            match effect {
                _ if !applied => continue,
                Effect::Check => continue,
                Effect::Delete => tally.removed += u64::from(existed),
                Effect::Put(value) => {
                    tally.added += u64::from(!existed);
                    tally.meet(place_of_score(key, value));
                }
                Effect::Update(_) => tally.added += u64::from(!existed),
            }
            tally.changed = true;
        }
        tally
    }

    fn meet(&mut self, place: Option<Cut>) {
        let Some(place) = place else { return };
        let (first, last) = self.places.unwrap_or((place, place));
        self.places = Some((first.min(place), last.max(place)));
    }
}

/// A record that is there, as a change meets it.
#[derive(Clone, Copy, Debug)]
pub struct Present<'r> {
    pub value: &'r Bytes,
    pub kind: Kind,
}

/// Which value an operation is answered with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Returns {
    #[default]
    Nothing,
    /// The one that it met, applied or not; [`OpOutcome::existed`](super::OpOutcome::existed) says whether there was one.
    Before,
    /// The one that it left, if it was applied and left one.
    After,
}

/// Why an update does not go with the value that it meets: nothing of its batch takes effect then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misfit {
    NotAnInteger,
    NotANumber,
    /// The sum has no place in 64 bits, or in 28 digits.
    Overflow,
    /// The value would be longer than [`VALUE_BYTES_MAX`], or all values of a batch longer than a batch may be.
    TooLong,
    /// The record is an object, and has no value.
    WrongKind,
    /// The object is not the one that the operations are for, or it is none.
    OtherObject,
}

/// What an operation tells beside whether it took effect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Told {
    #[default]
    Nothing,
    /// What [`Returns`] asked for.
    Value(Bytes),
    /// Of the value that an [`Update::Append`] or [`Update::SetRange`] left, in bytes.
    Length(u64),
    /// The answer was lost, the request repeated, and the value longer than what is kept for that: it took effect, once, and nobody
    /// can say any more what it met.
    Forgotten,
    Misfit(Misfit),
}

impl Told {
    pub fn value(&self) -> Option<&Bytes> {
        match self {
            Told::Value(value) => Some(value),
            _ => None,
        }
    }

    /// In bytes.
    pub fn bytes(&self) -> usize {
        self.value().map_or(0, Bytes::len)
    }
}

impl Misfit {
    /// As it is said to people.
    pub fn message(self) -> &'static str {
        match self {
            Misfit::NotAnInteger => "value is not an integer or out of range",
            Misfit::NotANumber => "value is not a valid float",
            Misfit::Overflow => "increment or decrement would overflow",
            Misfit::TooLong => "the value would be longer than a value, or a batch, may be",
            Misfit::WrongKind => "the record is an object, and has no value of its own",
            Misfit::OtherObject => "the object is not the one that was there",
        }
    }
}

impl Update {
    /// What it carries: in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Update::Append(bytes) | Update::SetRange { bytes, .. } => bytes.len(),
            Update::Header { value, .. } => value.len(),
            Update::Increment(_) | Update::IncrementDecimal(_) | Update::Touch | Update::Count { .. } => 0,
        }
    }

    /// The least length of the value that it leaves, in bytes.
    pub fn least_bytes(&self) -> usize {
        match self {
            Update::SetRange { bytes, .. } if bytes.is_empty() => 0,
            Update::SetRange { offset, bytes } => (*offset as usize).saturating_add(bytes.len()),
            other => other.bytes(),
        }
    }

    /// What it makes of a value; `before`: None if there is no record. None: it changes nothing.
    pub fn apply(&self, before: Option<&[u8]>) -> Result<Option<Bytes>, Misfit> {
        match self {
            Update::Increment(by) => {
                let old = before.map_or(Some(0), parse_integer).ok_or(Misfit::NotAnInteger)?;
                let sum = old.checked_add(*by).ok_or(Misfit::Overflow)?;
                Ok(Some(Bytes::from(sum.to_string())))
            }
            Update::IncrementDecimal(by) => {
                let old = before.map_or(Some(Decimal::ZERO), parse_decimal).ok_or(Misfit::NotANumber)?;
                let sum = rounded(old).checked_add(rounded(*by)).ok_or(Misfit::Overflow)?;
                Ok(Some(Bytes::from(decimal_text(sum))))
            }
            Update::Append(bytes) => {
                let before = before.unwrap_or_default();
                let mut value = with_room(before.len(), bytes.len())?;
                value.extend_from_slice(before);
                value.extend_from_slice(bytes);
                Ok(Some(value.freeze()))
            }
            Update::SetRange { bytes, .. } if bytes.is_empty() => Ok(None),
            Update::SetRange { offset, bytes } => {
                let (before, start) = (before.unwrap_or_default(), *offset as usize);
                let end = start.saturating_add(bytes.len());
                let mut value = with_room(end, before.len().saturating_sub(end))?;
                value.extend_from_slice(&before[..before.len().min(start)]);
                value.resize(start, 0);
                value.extend_from_slice(bytes);
                value.extend_from_slice(before.get(end..).unwrap_or_default());
                Ok(Some(value.freeze()))
            }
            Update::Touch => Ok(before.map(Bytes::copy_from_slice)),
            Update::Count { .. } | Update::Header { .. } => Err(Misfit::OtherObject),
        }
    }

    /// Whether it takes and leaves the header of an object.
    fn is_of_header(&self) -> bool {
        matches!(self, Update::Count { .. } | Update::Header { .. })
    }

    /// Whether the length that it leaves is told without being asked for.
    fn tells_length(&self) -> bool {
        matches!(self, Update::Append(_) | Update::SetRange { .. })
    }
}

/// What becomes of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    To(Bytes, Kind),
    Removed,
    /// It stays as it is, or absent.
    None,
}

/// What an effect makes of a record, and what it tells of that. `before`: the record; `tally`: of the operations that a
/// [`Update::Count`] counts; `room`: the longest value that an update may make.
pub fn change(
    effect: &Effect,
    returns: Returns,
    before: Option<Present<'_>>,
    tally: Tally,
    room: usize,
) -> Result<(Change, Option<Told>), Misfit> {
    check_kind(effect, returns, before)?;
    let kind_before = before.map_or(Kind::Plain, |record| record.kind);
    let before = before.map(|record| record.value);
    let change = match effect {
        Effect::Put(value) => Change::To(value.clone(), Kind::Plain),
        Effect::Delete => Change::Removed,
        Effect::Check => Change::None,
        // (Nothing is copied.)
        Effect::Update(Update::Touch) => {
            before.map_or(Change::None, |value| Change::To(value.clone(), kind_before))
        }
        Effect::Update(Update::Count { kind, version, creates, .. }) => {
            let there = before.map(|value| Header::decode(value).filter(|_| kind_before == *kind));
            let header = match there {
                None if *creates => Header::new(*version, 0),
                Some(Some(header)) if header.version == *version => header,
                _ => return Err(Misfit::OtherObject),
            };
            let count = header.count.saturating_add(tally.added).saturating_sub(tally.removed);
            match count {
                _ if !tally.changed => Change::None,
                0 if before.is_none() => Change::None,
                0 => Change::Removed,
                count => {
                    let bounds = header.bounds;
                    let bounds = tally.places.map_or(bounds, |(first, last)| bounds.and(first).and(last));
                    Change::To(Header { count, bounds, ..header }.encode(), *kind)
                }
            }
        }
        Effect::Update(Update::Header { kind, value }) => Change::To(value.clone(), *kind),
        Effect::Update(update) => match update.apply(before.map(|value| &value[..]))? {
            Some(value) if value.len() > room => return Err(Misfit::TooLong),
            Some(value) => Change::To(value, Kind::Plain),
            None => Change::None,
        },
    };
    let after = match &change {
        Change::To(value, _) => Some(value),
        Change::Removed => None,
        Change::None => before,
    };
    let told = match (returns, effect) {
        (Returns::Before, _) => before.cloned().map(Told::Value),
        (Returns::After, _) => after.cloned().map(Told::Value),
        (Returns::Nothing, Effect::Update(update)) if update.tells_length() => {
            Some(Told::Length(after.map_or(0, Bytes::len) as u64))
        }
        (Returns::Nothing, _) => None,
    };
    Ok((change, told))
}

/// Whether an operation goes with what kind of record it meets: an object has no value that could be told, or changed.
pub fn check_kind(effect: &Effect, returns: Returns, before: Option<Present<'_>>) -> Result<(), Misfit> {
    let is_object = before.is_some_and(|record| record.kind != Kind::Plain);
    let takes_value = match effect {
        Effect::Update(update) if update.is_of_header() => false,
        Effect::Update(Update::Touch) => returns != Returns::Nothing,
        Effect::Update(_) => true,
        Effect::Put(_) | Effect::Delete | Effect::Check => returns == Returns::Before,
    };
    if is_object && takes_value { Err(Misfit::WrongKind) } else { Ok(()) }
}

fn with_room(bytes: usize, more: usize) -> Result<BytesMut, Misfit> {
    let bytes = bytes.saturating_add(more);
    if bytes > VALUE_BYTES_MAX { Err(Misfit::TooLong) } else { Ok(BytesMut::with_capacity(bytes)) }
}

/// A decimal integer as Redis reads it: an optional minus, no plus, no leading zeros.
pub fn parse_integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        all => (false, all),
    };
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] => {}
        _ => return None,
    }
    // Summed up below zero, where there is room for i64::MIN.
    let mut value = 0i64;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        value = value.checked_mul(10)?.checked_sub(i64::from(digit - b'0'))?;
    }
    if negative { Some(value) } else { value.checked_neg() }
}

/// A decimal number, also with an exponent (`5.0e3`), rounded to as many digits as there is room for.
pub fn parse_decimal(text: &[u8]) -> Option<Decimal> {
    const TEXT_BYTES_MAX: usize = 64;
    let text = std::str::from_utf8(text).ok().filter(|text| text.len() <= TEXT_BYTES_MAX)?;
    let starts_well = text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.'));
    let is_plain = |c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.' | 'e' | 'E');
    if !starts_well || !text.chars().all(is_plain) || !text.contains(|c: char| c.is_ascii_digit()) {
        return None;
    }
    match text.split_once(['e', 'E']) {
        Some((digits, exponent)) => shifted(digits, exponent.parse().ok()?),
        None => Decimal::from_str(text).ok(),
    }
}

/// A number without an exponent, times so many tens.
fn shifted(digits: &str, exponent: i32) -> Option<Decimal> {
    /// Of shifts that leave anything of so short a text.
    const SHIFT_MAX: i32 = 128;
    let number = Decimal::from_str(digits).ok()?;
    if number.is_zero() || exponent < -SHIFT_MAX {
        return Some(Decimal::ZERO);
    }
    if exponent > SHIFT_MAX {
        return None;
    }
    let (sign, digits) = match digits.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", digits.strip_prefix('+').unwrap_or(digits)),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let (all, point) = ([whole, fraction].concat(), whole.len() as i32 + exponent);
    let text = match usize::try_from(point) {
        Ok(point) if point < all.len() => format!("{sign}{}.{}", &all[..point], &all[point..]),
        Ok(point) => format!("{sign}{all}{}", "0".repeat(point - all.len())),
        Err(_) => format!("{sign}0.{}{all}", "0".repeat(point.unsigned_abs() as usize)),
    };
    Decimal::from_str(&text).ok()
}

fn rounded(number: Decimal) -> Decimal {
    number.round_dp(FRACTION_DIGITS_MAX)
}

fn decimal_text(number: Decimal) -> String {
    rounded(number).normalize().to_string()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decimal(text: &str) -> Decimal {
        parse_decimal(text.as_bytes()).unwrap()
    }

    fn after(update: &Update, before: Option<&str>) -> Result<Option<String>, Misfit> {
        let value = update.apply(before.map(str::as_bytes))?;
        Ok(value.map(|value| String::from_utf8_lossy(&value).into_owned()))
    }

    #[test]
    fn integers_are_added_as_redis_does() {
        let add = |by, before| after(&Update::Increment(by), before);
        assert_eq!(add(1, None), Ok(Some("1".into())));
        assert_eq!(add(-3, Some("1")), Ok(Some("-2".into())));
        assert_eq!(add(0, Some("9223372036854775807")), Ok(Some("9223372036854775807".into())));
        assert_eq!(add(1, Some("9223372036854775807")), Err(Misfit::Overflow));
        assert_eq!(add(-1, Some("-9223372036854775808")), Err(Misfit::Overflow));
        for bad in ["", " 1", "1 ", "+1", "01", "-0", "-", "1.0", "x", "9223372036854775808", "\u{661}"] {
            assert_eq!(add(1, Some(bad)), Err(Misfit::NotAnInteger), "{bad:?}");
        }
    }

    #[test]
    fn decimals_are_added_exactly() {
        let add = |by: &str, before| after(&Update::IncrementDecimal(decimal(by)), before);
        for (by, before, sum) in [
            ("1.25", None, "1.25"),
            ("0.2", Some("0.1"), "0.3"),
            ("-1.5", Some("1.5"), "0"),
            ("2.0e2", Some("5.0e3"), "5200"),
            ("1", Some("3.000"), "4"),
            ("0.00000000000000001", Some("1"), "1.00000000000000001"),
            ("0.000000000000000001", Some("1"), "1"),
            (".5", Some("+1."), "1.5"),
        ] {
            assert_eq!(add(by, before), Ok(Some(sum.into())), "{before:?} + {by}");
        }
        for bad in ["", "x", "nan", "inf", "-inf", "1 ", " 1", "1e", "0x1", "_1", "1_0", "e5", "1e400"] {
            assert_eq!(add("1", Some(bad)), Err(Misfit::NotANumber), "{bad:?}");
        }
        let most = "79228162514264337593543950335";
        assert_eq!(add(most, Some(most)), Err(Misfit::Overflow));
    }

    #[test]
    fn decimals_are_rounded_where_their_digits_end_as_those_of_redis_are() {
        let add = |by: &str, before| after(&Update::IncrementDecimal(decimal(by)), Some(before));
        for (by, before, sum) in [
            ("1.1368683772161603e-13", "5", "5.00000000000011369"),
            ("1", "1.1368683772161603e-13", "1.00000000000011369"),
            ("-1.4210854715202004e-14", "100", "99.99999999999998579"),
            ("5e-324", "3", "3"),
            ("-1e-29", "0", "0"),
            ("1e-25", "1000000", "1000000"),
            ("1.4309223432509077e-07", "1000000", "1000000.00000014309223433"),
            ("0.000012345678901234567", "12345678901", "12345678901.00001234567890123"),
            ("0.00000000000000001", "1234567890123456", "1234567890123456"),
            ("1", "1.00000000000000000000000000000000001", "2"),
            ("-12.5e-1", "+1.25E+0", "0"),
            ("0e400", ".0e-400", "0"),
            ("7e27", "-.07e29", "0"),
        ] {
            assert_eq!(add(by, before), Ok(Some(sum.into())), "{before:?} + {by}");
        }
        assert_eq!(parse_decimal(b"1e29"), None);
        assert_eq!(parse_decimal(b"1e2147483648"), None);
    }

    #[test]
    fn what_is_appended_or_written_over_may_not_be_longer_than_a_value() {
        let longest = vec![b'x'; VALUE_BYTES_MAX];
        let append = Update::Append("y".into());
        assert_eq!(append.apply(Some(&longest)), Err(Misfit::TooLong));
        assert_eq!(append.apply(Some(&longest[1..])).unwrap().unwrap().len(), VALUE_BYTES_MAX);
        let set = |offset, bytes: &'static str| Update::SetRange { offset, bytes: bytes.into() };
        assert_eq!(set(u32::MAX, "y").apply(None), Err(Misfit::TooLong));
        assert_eq!(set(u32::MAX, "").apply(None), Ok(None), "nothing to write");
        assert_eq!(set(VALUE_BYTES_MAX as u32 - 1, "y").apply(None).unwrap().unwrap().len(), VALUE_BYTES_MAX);
        assert_eq!(after(&set(6, "Redis"), Some("Hello World")), Ok(Some("Hello Redis".into())));
        assert_eq!(after(&set(2, "x"), None), Ok(Some("\0\0x".into())));
        assert_eq!(after(&set(0, "J"), Some("hello")), Ok(Some("Jello".into())));
    }

    proptest! {
        #[test]
        fn no_value_is_too_strange_to_be_updated(
            before in prop::option::of(prop::collection::vec(any::<u8>(), 0..40)),
            by in any::<i64>(), offset in 0u32..60, bytes in prop::collection::vec(any::<u8>(), 0..20),
        ) {
            let old = before.as_deref();
            let bytes = Bytes::from(bytes);
            let _ = Update::Increment(by).apply(old);
            let _ = Update::IncrementDecimal(Decimal::from(by)).apply(old);
            let appended = Update::Append(bytes.clone()).apply(old).unwrap().unwrap();
            prop_assert_eq!(appended, [old.unwrap_or_default(), &bytes].concat());
            let set = Update::SetRange { offset, bytes: bytes.clone() };
            if let Some(value) = set.apply(old).unwrap() {
                let (start, old) = (offset as usize, old.unwrap_or_default());
                prop_assert_eq!(value.len(), old.len().max(start + bytes.len()));
                prop_assert_eq!(&value[start..start + bytes.len()], &bytes);
                for (at, byte) in value.iter().enumerate() {
                    if !(start..start + bytes.len()).contains(&at) {
                        prop_assert_eq!(*byte, old.get(at).copied().unwrap_or(0));
                    }
                }
            }
        }

        #[test]
        fn decimals_that_were_written_are_read_again(mantissa in any::<i64>(), scale in 0u32..17) {
            let text = decimal_text(Decimal::new(mantissa, scale));
            prop_assert_eq!(decimal(&text), Decimal::new(mantissa, scale));
        }
    }
}
