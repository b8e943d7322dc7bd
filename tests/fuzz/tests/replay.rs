//! Every kept input of every target.

use std::collections::BTreeSet;

use sextant_fuzz::{TARGETS, corpus, run};

/// The corpora are part of the repository: small on purpose.
const CORPORA_BYTES_MAX: usize = 2 * 1024 * 1024;

#[test]
fn every_kept_input_holds() {
    let mut failures = Vec::new();
    for target in TARGETS {
        let kept = corpus::kept(target).unwrap_or_else(|e| panic!("{}: {e}", target.name));
        assert!(!kept.is_empty(), "{} has no inputs", target.name);
        for (name, input) in kept {
            if let Err(what) = run::once(target, &input) {
                failures.push(format!("{}/{name}: {what}", target.name));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// A change of a format shows here: then `cargo run -p sextant-fuzz -- seeds`, and the old seeds are kept under other names.
#[test]
fn the_seeds_are_what_the_encoders_make() {
    for target in TARGETS {
        let kept: BTreeSet<Vec<u8>> = corpus::kept(target)
            .unwrap_or_else(|e| panic!("{}: {e}", target.name))
            .into_iter()
            .filter(|(name, _)| name.starts_with("seed-"))
            .map(|(_, input)| input)
            .collect();
        let made: BTreeSet<Vec<u8>> = (target.seeds)().into_iter().collect();
        assert!(kept == made, "{}: the kept seeds are not what the encoders make", target.name);
    }
}

#[test]
fn the_corpora_are_small_and_no_folder_lacks_its_target() {
    let mut bytes = 0;
    for target in TARGETS {
        let kept = corpus::kept(target).unwrap_or_else(|e| panic!("{}: {e}", target.name));
        bytes += kept.iter().map(|(_, input)| input.len()).sum::<usize>();
    }
    assert!(bytes < CORPORA_BYTES_MAX, "{bytes} bytes");
    let root = corpus::dir(&TARGETS[0]);
    let root = root.parent().unwrap();
    for folder in std::fs::read_dir(root).unwrap() {
        let name = folder.unwrap().file_name().to_string_lossy().into_owned();
        assert!(sextant_fuzz::target(&name).is_some(), "corpus/{name} is of no target");
    }
}
