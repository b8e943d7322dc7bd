use sextant_common::ids::{Epoch, LogPosition, PartitionId, SstId};

/// Bytes, and text where the bytes are some.
pub fn sst_id(data: &[u8]) {
    if let Some(id) = SstId::from_bytes(data) {
        assert_eq!(id.to_bytes(), data);
        assert_eq!(id.to_string().parse::<SstId>().ok(), Some(id));
    }
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(id) = text.parse::<SstId>()
    {
        // Two names of one table would be two files of one table.
        assert_eq!(id.to_string(), text);
        assert_eq!(SstId::from_bytes(&id.to_bytes()), Some(id));
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    let id = |n: u64| SstId {
        partition: PartitionId(n as u32),
        plan: LogPosition { term: n, index: n.wrapping_mul(2) },
        epoch: Epoch { term: n, incarnation: n & 0xffff_ffff },
        counter: n as u32,
    };
    let ids = [id(0), id(7), id(u64::MAX)];
    ids.iter().flat_map(|id| [id.to_bytes().to_vec(), id.to_string().into_bytes()]).collect()
}
