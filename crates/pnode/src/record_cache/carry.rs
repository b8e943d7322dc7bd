//! When a cached record is the newest SSTable record of its key also at another manifest version. Pure; the exhaustive model of
//! the protocol (`tests/model`) asks the same function.

use sextant_common::ids::ManifestVersion;

/// What an entry is worth at a manifest version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carry {
    /// No flush of the table since the stamp.
    Valid,
    /// There were flushes, and none of them brought the key: the stamp may move.
    Forward,
    /// The entry is of a newer version than this (older) view: good for others.
    Unusable,
    /// A flush may have brought the key.
    Drop,
}

/// Whether an entry stamped `stamp` is the newest SSTable record of its key at version `current`. The newest flush of the table
/// made version `last_flush`; every flush after `known_after` is among `flushes`: its version, and whether its filter (or
/// range) certainly rules the key out.
#[inline]
pub fn carry_stamp(
    stamp: ManifestVersion,
    current: ManifestVersion,
    last_flush: ManifestVersion,
    known_after: ManifestVersion,
    flushes: impl Iterator<Item = (ManifestVersion, impl FnOnce() -> bool)>,
) -> Carry {
    if stamp > current {
        return Carry::Unusable;
    }
    if last_flush <= stamp {
        return Carry::Valid;
    }
    if stamp < known_after {
        return Carry::Drop;
    }
    let mut newest = ManifestVersion(0);
    for (version, ruled_out) in flushes {
        newest = newest.max(version);
        if version > stamp && !ruled_out() {
            return Carry::Drop;
        }
    }
    // Each flush raises the version, so a record of the last one is a sign that the list is whole.
    if newest < last_flush { Carry::Drop } else { Carry::Forward }
}
