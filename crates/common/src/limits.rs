//! The published size limits. Beyond them a request is refused with an error that states the limit.

use crate::error::{Error, Result};
use crate::operation::{TOLD_BYTES_MAX, WEIGHT_BYTES};

/// Longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 16 * 1024;
/// Longest value, in bytes.
pub const VALUE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// What has more bytes than this is large: a request, a value, an answer. It travels apart from what is small, and takes room in
/// memory before it is read or built.
pub const LARGE_BYTES: usize = 64 * 1024;
/// Largest batch (keys and values together), in bytes. Also the largest Raft entry, less a little framing.
pub const BATCH_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Most operations in one batch.
pub const BATCH_OPS_MAX: usize = 100_000;
/// What servers remember of one session, in operations: the answers to its newest requests, for those that are repeated. One that
/// tells a value counts for more ([`answer_weight_max`]).
pub const REMEMBERED_OPS_MAX: usize = 128 * 1024;
/// Values that are remembered of one request, in bytes.
pub const REMEMBERED_BYTES_MAX: usize = 64 * 1024;
/// Longest name of a table, in bytes.
pub const TABLE_NAME_BYTES_MAX: usize = 128;
/// Most SSTables that one compaction takes: each has a file and buffers of half a megabyte.
pub const COMPACTION_INPUTS_MAX: usize = 256;
/// Most SSTables that one compaction makes: each is ordered, copied and named in the log one by one.
pub const COMPACTION_OUTPUTS_MAX: usize = 128;
/// Most tables in a cluster: each has a memtable and filters in every partition.
pub const TABLES_MAX: usize = 1024;

/// The most that the answer to a request weighs of [`REMEMBERED_OPS_MAX`]; `telling`: those of its operations that ask for a value.
pub fn answer_weight_max(ops: usize, telling: usize) -> usize {
    ops + (telling * (TOLD_BYTES_MAX / WEIGHT_BYTES)).min(REMEMBERED_BYTES_MAX / WEIGHT_BYTES)
}

/// How many numbers a request takes of a session in which `span` may be outstanding: so many that what is outstanding is remembered.
pub fn numbers_taken(weight: usize, span: u64) -> u64 {
    let one = REMEMBERED_OPS_MAX as u64 / span;
    (weight as u64).div_ceil(one).clamp(1, span)
}

/// Checks a key: 1 byte to [`KEY_BYTES_MAX`].
pub fn check_key(key: &[u8]) -> Result<()> {
    if key.is_empty() {
        return Err(Error::invalid("key is empty: a key has 1 byte to 16 KiB"));
    }
    if key.len() > KEY_BYTES_MAX {
        return Err(Error::invalid(format!(
            "key has {} bytes: the limit is {KEY_BYTES_MAX} bytes (16 KiB)",
            key.len()
        )));
    }
    Ok(())
}

/// Checks a value: up to [`VALUE_BYTES_MAX`].
pub fn check_value(value: &[u8]) -> Result<()> {
    if value.len() > VALUE_BYTES_MAX {
        return Err(Error::invalid(format!(
            "value has {} bytes: the limit is {VALUE_BYTES_MAX} bytes (8 MiB)",
            value.len()
        )));
    }
    Ok(())
}

/// Checks the sum of the sizes of a batch's keys and values, and the number of its operations.
pub fn check_batch(ops: usize, bytes: usize) -> Result<()> {
    if ops > BATCH_OPS_MAX {
        return Err(Error::invalid(format!("batch has {ops} operations: the limit is {BATCH_OPS_MAX}")));
    }
    if bytes > BATCH_BYTES_MAX {
        return Err(Error::invalid(format!(
            "batch has {bytes} bytes: the limit is {BATCH_BYTES_MAX} bytes (16 MiB)"
        )));
    }
    Ok(())
}

/// Checks a table's name: 1 to [`TABLE_NAME_BYTES_MAX`] characters out of letters, digits, `_`, `-` and `.`.
pub fn check_table_name(name: &str) -> Result<()> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() || name.len() > TABLE_NAME_BYTES_MAX || !name.chars().all(good) {
        return Err(Error::invalid(format!(
            "bad table name {name:?}: 1 to {TABLE_NAME_BYTES_MAX} characters out of A-Z a-z 0-9 _ - ."
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_are_inclusive_and_named_in_the_error() {
        check_key(b"k").unwrap();
        check_key(&[0; KEY_BYTES_MAX]).unwrap();
        check_value(b"").unwrap();
        check_value(&vec![0; VALUE_BYTES_MAX]).unwrap();
        check_batch(BATCH_OPS_MAX, BATCH_BYTES_MAX).unwrap();
        for (result, limit) in [
            (check_key(b""), "1 byte to 16 KiB"),
            (check_key(&[0; KEY_BYTES_MAX + 1]), "16 KiB"),
            (check_value(&vec![0; VALUE_BYTES_MAX + 1]), "8 MiB"),
            (check_batch(BATCH_OPS_MAX + 1, 0), "100000"),
            (check_batch(1, BATCH_BYTES_MAX + 1), "16 MiB"),
        ] {
            let error = result.unwrap_err();
            assert_eq!(error.kind, crate::ErrorKind::Invalid);
            assert!(error.message.contains(limit), "{error} does not name {limit}");
        }
    }

    #[test]
    fn a_table_name_is_plain_and_short() {
        for name in ["default", "a", "A-1_b.c", &"x".repeat(TABLE_NAME_BYTES_MAX)] {
            check_table_name(name).unwrap();
        }
        for name in ["", "a b", "a/b", "\u{e4}", "a\n", &"x".repeat(TABLE_NAME_BYTES_MAX + 1)] {
            assert_eq!(check_table_name(name).unwrap_err().kind, crate::ErrorKind::Invalid, "{name:?}");
        }
    }
}
