//! Parts that need nothing around them.

use std::hint::black_box;

use bytes::{Bytes, BytesMut};
use sextant_common::filter::LayeredBloom;
use sextant_common::ids::{Generation, TableId};
use sextant_common::key::filter_hash;
use sextant_common::marks::Marks;
use sextant_memtable_server::command::{Command, Group, TableWrites, Write};
use sextant_memtable_server::memtable::Memtable;
use sextant_resp::frame::Parser;

use crate::{counted, key};

const KEYS: u64 = 10_000;
const VALUE_BYTES: usize = 100;
/// Writes of a group; as many as 64 clients send at once.
const WRITES: u64 = 64;
const GROUPS: u64 = 100;
/// Commands that arrive together.
const PIPELINE: usize = 16;
const BATCHES: usize = 500;
/// A request may be so long; no matter here.
const REQUEST_BYTES_MAX: usize = 1 << 20;

pub fn count() {
    memtable();
    bloom();
    resp();
    group();
}

fn keys(from: u64) -> Vec<Bytes> {
    (from..from + KEYS).map(|i| Bytes::copy_from_slice(&key(i))).collect()
}

fn memtable() {
    let table = Memtable::new(Generation(1));
    let (present, absent) = (keys(0), keys(KEYS));
    let entries = |seq: u64| -> Vec<_> {
        present.iter().map(|key| (key.clone(), seq, Bytes::from(vec![7; VALUE_BYTES]))).collect()
    };
    counted_memtable_insert(&table, entries(1));
    counted("memtable_insert", KEYS);
    counted_memtable_update(&table, entries(2));
    counted("memtable_update", KEYS);
    assert_eq!(counted_memtable_get(&table, &present), KEYS);
    counted("memtable_get", KEYS);
    assert_eq!(counted_memtable_get_absent(&table, &absent), 0);
    counted("memtable_get_absent", KEYS);
}

#[unsafe(no_mangle)]
#[inline(never)]
fn counted_memtable_insert(table: &Memtable, entries: Vec<(Bytes, u64, Bytes)>) {
    insert(table, entries);
}

#[unsafe(no_mangle)]
#[inline(never)]
fn counted_memtable_update(table: &Memtable, entries: Vec<(Bytes, u64, Bytes)>) {
    insert(table, entries);
    // Otherwise the linker takes both functions for one.
    black_box(0);
}

