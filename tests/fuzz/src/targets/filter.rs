use sextant_common::filter::{LayeredBloom, SealedFilter};
use sextant_common::key::filter_hash;

use crate::memory::bounded;

/// A copy of the bits, and what parsing needs beside it.
const PER_BYTE: usize = 3;
const BASE: usize = 4096;

fn hashes(n: u64) -> Vec<u64> {
    (0..n).map(|i| filter_hash(&i.to_le_bytes())).collect()
}

fn layered_of(n: u64) -> LayeredBloom {
    let mut filter = LayeredBloom::new();
    hashes(n).into_iter().for_each(|hash| filter.insert(hash));
    filter
}

/// The filter's bytes.
pub fn layered(data: &[u8]) {
    let Ok(filter) = bounded(data.len(), BASE, PER_BYTE, || LayeredBloom::from_bytes(data)) else { return };
    let bytes = filter.to_bytes();
    assert_eq!(bytes, data, "a filter has one encoding");
    let Ok(mut copy) = LayeredBloom::from_bytes(&bytes) else { panic!("its own bytes are refused") };
    assert_eq!((copy.keys(), copy.memory_bytes()), (filter.keys(), filter.memory_bytes()));
    let probes = hashes(64);
    for hash in &probes {
        assert_eq!(copy.contains(*hash), filter.contains(*hash));
    }
    // It goes on growing where it is used, and is united with others when a freeze is undone.
    copy.insert(7);
    let mut united = filter.clone();
    united.union(copy.clone());
    assert!(copy.contains(7) && united.contains(7));
    for hash in &probes {
        assert!(!filter.contains(*hash) || copy.contains(*hash) && united.contains(*hash));
    }
    assert!(LayeredBloom::from_bytes(&united.to_bytes()).is_ok());
}

pub fn layered_seeds() -> Vec<Vec<u8>> {
    let mut twice = layered_of(1500);
    twice.union(layered_of(1500));
    [layered_of(0), layered_of(1), layered_of(2048), twice].iter().map(LayeredBloom::to_bytes).collect()
}

/// The filter section of an SSTable.
pub fn sealed(data: &[u8]) {
    let Ok(filter) = bounded(data.len(), BASE, PER_BYTE, || SealedFilter::from_bytes(data)) else { return };
    assert_eq!(filter.to_bytes(), data, "a filter has one encoding");
    for hash in hashes(64).into_iter().chain([0, 1, u64::MAX, 1 << 63]) {
        filter.contains(hash);
    }
    // The bytes themselves as hashes: what a search can steer.
    for hash in data.chunks_exact(8).take(64) {
        filter.contains(u64::from_le_bytes(hash.try_into().unwrap_or_default()));
    }
    filter.may_contain_prefix(data);
    filter.may_contain_prefix(&data[..data.len().min(3)]);
    assert!(filter.memory_bytes() <= data.len() + size_of::<SealedFilter>());
}

pub fn sealed_seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> =
        [0, 1, 5, 100, 1000].map(|n| SealedFilter::build(&mut hashes(n)).to_bytes()).into();
    seeds.push(SealedFilter::Bloom(layered_of(10)).to_bytes());
    seeds.extend([3, u32::MAX].map(|option| SealedFilter::build_prefixed(&mut hashes(7), option).to_bytes()));
    seeds.push(SealedFilter::Prefixed(2, Box::new(SealedFilter::Bloom(layered_of(10)))).to_bytes());
    seeds
}
