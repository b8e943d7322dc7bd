//! Against a model, and with readers while the index grows.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use proptest::prelude::*;
use sextant_common::expiry::Tick;
use sextant_common::ids::Generation;
use sextant_common::marks::{Kind, Marks};

use super::arena::INLINE_BYTES_MAX;
use super::{Memtable, NewVersion, Version};

fn key(s: &str) -> Bytes {
    Bytes::copy_from_slice(s.as_bytes())
}

fn version(seq: u64, value: Option<Bytes>) -> Version {
    Version { seq, value, marks: Marks::NONE }
}

fn put(value: &[u8]) -> NewVersion<'_> {
    NewVersion { value: Some(value), marks: Marks::NONE }
}

#[test]
fn a_version_has_its_marks_whatever_its_length_and_place() {
    let m = Memtable::new(Generation(1));
    let high = 1 << 32;
    let mut all = Vec::new();
    for (n, value_len) in (0u64..).zip([0, 1, 7, 1023, 1024, 1025, 70_000]) {
        for key_len in [1, 8, 13, 70_000] {
            let key = Bytes::from(vec![n as u8; key_len]);
            // An older one that comes later makes a copy of the first in the chain.
            for (seq, marks) in [
                (5, Marks::until(Tick(9 + n))),
                (high + 6, Marks::new(Kind::Hash, Some(Tick(77)))),
                (4, Marks::NONE),
                (high + 7, Marks::until(Tick(1))),
            ] {
                let value = Bytes::from(vec![seq as u8; value_len]);
                let new = NewVersion { value: Some(&value), marks };
                m.seek(&key).insert(seq, new, 1, 0);
                all.push((key.clone(), Version { seq, value: Some(value), marks }));
            }
        }
    }
    for (key, version) in &all {
        assert_eq!(m.get(key, version.seq).as_ref(), Some(version), "{} {}", key.len(), version.seq);
    }
    let newest = |(_, version): &&(Bytes, Version)| version.seq == high + 7;
    let mut in_order: Vec<_> = all.iter().filter(newest).cloned().collect();
    in_order.sort_by(|(a, _), (b, _)| a.cmp(b));
    assert_eq!(m.range(Bound::Unbounded, Bound::Unbounded, u64::MAX).collect::<Vec<_>>(), in_order);
    let expiring = m.expiring();
    assert_eq!((expiring.records, expiring.first, expiring.last), (3 * 28, Tick(1), Tick(77)));
    all.iter().for_each(|(key, version)| m.remove(key, version.seq));
    assert_eq!(m.bytes(), 0);
}

#[test]
fn readers_see_the_newest_version_that_is_published() {
    let m = Memtable::new(Generation(1));
    m.insert(key("a"), 1, Some(key("one")), 5, 0);
    m.insert(key("a"), 4, None, 6, 10);
    m.insert(key("b"), 3, Some(key("b3")), 6, 10);
    assert_eq!(m.get(&key("a"), 0), None);
    assert_eq!(m.get(&key("a"), 3), Some(version(1, Some(key("one")))));
    // A tombstone is an answer.
    assert_eq!(m.get(&key("a"), 9), Some(version(4, None)));
    assert_eq!(m.get(&key("aa"), 9), None);
    assert_eq!(m.first_index(), Some(5));
}

#[test]
fn a_removed_version_uncovers_the_one_before() {
    let m = Memtable::new(Generation(1));
    m.insert(key("a"), 1, Some(key("one")), 5, 0);
    let before = m.bytes();
    m.insert(key("a"), 2, Some(key("two")), 6, 0);
    m.remove(&key("a"), 2);
    assert_eq!(m.newest(&key("a")).unwrap().seq, 1);
    assert_eq!(m.bytes(), before);
    m.remove(&key("a"), 1);
    assert!(m.is_empty() && m.first_index().is_none());
    assert!(m.bytes() == 0 && m.held_bytes() > before, "its memory is still held");
}

