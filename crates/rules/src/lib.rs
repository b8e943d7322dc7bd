//! The protocol's rules, as something to point at.
//!
//! Owns the names under which tests speak of them: the deliberate bugs, each of which breaks one rule ([`mutant`]), and the
//! events by which a simulation sees whether they hold ([`probe`]). Does not own the rules themselves: they are where they
//! are kept, in the servers.

pub mod mutant;
pub mod probe;
