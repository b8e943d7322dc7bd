//! Compiles the protobuf files with protox, a compiler written in Rust: no `protoc` is needed.

const FILES: [&str; 8] = ["types", "log", "raft", "rows", "lease", "sstable", "kv", "admin"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files: Vec<String> = FILES.iter().map(|name| format!("proto/{name}.proto")).collect();
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(&files, ["proto"])?;
    // `bytes` fields are slices of the received buffer: no copy per key or value.
    tonic_prost_build::configure().bytes(".").compile_fds(descriptors)?;
    Ok(())
}
