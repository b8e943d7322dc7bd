//! The Raft log: entries, the parts of its format, and whole directories.

mod disk;

use std::sync::OnceLock;

use bytes::Bytes;
use sextant_common::ids::LogPosition;
use sextant_raft_log::{decode_entry, decode_membership, encode_entry, encode_membership, fuzzing, log_id};

use crate::edits;
use crate::input::Input;
use crate::memory::bounded;
pub use disk::env;
use disk::{Image, SALT_FILE};

/// Runs a future on a runtime of this thread alone, as a simulation does.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    thread_local! {
        static RUNTIME: tokio::runtime::Runtime = {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
            match runtime {
                Ok(runtime) => runtime,
                Err(e) => panic!("no runtime: {e}"),
            }
        };
    }
    RUNTIME.with(|runtime| runtime.block_on(future))
}

/// An entry as it is stored and sent; also read as a stored membership.
pub fn entry(data: &[u8]) {
    let at = LogPosition { term: 2, index: 3 };
    let bytes = Bytes::copy_from_slice(data);
    // A membership's smallest parts have 2 bytes and become nodes of maps.
    bounded(data.len(), 8192, 400, || {
        if let Ok(entry) = decode_entry(at, bytes) {
            assert_eq!(entry.log_id, log_id(2, 3));
            assert_eq!(decode_entry(at, encode_entry(&entry)).ok(), Some(entry));
        }
        if let Ok(membership) = decode_membership(data) {
            assert_eq!(decode_membership(&encode_membership(&membership)).ok(), Some(membership));
        }
    });
}

/// A stored membership of three nodes.
pub fn membership_bytes() -> Bytes {
    let position = LogPosition { term: 1, index: 0 };
    match disk::membership(1, 0, &[1, 2, 3]).payload {
        openraft::EntryPayload::Membership(membership) => encode_membership(
            &sextant_raft_log::StoredMembership::new(Some(sextant_raft_log::log_id_at(position)), membership),
        ),
        _ => Bytes::new(),
    }
}

/// An entry that makes three nodes the voters.
pub fn membership_entry() -> Bytes {
    encode_entry(&disk::membership(1, 0, &[1, 2, 3]))
}

pub fn entry_seeds() -> Vec<Vec<u8>> {
    let entries = [
        sextant_raft_log::Entry { log_id: log_id(2, 3), payload: openraft::EntryPayload::Blank },
        disk::normal(2, 3, b"payload"),
        disk::membership(2, 3, &[1, 2, 3]),
        disk::membership(2, 3, &[9]),
    ];
    let mut seeds: Vec<Vec<u8>> = entries.iter().map(|entry| encode_entry(entry).to_vec()).collect();
    seeds.push(membership_bytes().to_vec());
    seeds
}

fn images() -> &'static [Image] {
    static IMAGES: OnceLock<Vec<Image>> = OnceLock::new();
    IMAGES.get_or_init(|| block_on(disk::images()))
}

/// A salt (u32), then bytes that are read as every part of the format.
pub fn format(data: &[u8]) {
    let mut input = Input::new(data);
    let salt = input.u32();
    let bytes = input.rest();
    bounded(bytes.len(), 16 * 1024, 20, || fuzzing::decode_parts(bytes, salt));
    // Again with right checksums, to get behind them.
    let mut identity = bytes.to_vec();
    fuzzing::sign_identity(&mut identity);
    fuzzing::decode_parts(&identity, salt);
    let mut segment = bytes.to_vec();
    fuzzing::sign_segment(&mut segment, salt);
    fuzzing::decode_parts(&segment, salt);
    if let Some(batch) = segment.get(4096..) {
        fuzzing::decode_parts(batch, salt);
        fuzzing::decode_parts(batch.get(64..).unwrap_or_default(), salt);
    }
}

pub fn format_seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for image in images().iter().take(2) {
        let salt = image.salt(0).to_le_bytes();
        for (path, bytes) in &image.files {
            let used = bytes.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
            let used = &bytes[..used.min(6000)];
            seeds.push([&salt[..], used].concat());
            if !path.ends_with(SALT_FILE) && used.len() > 4160 {
                seeds.push([&salt[..], &used[4096..]].concat());
                seeds.push([&salt[..], &used[4160..]].concat());
            }
        }
    }
    seeds
}

/// Which directory, then edits to its files. Checksums are left as they are.
pub fn damage(data: &[u8]) {
    let mut input = Input::new(data);
    let image = &images()[usize::from(input.u8()) % images().len()];
    let edits = edits::read(&mut input);
    let mut files: Vec<Vec<u8>> = image.files.iter().map(|(_, bytes)| bytes.clone()).collect();
    edits.iter().for_each(|edit| edit.apply(&mut files));
    let unchanged = files.iter().eq(image.files.iter().map(|(_, bytes)| bytes));
    match block_on(image.open(&image.with(files))) {
        Ok(found) => {
            let Some(place) = image.states.iter().position(|state| *state == found.contents) else {
                panic!("the log never held {:?}", found.contents);
            };
            assert!(
                !unchanged || place + 1 == image.states.len(),
                "nothing was damaged, but writes are lost"
            );
        }
        Err(e) => assert!(!unchanged, "nothing was damaged: {e}"),
    }
}

/// The same, and then all checksums are made right.
pub fn crafted(data: &[u8]) {
    let mut input = Input::new(data);
    let image = &images()[usize::from(input.u8()) % images().len()];
    let edits = edits::read(&mut input);
    let mut files: Vec<Vec<u8>> = image.files.iter().map(|(_, bytes)| bytes.clone()).collect();
    edits.iter().for_each(|edit| edit.apply(&mut files));
    for ((path, _), bytes) in image.files.iter().zip(&mut files) {
        if path.ends_with(SALT_FILE) {
            fuzzing::sign_identity(bytes);
        } else {
            fuzzing::sign_segment(bytes, image.salt(image.device_of(path)));
        }
    }
    let total: usize = files.iter().map(Vec::len).sum();
    let files = image.with(files);
    // Opening reads whole segments, beside the disk's copies here; and a new segment may be made.
    bounded(total, 1 << 20, 16, || {
        if let Ok(found) = block_on(image.open(&files)) {
            let Ok(again) = block_on(image.open(&found.left)) else {
                panic!("it opened once and then no more")
            };
            assert_eq!(again.contents, found.contents, "opened twice, it holds other things");
        }
    });
}

pub fn damage_seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (number, image) in images().iter().enumerate() {
        seeds.push(vec![number as u8]);
        for (file, (_, bytes)) in image.files.iter().enumerate() {
            let used = bytes.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
            for at in [8, 4096 + 24, used / 2] {
                seeds.push([&[number as u8][..], &edits::flip(file as u8, at, 1)].concat());
            }
            seeds.push([&[number as u8][..], &edits::cut(file as u8, used * 3 / 4)].concat());
        }
    }
    seeds
}
