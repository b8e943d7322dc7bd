//! Publication: what is appended becomes visible strictly in log order ([`queue`]), when Raft has committed it and no lease forbids
//! it ([`rule`]). Pure. The books of the leases are [`crate::lease::grantor`]'s; the worker asks both and answers the clients.

mod queue;
mod rule;

pub use queue::{Appended, Next, Position, PublishQueue};
pub use rule::{Permission, forbids, is_covered, is_ended, permission};
