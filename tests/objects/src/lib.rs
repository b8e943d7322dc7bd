//! Clients of the Redis protocol that use hashes, sets, sorted sets, lists, counters, lifetimes and transactions at random, for the
//! simulation and for whoever else has their addresses.
//!
//! Owns which commands are sent ([`generate`]), how ([`wire`]), on which keys ([`groups`]), and what an answer says of what became of
//! them ([`client`]). Does not own the judgement: everything goes into a history, for `sextant-checker`. Knows nothing of the
//! servers but addresses.
//!
//! Keys are few at a time, so that clients meet, and have short lives, so that each history is short enough to be judged.

mod client;
mod generate;
mod groups;
mod wire;

pub use client::{Act, Client, Known, Patience};
pub use groups::{Group, Groups};
