//! A record: all fields in one value, stamped so that a wrong answer is recognised.
//!
//! ```text
//! 0   u8   format = 1
//! 1   u8   number of fields, 1 to 255
//! 2   u32  bytes of each field, little-endian
//! 6   u64  stamp: xxh3_64 of the fields, with xxh3_64 of the key as its seed, little-endian
//! 14       the fields, one after the other: printable characters
//! ```
//!
//! All fields have one length, so none is stored with each. The stamp ties the value to its key: a value that belongs to
//! another key, or that is torn or truncated, does not verify. 10 fields of 100 B make a value of 1014 B.

use bytes::{BufMut, Bytes, BytesMut};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

const FORMAT: u8 = 1;
pub const HEADER_BYTES: usize = 14;

/// The shape of all records of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub fields: u8,
    pub field_bytes: u32,
}

/// What is wrong with a value that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// Not a record of this generator, or of another shape.
    Shape,
    /// The value does not belong to its key, or is damaged.
    Stamp,
}

impl Wrong {
    pub fn name(self) -> &'static str {
        match self {
            Wrong::Shape => "wrong-shape",
            Wrong::Stamp => "wrong-value",
        }
    }
}

impl Layout {
    /// Splits `value_bytes` evenly over `fields`; what does not divide is left out. `None` if a field would be empty.
    pub fn new(value_bytes: u32, fields: u8) -> Option<Self> {
        let field_bytes = value_bytes.checked_div(u32::from(fields))?;
        (field_bytes > 0).then_some(Self { fields, field_bytes })
    }

    /// Bytes of a stored value.
    pub fn value_bytes(&self) -> usize {
        HEADER_BYTES + self.body_bytes()
    }

    fn body_bytes(&self) -> usize {
        usize::from(self.fields) * self.field_bytes as usize
    }

    /// A record with random fields.
    pub fn generate(&self, key: &[u8], rng: &mut fastrand::Rng) -> Bytes {
        let mut value = BytesMut::with_capacity(self.value_bytes());
        self.put_header(&mut value);
        fill_printable(&mut value, self.body_bytes(), rng);
        seal(key, value)
    }

    /// The same record with one random field rewritten: the "modify" of workload F. `value` must have verified.
    pub fn modify(&self, key: &[u8], value: &[u8], rng: &mut fastrand::Rng) -> Bytes {
        let mut new = BytesMut::with_capacity(self.value_bytes());
        new.put_slice(value);
        let field = rng.u8(..self.fields);
        let start = HEADER_BYTES + usize::from(field) * self.field_bytes as usize;
        let mut fresh = BytesMut::with_capacity(self.field_bytes as usize);
        fill_printable(&mut fresh, self.field_bytes as usize, rng);
        new[start..start + fresh.len()].copy_from_slice(&fresh);
        seal(key, new)
    }

    /// Checks that `value` is a whole record of this shape that was written for `key`.
    pub fn verify(&self, key: &[u8], value: &[u8]) -> Result<(), Wrong> {
        let mut header = BytesMut::with_capacity(HEADER_BYTES);
        self.put_header(&mut header);
        if value.len() != self.value_bytes() || value[..6] != header[..6] {
            return Err(Wrong::Shape);
        }
        let stamp = u64::from_le_bytes(value[6..HEADER_BYTES].try_into().map_err(|_| Wrong::Shape)?);
        if stamp != stamp_of(key, &value[HEADER_BYTES..]) {
            return Err(Wrong::Stamp);
        }
        Ok(())
    }

    fn put_header(&self, out: &mut BytesMut) {
        out.put_u8(FORMAT);
        out.put_u8(self.fields);
        out.put_u32_le(self.field_bytes);
        out.put_u64_le(0);
    }
}

fn stamp_of(key: &[u8], body: &[u8]) -> u64 {
    xxh3_64_with_seed(body, xxh3_64(key))
}

fn seal(key: &[u8], mut value: BytesMut) -> Bytes {
    let stamp = stamp_of(key, &value[HEADER_BYTES..]);
    value[6..HEADER_BYTES].copy_from_slice(&stamp.to_le_bytes());
    value.freeze()
}

/// Appends `bytes` random characters out of `0` to `o` (64 of them: six random bits each, with no division).
fn fill_printable(out: &mut BytesMut, bytes: usize, rng: &mut fastrand::Rng) {
    let mut left = bytes;
    while left > 0 {
        let chunk = rng.u64(..) & 0x3f3f_3f3f_3f3f_3f3f;
        let chunk = (chunk + 0x3030_3030_3030_3030).to_le_bytes();
        let take = left.min(chunk.len());
        out.put_slice(&chunk[..take]);
        left -= take;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const YCSB: Layout = Layout { fields: 10, field_bytes: 100 };

    #[test]
    fn a_record_verifies_for_its_key_only() {
        let mut rng = fastrand::Rng::with_seed(1);
        let value = YCSB.generate(b"user1", &mut rng);
        assert_eq!(value.len(), 1014);
        assert!(value[HEADER_BYTES..].iter().all(|b| (b'0'..=b'o').contains(b)));
        assert_eq!(YCSB.verify(b"user1", &value), Ok(()));
        assert_eq!(YCSB.verify(b"user2", &value), Err(Wrong::Stamp));
    }

    #[test]
    fn damage_is_found() {
        let mut rng = fastrand::Rng::with_seed(2);
        let value = YCSB.generate(b"k", &mut rng);
        for at in 0..value.len() {
            let mut bad = value.to_vec();
            bad[at] ^= 1;
            assert!(YCSB.verify(b"k", &bad).is_err(), "byte {at}");
        }
        assert_eq!(YCSB.verify(b"k", &value[..1013]), Err(Wrong::Shape));
        assert_eq!(YCSB.verify(b"k", b""), Err(Wrong::Shape));
    }

    #[test]
    fn modify_changes_one_field() {
        let mut rng = fastrand::Rng::with_seed(3);
        let old = YCSB.generate(b"k", &mut rng);
        let new = YCSB.modify(b"k", &old, &mut rng);
        assert_eq!(YCSB.verify(b"k", &new), Ok(()));
        let changed = (0..10)
            .filter(|f| {
                let field = HEADER_BYTES + f * 100..HEADER_BYTES + (f + 1) * 100;
                old[field.clone()] != new[field]
            })
            .count();
        assert_eq!(changed, 1);
    }

    #[test]
    fn layouts_need_a_byte_a_field() {
        assert_eq!(Layout::new(1000, 10), Some(YCSB));
        assert_eq!(Layout::new(7, 7), Some(Layout { fields: 7, field_bytes: 1 }));
        assert_eq!(Layout::new(6, 7), None);
        assert_eq!(Layout::new(6, 0), None);
    }
}
