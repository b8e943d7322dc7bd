use std::collections::BTreeMap;

use proptest::prelude::*;

use sextant_common::expiry::Tick;
use sextant_common::marks::{Kind, Marks};

use super::*;

type Model = BTreeMap<Vec<u8>, (Vec<u8>, u64, bool)>;

/// Short keys over few letters: many common prefixes, and keys that are prefixes of others.
fn model() -> impl Strategy<Value = Model> {
    let key = prop::collection::vec(0u8..3, 0..8);
    let record = (prop::collection::vec(any::<u8>(), 0..20), any::<u64>(), any::<bool>());
    let record = record.prop_map(|(value, seq, tombstone)| match tombstone {
        true => (Vec::new(), seq, true),
        false => (value, seq, false),
    });
    prop::collection::btree_map(key, record, 1..120)
}

/// What the record with this seq carries, if it has a value.
fn marks(seq: u64) -> Marks {
    match seq % 3 {
        0 => Marks::until(Tick(seq / 2)),
        1 => Marks::new(Kind::Set, seq.is_multiple_of(2).then_some(Tick(seq / 16))),
        _ => Marks::NONE,
    }
}

fn build(model: &Model, interval: usize) -> Bytes {
    let mut builder = BlockBuilder::new(interval);
    for (key, (value, seq, tombstone)) in model {
        builder.add(key, *seq, Content::new((!tombstone).then_some(value), marks(*seq)));
    }
    let len = builder.len();
    let bytes = Bytes::copy_from_slice(builder.finish());
    assert_eq!(bytes.len(), len);
    bytes
}

fn forward(mut cursor: ForwardCursor) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    while cursor.slot().is_some() {
        keys.push(cursor.key().to_vec());
        cursor.advance().unwrap();
    }
    keys
}

fn backward(mut cursor: BackwardCursor) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    while cursor.slot().is_some() {
        keys.push(cursor.key().to_vec());
        cursor.advance().unwrap();
    }
    keys
}

proptest! {
    #[test]
    fn gets_and_cursors_agree_with_a_map(
        model in model(), interval in 1usize..20, probes in prop::collection::vec(prop::collection::vec(0u8..3, 0..8), 1..30),
    ) {
        let block = Block::parse(build(&model, interval)).unwrap();
        for key in probes.iter().chain(model.keys()) {
            let got = block.get(key).unwrap();
            if let Some(slot) = &got {
                prop_assert_eq!(slot.marks, if slot.tombstone { Marks::NONE } else { marks(slot.seq) });
            }
            let got = got.map(|s| (block.value(&s).to_vec(), s.seq, s.tombstone));
            prop_assert_eq!(got.as_ref(), model.get(key));
            let from: Vec<_> = model.range(key.clone()..).map(|(k, _)| k.clone()).collect();
            prop_assert_eq!(forward(ForwardCursor::seek(block.clone(), key).unwrap()), from);
            let before: Vec<_> = model.range(..key.clone()).rev().map(|(k, _)| k.clone()).collect();
            prop_assert_eq!(backward(BackwardCursor::seek_before(block.clone(), key).unwrap()), before);
        }
        let all: Vec<_> = model.keys().cloned().collect();
        prop_assert_eq!(forward(ForwardCursor::first(block.clone()).unwrap()), all);
        let all: Vec<_> = model.keys().rev().cloned().collect();
        prop_assert_eq!(backward(BackwardCursor::last(block).unwrap()), all);
    }

    #[test]
    fn damaged_bytes_never_make_it_panic(model in model(), flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6), probe in prop::collection::vec(0u8..3, 0..8)) {
        let mut bytes = build(&model, 4).to_vec();
        for (at, byte) in flips {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let Ok(block) = Block::parse(bytes.into()) else { return Ok(()) };
        let _ = block.get(&probe);
        if let Ok(mut cursor) = ForwardCursor::seek(block.clone(), &probe) {
            while cursor.slot().is_some() && cursor.advance().is_ok() {}
        }
        if let Ok(mut cursor) = BackwardCursor::seek_before(block, &probe) {
            while cursor.slot().is_some() && cursor.advance().is_ok() {}
        }
    }
}

/// A few bytes a record, each key one byte longer than the one before it: walking back holds them all.
#[test]
fn an_interval_that_would_unfold_beyond_all_bounds_is_malformed() {
    let block = |records: usize, interval: usize| {
        let mut builder = BlockBuilder::new(interval);
        let mut key = Vec::new();
        for seq in 0..records as u64 {
            key.push(1);
            builder.add(&key, seq, Content::Value(b""));
        }
        Block::parse(Bytes::copy_from_slice(builder.finish())).unwrap()
    };
    let walk = |block| BackwardCursor::last(block).map(backward);
    assert_eq!(walk(block(INTERVAL_RECORDS_MAX, 1 << 20)).unwrap().len(), INTERVAL_RECORDS_MAX);
    assert_eq!(walk(block(INTERVAL_RECORDS_MAX + 1, 1 << 20)), Err(Malformed));
    assert_eq!(
        walk(block(4 * INTERVAL_RECORDS_MAX, RESTART_INTERVAL)).unwrap().len(),
        4 * INTERVAL_RECORDS_MAX
    );
}

#[test]
fn a_key_that_is_longer_than_keys_may_be_is_malformed() {
    for (length, sound) in [(KEY_BYTES_MAX, true), (KEY_BYTES_MAX + 1, false)] {
        let mut builder = BlockBuilder::new(1);
        builder.add(&vec![b'k'; length], 1, Content::Value(b""));
        let block = Block::parse(Bytes::copy_from_slice(builder.finish())).unwrap();
        assert_eq!(ForwardCursor::first(block.clone()).is_ok(), sound);
        assert_eq!(BackwardCursor::last(block).is_ok(), sound);
    }
}
