//! The protocol's rules, as something to point at.
//!
//! Owns the names under which tests speak of them ([`catalogue`]): what each says, where it is kept, the deliberate bugs that break
//! it ([`mutant`]) and how soon those were caught ([`measured`]); and the events by which a simulation sees whether rules hold
//! ([`probe`]). Does not own the rules themselves: they are where they are kept, in the servers. In a release build nothing asks for
//! the catalogue, and nothing of it is left.

pub mod catalogue;
mod catalogue_registered;
pub mod document;
pub mod measured;
pub mod mutant;
pub mod probe;
