//! Leases and bf-logs: what the leader promises to holders, and what that makes publication wait for.
//!
//! A lease is (partition, epoch, serial N, manifest version v, expiry). It promises: until the expiry, no group whose
//! bf-log entries are beyond N is published unless this holder has acknowledged them (design, section 6).
//!
//! * [`ring`]: the newest bf-log entries, by serial.
//! * [`grantor`]: grants, acknowledgements, and what they say about a group's publication. Pure: (state, event, now) -> answer.
//! * [`offer`]: how long a lease can be.
//! * [`parking`]: how long a pull may wait for news.
//! * [`desk`]: both of one partition behind a mutex that is held for microseconds: pulls come from any thread.

pub mod desk;
pub mod grantor;
pub mod offer;
pub mod parking;
pub mod ring;
pub mod slots;
