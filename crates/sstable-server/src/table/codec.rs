//! Integers as the table format writes them: little-endian, or as LEB128 varints.

/// Longest varint of a u64.
pub const VARINT_BYTES_MAX: usize = 10;

pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Reads a varint at `at` and moves `at` behind it. `None`: the bytes end or the number does not fit.
#[inline]
pub fn varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let first = *bytes.get(*at)?;
    *at += 1;
    if first < 0x80 {
        return Some(u64::from(first));
    }
    varint_tail(bytes, at, first)
}

fn varint_tail(bytes: &[u8], at: &mut usize, first: u8) -> Option<u64> {
    let mut value = u64::from(first & 0x7f);
    for i in 1..VARINT_BYTES_MAX {
        let byte = *bytes.get(*at)?;
        *at += 1;
        let bits = u64::from(byte & 0x7f);
        // The tenth byte holds the last bit of 64.
        if i == VARINT_BYTES_MAX - 1 && bits > 1 {
            return None;
        }
        value |= bits << (7 * i);
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[inline]
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

#[inline]
pub fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

/// The number of leading bytes that both have.
#[inline]
pub fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let most = a.len().min(b.len());
    let mut at = 0;
    while at + 8 <= most {
        // Both slices have 8 bytes from `at` on.
        let (x, y) = (u64_at(a, at).unwrap_or(0), u64_at(b, at).unwrap_or(0));
        if x != y {
            return at + ((x ^ y).trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    while at < most && a[at] == b[at] {
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn varints_round_trip(value in any::<u64>(), shift in 0u32..64) {
            let value = value >> shift;
            let mut out = Vec::new();
            put_varint(&mut out, value);
            prop_assert!(out.len() <= VARINT_BYTES_MAX);
            let mut at = 0;
            prop_assert_eq!(varint(&out, &mut at), Some(value));
            prop_assert_eq!(at, out.len());
            prop_assert_eq!(varint(&out[..out.len() - 1], &mut 0), None);
        }

        #[test]
        fn common_prefix_agrees_with_the_plain_count(a in prop::collection::vec(0u8..2, 0..40), b in prop::collection::vec(0u8..2, 0..40)) {
            let plain = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
            prop_assert_eq!(common_prefix(&a, &b), plain);
        }
    }

    #[test]
    fn a_varint_that_does_not_fit_is_refused() {
        assert_eq!(varint(&[0xff; 11], &mut 0), None);
        let mut most = vec![0xff; 9];
        most.push(1);
        assert_eq!(varint(&most, &mut 0), Some(u64::MAX));
        most[9] = 2;
        assert_eq!(varint(&most, &mut 0), None);
    }
}
