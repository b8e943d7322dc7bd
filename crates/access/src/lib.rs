//! Who may do what: users with hashed passwords, and their rights by command class, table and key.
//!
//! The words are Redis' (`ACL SETUSER`): one grammar for its commands, for `sextant user`, and for the list as it is stored.
//! Where the list is kept is the caller's business ([`Keeper`]); everything here decides.
//!
//! Invariants: a password is nowhere but in the request that brings it, and is compared as a hash. Who is not known may do nothing.
//! A list that cannot be read changes nothing.

mod comparisons;
mod desk;
mod limits;
mod password;
mod pattern;
mod rights;
mod user;
mod users;

pub use desk::{AccessConfig, Desk, Keeper, Outcomes, Stored};
pub use limits::{Allowance, Allowances, Limits, LimitsConfig, Place};
pub use password::hash;
pub use rights::{Class, Principal, Rights};
pub use user::{User, check_name};
pub use users::Users;