#[test]
fn what_was_found_once_can_be_read_and_written() {
    let m = Memtable::new(Generation(1));
    let mut slot = m.seek(b"a");
    assert!(slot.newest().is_none());
    slot.insert(1, put(b"one"), 5, 0);
    assert_eq!(slot.newest().unwrap().value(), Some(&b"one"[..]));
    let mut other = m.seek(b"a");
    other.insert(2, NewVersion::default(), 6, 0);
    let newest = slot.newest().unwrap();
    assert_eq!((newest.seq(), newest.value()), (2, None), "a slot shows what is there now");
    // Two that found nothing.
    let (mut one, mut two) = (m.seek(b"b"), m.seek(b"b"));
    one.insert(3, put(b"x"), 7, 0);
    two.insert(4, put(b"y"), 7, 0);
    two.insert(4, put(b"never"), 7, 0);
    assert_eq!(
        (m.get(b"b", 3).unwrap().value, m.get(b"b", 4).unwrap().value),
        (Some(key("x")), Some(key("y")))
    );
    assert_eq!(m.entries(), 4);
}

#[test]
fn a_bookmark_is_right_wherever_it_is_used() {
    let (m, other) = (Memtable::new(Generation(1)), Memtable::new(Generation(1)));
    m.insert(key("a"), 1, Some(key("a1")), 5, 0);
    other.insert(key("other"), 1, Some(key("o1")), 5, 0);
    let [a, absent] = [&b"a"[..], b"b"].map(|key| m.seek(key).bookmark());
    let write = |m: &Memtable, key: &[u8], bookmark: Option<&_>, seq| {
        m.seek_again(key, bookmark).insert(seq, put(b"x"), 5, 0);
    };
    write(&m, b"a", a.as_ref(), 2);
    write(&m, b"b", absent.as_ref(), 3);
    write(&m, b"b", absent.as_ref(), 4);
    // Of another key, of another memtable.
    write(&m, b"c", a.as_ref(), 5);
    write(&m, b"a", absent.as_ref(), 6);
    write(&other, b"a", a.as_ref(), 7);
    write(&m, b"d", None, 8);
    let seqs = |m: &Memtable, at| -> Vec<_> {
        let all = m.range(Bound::Unbounded, Bound::Unbounded, at);
        all.map(|(key, version)| (key, version.seq)).collect()
    };
    assert_eq!(seqs(&m, 3), [(key("a"), 2), (key("b"), 3)]);
    assert_eq!(seqs(&m, 9), [(key("a"), 6), (key("b"), 4), (key("c"), 5), (key("d"), 8)]);
    assert_eq!(seqs(&other, 9), [(key("a"), 7), (key("other"), 1)]);
    for (found, at) in [("a", 6), ("b", 4), ("c", 5), ("d", 8)] {
        assert_eq!(m.newest(found.as_bytes()).unwrap().seq, at);
    }
    // A truncation leaves a key, but no version.
    let d = m.seek(b"d").bookmark();
    m.remove(b"d", 8);
    write(&m, b"d", d.as_ref(), 8);
    assert_eq!((m.newest(b"d").unwrap().seq, m.entries()), (8, 7));
}

#[test]
fn readers_keep_what_they_hold_when_the_memtable_goes() {
    let long = Bytes::from(vec![7; INLINE_BYTES_MAX + 1]);
    let m = Memtable::new(Generation(1));
    m.insert(key("long"), 1, Some(long.clone()), 5, 0);
    m.insert(key("short"), 2, Some(key("short")), 5, 0);
    let (a, b) = (m.newest(b"long").unwrap(), m.newest(b"short").unwrap());
    assert_eq!(
        a.value.as_ref().unwrap().as_ptr(),
        m.newest(b"long").unwrap().value.unwrap().as_ptr(),
        "shared"
    );
    drop(m);
    assert_eq!((a.value, b.value), (Some(long), Some(key("short"))));
}

#[test]
fn keys_seqs_and_values_of_any_size() {
    let m = Memtable::new(Generation(1));
    let sizes = [0, 1, 7, 8, 9, 100, 5_000, 65_535, 65_536, 600_000, 1_200_000];
    // Miri takes minutes for the longest.
    let sizes = if cfg!(miri) { &sizes[..7] } else { &sizes[..] };
    let seqs = [3, u64::from(u32::MAX), u64::from(u32::MAX) + 1, u64::MAX / 2];
    let expected = |len: usize, seq: u64| Bytes::from(vec![seq as u8; len]);
    for &len in sizes {
        for seq in seqs {
            m.insert(Bytes::from(vec![b'k'; len]), seq, Some(expected(len, seq)), 1, 0);
        }
    }
    for &len in sizes {
        for seq in seqs {
            assert_eq!(m.get(&vec![b'k'; len], seq), Some(version(seq, Some(expected(len, seq)))), "{len}");
        }
        assert_eq!(m.get(&vec![b'k'; len], 2), None);
    }
    let keys: Vec<usize> =
        m.range(Bound::Unbounded, Bound::Unbounded, u64::MAX).map(|(k, _)| k.len()).collect();
    assert_eq!(keys, sizes);
}

