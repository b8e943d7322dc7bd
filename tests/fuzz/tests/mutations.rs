//! A bounded search of every target: mutations of the kept inputs, and every way to cut them.

use sextant_environment::rng::{Rng, SeededRng};
use sextant_fuzz::{TARGETS, corpus, run};

/// Enough to notice a decoder that is broken in general; `cargo xtask fuzz` searches.
const RUNS: u64 = 300;
/// Most cuts of one input.
const CUTS_MAX: usize = 100;

/// The seed of this run: that of `SEXTANT_FUZZ_SEED`, or any.
fn seed() -> u64 {
    let given = std::env::var("SEXTANT_FUZZ_SEED").ok().and_then(|text| text.parse().ok());
    given.unwrap_or_else(|| SeededRng::from_os().next_u64())
}

#[test]
fn mutations_of_the_kept_inputs_break_no_promise() {
    let seed = seed();
    println!("SEXTANT_FUZZ_SEED={seed}");
    for target in TARGETS {
        let searched = run::search(target, seed, |runs| runs >= RUNS);
        let searched = searched.unwrap_or_else(|e| panic!("{}: {e}", target.name));
        if let Some((input, what)) = searched.broken {
            panic!("SEXTANT_FUZZ_SEED={seed}: {}: {what}\ninput: {input:02x?}", target.name);
        }
    }
}

#[test]
fn inputs_may_be_cut_anywhere() {
    for target in TARGETS {
        let kept = corpus::kept(target).unwrap_or_else(|e| panic!("{}: {e}", target.name));
        for (name, input) in kept.iter().take(12) {
            let step = input.len().div_ceil(CUTS_MAX).max(1);
            for cut in (0..input.len()).step_by(step) {
                if let Err(what) = run::once(target, &input[..cut]) {
                    panic!("{}/{name}, the first {cut} bytes: {what}", target.name);
                }
            }
        }
    }
}
