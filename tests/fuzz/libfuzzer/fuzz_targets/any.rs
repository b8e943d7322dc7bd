//! Every target in one program: `SEXTANT_FUZZ_TARGET` names the one that libFuzzer runs.

#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::{Corpus, fuzz_target};
use sextant_fuzz::Target;

fn chosen() -> &'static Target {
    static TARGET: OnceLock<&'static Target> = OnceLock::new();
    TARGET.get_or_init(|| {
        let name = std::env::var("SEXTANT_FUZZ_TARGET").expect("SEXTANT_FUZZ_TARGET names a target");
        sextant_fuzz::target(&name).expect("SEXTANT_FUZZ_TARGET names a target that there is")
    })
}

fuzz_target!(|data: &[u8]| -> Corpus {
    let target = chosen();
    if data.len() > target.input_bytes_max {
        return Corpus::Reject;
    }
    (target.run)(data);
    Corpus::Keep
});
