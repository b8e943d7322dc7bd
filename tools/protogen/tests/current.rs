//! The code that is checked in is what the protobuf files say.

use std::fs;

#[test]
fn generated_code_is_current() {
    let fresh = tempfile::tempdir().unwrap();
    sextant_protogen::generate(fresh.path()).unwrap();
    for file in sextant_protogen::GENERATED {
        let read = |directory: &std::path::Path| fs::read(directory.join(file)).unwrap();
        let same = read(fresh.path()) == read(&sextant_protogen::checked_in());
        assert!(same, "{file}: the protobuf files have changed since: run `cargo xtask proto`");
    }
}
