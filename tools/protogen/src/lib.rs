//! Makes the Rust code of the wire protocol from its protobuf files.
//!
//! Owns: which files there are, and the generators' settings. Does not own: the protobuf files and the code, which are in
//! `crates/proto`. Invariant: whoever builds the database does not wait for this crate, because the code is checked in; a
//! test here says when it is not what the protobuf files say.

use std::error::Error;
use std::path::{Path, PathBuf};

const FILES: [&str; 9] = ["types", "log", "raft", "rows", "lease", "sstable", "kv", "admin", "users"];

/// The file that is generated: named after the protobuf package.
pub const GENERATED: &str = "sextant.v1.rs";

/// `crates/proto`.
pub fn proto_crate() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/proto")
}

/// Where the code is checked in.
pub fn checked_in() -> PathBuf {
    proto_crate().join("src/generated")
}

/// Compiles the protobuf files with protox, which needs no `protoc`, and writes [`GENERATED`] into a directory.
pub fn generate(into: &Path) -> Result<(), Box<dyn Error>> {
    let sources = proto_crate().join("proto");
    let files: Vec<PathBuf> = FILES.iter().map(|name| sources.join(format!("{name}.proto"))).collect();
    let descriptors = protox::compile(&files, [&sources])?;
    // `bytes` fields are slices of the received buffer: no copy per key or value.
    tonic_prost_build::configure().bytes(".").out_dir(into).compile_fds(descriptors)?;
    Ok(())
}
