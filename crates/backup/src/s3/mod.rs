//! Repositories in S3, and in what speaks as it does.
//!
//! Owns how a bucket is found ([`bucket`]: a URL, and the environment variables that every tool for S3 reads), the connections to it
//! ([`http`], [`trust`]) and what is told of its refusals ([`refusal`]). Does not own the protocol, which is `object_store`'s, nor
//! what is kept there.
//!
//! Invariants: whatever is asked ends, with an answer or an error of one line. Credentials are in none of them.

pub(crate) mod bucket;
mod http;
pub(crate) mod refusal;
mod trust;

#[cfg(test)]
pub(crate) mod pretended;
#[cfg(test)]
mod tests;