#[derive(Clone, Debug)]
enum Step {
    /// Seqs rise, but for a few.
    Insert {
        key: u16,
        back: u64,
        value: Option<usize>,
    },
    Remove {
        which: prop::sample::Index,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let value = prop::option::weighted(
        0.9,
        prop_oneof![0..40usize, Just(INLINE_BYTES_MAX), Just(INLINE_BYTES_MAX + 1)],
    );
    let back = prop_oneof![9 => Just(0), 1 => 0..8u64];
    let step = prop_oneof![
        4 => (0..40u16, back, value).prop_map(|(key, back, value)| Step::Insert { key, back, value }),
        1 => any::<prop::sample::Index>().prop_map(|which| Step::Remove { which }),
    ];
    prop::collection::vec(step, 0..150)
}

/// Few that share their first 8 bytes, and some that are shorter.
fn key_of(n: u16) -> Bytes {
    match n % 3 {
        0 => key(&format!("{n:02}")),
        1 => key(&format!("common-prefix-{n:02}")),
        _ => key(&format!("{n:08}\0")),
    }
}

type Model = BTreeMap<(Bytes, std::cmp::Reverse<u64>), Option<Bytes>>;

fn visible(model: &Model, at: u64) -> BTreeMap<Bytes, Version> {
    let mut newest = BTreeMap::new();
    for ((key, seq), value) in model {
        if seq.0 <= at {
            newest.entry(key.clone()).or_insert(version(seq.0, value.clone()));
        }
    }
    newest
}

proptest! {
    #[test]
    fn a_memtable_agrees_with_a_map(
        steps in steps(), at in 0u64..160, low in 0u16..42, high in 0u16..42, kinds in (0..3, 0..3)
    ) {
        let m = Memtable::new(Generation(1));
        let mut model = Model::new();
        let (mut next, mut sum) = (10, 0usize);
        for step in steps {
            match step {
                Step::Insert { key, back, value } => {
                    let (key, seq) = (key_of(key), next - back);
                    let value = value.map(|len| Bytes::from(vec![seq as u8; len]));
                    next += u64::from(back == 0);
                    m.insert(key.clone(), seq, value.clone(), 1, 0);
                    model.entry((key, std::cmp::Reverse(seq))).or_insert(value);
                }
                Step::Remove { which } if !model.is_empty() => {
                    let one = model.keys().nth(which.index(model.len())).unwrap().clone();
                    m.remove(&one.0, one.1.0);
                    m.remove(&one.0, one.1.0);
                    model.remove(&one);
                }
                Step::Remove { .. } => {}
            }
            sum = sum.max(m.held_bytes());
            prop_assert_eq!(m.held_bytes(), sum, "memory is never given back");
        }
        prop_assert_eq!(m.entries(), model.len());
        prop_assert_eq!(m.first_index().is_some(), !model.is_empty());
        let fresh = Memtable::new(Generation(1));
        for ((key, seq), value) in &model {
            prop_assert_eq!(m.get(key, seq.0), Some(version(seq.0, value.clone())));
            fresh.insert(key.clone(), seq.0, value.clone(), 1, 0);
        }
        prop_assert_eq!(m.bytes(), fresh.bytes());
        for at in [at, u64::MAX] {
            let expected = visible(&model, at);
            for n in 0..42 {
                prop_assert_eq!(m.get(&key_of(n), at), expected.get(&key_of(n)).cloned());
            }
            let bound = |kind, n| match kind {
                0 => Bound::Unbounded,
                1 => Bound::Included(key_of(n)),
                _ => Bound::Excluded(key_of(n)),
            };
            let (start, end) = (bound(kinds.0, low), bound(kinds.1, high));
            let inside = |k: &Bytes| super::range::is_above(k, &start) && super::range::is_below(k, &end);
            let mut expected: Vec<_> = expected.into_iter().filter(|(k, _)| inside(k)).collect();
            prop_assert_eq!(&m.range(start.clone(), end.clone(), at).collect::<Vec<_>>(), &expected);
            expected.reverse();
            prop_assert_eq!(&m.range_rev(start.clone(), end.clone(), at).collect::<Vec<_>>(), &expected);
        }
    }
}

#[test]
fn keys_that_meet_in_one_segment_on_purpose_are_found_and_take_no_more_memory() {
    let all = (0u32..).map(|n| n.to_string());
    let chosen: Vec<_> = all.filter(|k| super::index::hash(k.as_bytes()) >> 54 == 77).take(2500).collect();
    let m = Memtable::new(Generation(1));
    let insert = |k: &str, seq| m.insert(key(k), seq, Some(key("v")), 1, 0);
    let (here, elsewhere) = chosen.split_at(2000);
    here.iter().for_each(|k| insert(k, 1));
    let agrees = |at: u64| {
        assert!(here.iter().all(|k| m.get(k.as_bytes(), at).is_some_and(|v| v.seq == at)));
        assert!(elsewhere.iter().all(|k| m.get(k.as_bytes(), at).is_none()));
    };
    agrees(1);
    let bytes = m.arena.bytes() + m.index.bytes();
    assert!(bytes < 2000 * 100, "{bytes}");
    here.iter().for_each(|k| insert(k, 2));
    agrees(2);
    // With others there are more segments: who was left out is not forgotten.
    (0..30_000).for_each(|n| insert(&format!("other {n}"), 3));
    agrees(2);
    assert!((0..30_000).all(|n| m.get(format!("other {n}").as_bytes(), 3).is_some()));
}

/// Each key's versions have seqs `n + i * KEYS`: what is published says what must be found.
const KEYS: u64 = if cfg!(miri) { 200 } else { 30_000 };

#[test]
fn what_is_published_is_found_while_the_index_grows() {
    let m = Memtable::new(Generation(1));
    let key = |n: u64| format!("key {:05}", (n * 7919) % KEYS);
    let published = AtomicU64::new(0);
    let last = 2 * KEYS;
    std::thread::scope(|scope| {
        for reader in 0..3u64 {
            let (m, published) = (&m, &published);
            scope.spawn(move || {
                let mut n = reader;
                loop {
                    let at = published.load(Ordering::Acquire);
                    n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    if let Some(seq) = (n >> 33).checked_rem(at) {
                        check(m, at, seq + 1, &key(seq + 1));
                    }
                    if at == last {
                        return;
                    }
                }
            });
        }
        for seq in 1..=last {
            let before = m.seek(key(seq).as_bytes()).newest().map_or(0, |v| v.seq());
            assert_eq!(before, seq.saturating_sub(KEYS), "each key once before it comes again");
            m.insert(key(seq).into(), seq, Some(seq.to_string().into()), seq, 0);
            if seq % 7 == 0 {
                // What is not published comes and goes.
                m.insert(key(seq + 1).into(), seq + 1, None, seq, 0);
                m.remove(key(seq + 1).as_bytes(), seq + 1);
            }
            published.store(seq, Ordering::Release);
        }
    });
    assert_eq!(m.entries() as u64, last);
    let all: Vec<_> = m.range(Bound::Unbounded, Bound::Unbounded, last).collect();
    assert!(
        all.len() as u64 == KEYS
            && all.is_sorted_by(|a, b| a.0 < b.0)
            && all.iter().all(|(_, v)| v.seq > KEYS)
    );
}

/// A reader's look at a key that was written at `seq`, and again `KEYS` later.
fn check(m: &Memtable, at: u64, seq: u64, key: &str) {
    let newest = if seq + KEYS <= at { seq + KEYS } else { seq };
    let found = m.get(key.as_bytes(), at).unwrap_or_else(|| panic!("{key} of {seq} at {at}"));
    assert_eq!((found.seq, found.value), (newest, Some(newest.to_string().into())), "{key} at {at}");
    let bytes = Bytes::copy_from_slice(key.as_bytes());
    let (k, version) =
        m.range(Bound::Included(bytes.clone()), Bound::Unbounded, at).next().expect("is in a range");
    assert_eq!((&k, version.seq), (&bytes, newest));
    // The chain falls, whatever is removed from it meanwhile.
    let mut above = u64::MAX;
    while let Some(version) = m.seek(key.as_bytes()).newest_at(above) {
        assert!(version.seq() <= above && version.seq() > 0);
        above = version.seq() - 1;
    }
    assert_eq!(m.get(key.as_bytes(), 0), None);
    assert_eq!(m.get(format!("{key}-").as_bytes(), at), None);
}
