//! YCSB's keys: `user` and the decimal FNV-1a hash of the record's number, so that neighbours in number are strangers in
//! order.

use bytes::Bytes;

const FNV_OFFSET_BASIS_64: u64 = 0xCBF2_9CE4_8422_2325;
const FNV_PRIME_64: u64 = 1_099_511_628_211;

/// YCSB's `Utils.fnvhash64`: FNV-1a over the eight bytes of the number, least significant first, made positive as Java does.
pub fn fnv_hash64(number: u64) -> u64 {
    let hash = number
        .to_le_bytes()
        .iter()
        .fold(FNV_OFFSET_BASIS_64, |hash, octet| (hash ^ u64::from(*octet)).wrapping_mul(FNV_PRIME_64));
    (hash as i64).unsigned_abs()
}

/// The key of record `number`, as YCSB with `insertorder=hashed` names it.
pub fn key(number: u64) -> Bytes {
    Bytes::from(format!("user{}", fnv_hash64(number)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_ycsb() {
        // The first records that YCSB's own `load` prints.
        assert_eq!(key(0), "user6284781860667377211");
        assert_eq!(key(1), "user8517097267634966620");
        assert_eq!(key(2), "user1820151046732198393");
    }
}
