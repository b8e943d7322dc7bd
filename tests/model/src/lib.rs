//! An exhaustive model of Sextant's protocol, next to the code that it speaks of.
//!
//! Leases, publication, freezes, flushes, merges, inserts, the duplicate table, failovers, registered reads, loads and expiry, explored in
//! every order for small bounds. What is modelled and what is not, how far it was explored, and how to run it: `docs/model.md`.
//!
//! [`election`] is a second, smaller model: of servers that lose their memory; [`placement`] a third: of where SSTables are.
//!
//! Owns: the model's state ([`state`]), its steps ([`step`]), what has to hold (`check`), the
//! explorer ([`explore`]). Does not own which rules there are to weaken (`sextant_rules::catalogue`), nor the rules: which tier to read, whether a condition holds, whether a write leaves a bit,
//! whether a lease forbids publication, whether a reader is stale, whether a cached record may be carried over are asked of the
//! functions that the servers and p-nodes run.
//!
//! The explorer is our own, a hundred lines, and not stateright's: the state is a flat struct whose actions carry names, the
//! shortest trace is wanted and nothing else, parents cost six bytes a state, and p-nodes are put in order for symmetry
//! before hashing. Nothing has to be `Arc`ed or kept for a history checker: linearizability is tracked in the state.

pub mod bounds;
mod check;
pub mod election;
pub mod explore;
pub mod placement;
pub mod state;
pub mod step;

pub use bounds::Bounds;
pub use explore::{Explored, Violation, explore};
pub use sextant_rules::mutant::Mutant;
pub use step::{Action, Protocol};
