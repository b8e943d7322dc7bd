//! Fuzz targets for every decoder that reads bytes from outside or from disk (`docs/fuzzing.md`).
//!
//! A target is a plain function from bytes to nothing that panics when a promise is broken. Owns the targets, their seeds
//! (made by the real encoders), the kept corpora (`corpus/<target>/`), and a mutator for stable Rust. Does not own the
//! coverage-guided runs: the workspace `libfuzzer/` beside it calls the same functions from libFuzzer.
//!
//! What targets promise beyond "no panic":
//! * what a decoder accepts encodes to something that decodes equally;
//! * memory is bounded by what the input justifies ([`memory`]);
//! * damage to a file is an error or makes no difference: never other data.

pub mod corpus;
mod edits;
mod input;
pub mod memory;
pub mod mutate;
pub mod run;
mod targets;

pub use targets::{TARGETS, Target, target};
