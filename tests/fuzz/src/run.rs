//! Running targets without libFuzzer.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::targets::Target;
use crate::{corpus, mutate};

/// How a bounded search ended.
pub struct Searched {
    pub runs: u64,
    /// The input that broke a promise, and what the panic said.
    pub broken: Option<(Vec<u8>, String)>,
}

/// Runs one input. `Err`: what the panic said.
pub fn once(target: &Target, input: &[u8]) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(|| (target.run)(input))).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words").to_owned()
    })
}

/// Mutates the kept inputs until `enough` says so (asked with the number of runs), or a promise is broken.
///
/// # Errors
/// If the kept inputs cannot be read.
pub fn search(target: &Target, seed: u64, mut enough: impl FnMut(u64) -> bool) -> io::Result<Searched> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let inputs: Vec<Vec<u8>> = corpus::kept(target)?.into_iter().map(|(_, input)| input).collect();
    let mut runs = 0;
    while !enough(runs) {
        let input = mutate::mutated(&mut rng, &inputs, target.input_bytes_max);
        runs += 1;
        if let Err(what) = once(target, &input) {
            return Ok(Searched { runs, broken: Some((input, what)) });
        }
    }
    Ok(Searched { runs, broken: None })
}