#[inline(always)]
fn insert(table: &Memtable, entries: Vec<(Bytes, u64, Bytes)>) {
    for (key, seq, value) in entries {
        table.insert(key, seq, Some(value), seq, 0);
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
fn counted_memtable_get(table: &Memtable, keys: &[Bytes]) -> u64 {
    keys.iter().filter(|key| black_box(table.get(key, u64::MAX)).is_some()).count() as u64
}

#[unsafe(no_mangle)]
#[inline(never)]
fn counted_memtable_get_absent(table: &Memtable, keys: &[Bytes]) -> u64 {
    black_box(0) + keys.iter().filter(|key| black_box(table.get(key, u64::MAX)).is_some()).count() as u64
}

fn bloom() {
    let hashes = |from| keys(from).iter().map(|key| filter_hash(key)).collect::<Vec<_>>();
    let (present, absent) = (hashes(0), hashes(KEYS));
    let mut filter = LayeredBloom::new();
    counted_bloom_insert(&mut filter, &present);
    counted("bloom_insert", KEYS);
    assert_eq!(counted_bloom_contains(&filter, &present), KEYS);
    counted("bloom_contains", KEYS);
    assert!(counted_bloom_contains_absent(&filter, &absent) < KEYS / 50);
    counted("bloom_contains_absent", KEYS);
}

#[unsafe(no_mangle)]
#[inline(never)]
fn counted_bloom_insert(filter: &mut LayeredBloom, hashes: &[u64]) {
    hashes.iter().for_each(|hash| filter.insert(*hash));
}

#[unsafe(no_mangle)]
#[inline(never)]
fn counted_bloom_contains(filter: &LayeredBloom, hashes: &[u64]) -> u64 {
    hashes.iter().filter(|hash| filter.contains(**hash)).count() as u64
}

#[unsafe(no_mangle)]
#[inline(never)]
fn counted_bloom_contains_absent(filter: &LayeredBloom, hashes: &[u64]) -> u64 {
    black_box(0) + hashes.iter().filter(|hash| filter.contains(**hash)).count() as u64
}

fn resp() {
    let commands = (PIPELINE * BATCHES) as u64;
    let batches = |one: &dyn Fn(u64) -> Vec<u8>| -> Vec<BytesMut> {
        let batch = |n| (0..PIPELINE).flat_map(|i| one((n * PIPELINE + i) as u64)).collect::<Vec<_>>();
        (0..BATCHES).map(|n| BytesMut::from(&batch(n)[..])).collect()
    };
    let get = |i| [b"*2\r\n$3\r\nGET\r\n$16\r\n", &key(i)[..], b"\r\n"].concat();
    let set = |i| {
        [b"*3\r\n$3\r\nSET\r\n$16\r\n", &key(i)[..], b"\r\n$100\r\n", &[b'x'; VALUE_BYTES], b"\r\n"].concat()
    };
    let mut parser = Parser::new(REQUEST_BYTES_MAX);
    assert_eq!(counted_resp_parse_get(&mut parser, batches(&get)), commands);
    counted("resp_parse_get", commands);
    assert_eq!(counted_resp_parse_set(&mut parser, batches(&set)), commands);
    counted("resp_parse_set", commands);
}

/// A look at the name and the key where they are, as a connection does for what is at hand.
#[unsafe(no_mangle)]
#[inline(never)]
fn counted_resp_parse_get(parser: &mut Parser, batches: Vec<BytesMut>) -> u64 {
    let mut commands = 0;
    for mut input in batches {
        while parser.parse(&mut input).expect("these are commands") {
            black_box((parser.arg(&input, 0), parser.arg(&input, 1)));
            parser.skip(&mut input);
            commands += 1;
        }
    }
    commands
}

/// Taken off the input without a copy.
#[unsafe(no_mangle)]
#[inline(never)]
fn counted_resp_parse_set(parser: &mut Parser, batches: Vec<BytesMut>) -> u64 {
    let mut commands = 0;
    for mut input in batches {
        while parser.parse(&mut input).expect("these are commands") {
            black_box(parser.take(&mut input, |command| (command.bytes(1), command.bytes(2))));
            commands += 1;
        }
    }
    commands
}

fn group() {
    let write = |ordinal: u64| Write {
        ordinal: ordinal as u32,
        key: Bytes::copy_from_slice(&key(ordinal)),
        value: Some(Bytes::from(vec![7; VALUE_BYTES])),
        marks: Marks::NONE,
        leaves_bit: true,
        prefix: None,
    };
    let table = TableWrites {
        table: TableId(1),
        generation: Generation(1),
        writes: (0..WRITES).map(write).collect(),
    };
    let group = Group { term: 1, first_seq: 1, time_ms: 1, tables: vec![table], requests: Vec::new() };
    let command = Command::Group(group);
    counted_group_encode(&command);
    counted("group_encode", GROUPS * WRITES);
    counted_group_decode(&command.encode());
    counted("group_decode", GROUPS * WRITES);
}

#[unsafe(no_mangle)]
#[inline(never)]
fn counted_group_encode(command: &Command) {
    (0..GROUPS).for_each(|_| drop(black_box(command.encode())));
}

#[unsafe(no_mangle)]
#[inline(never)]
fn counted_group_decode(encoded: &Bytes) {
    (0..GROUPS).for_each(|_| drop(black_box(Command::decode(encoded).expect("it was encoded"))));
}
