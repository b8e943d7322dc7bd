//! Linearizability checking of recorded histories (format: `docs/formats/history.md`).
//!
//! Owns the history format, its [`Recorder`], the sequential specification of a register, and two checks:
//!
//! * the **certificate**: results carry versions; sorted by version they must obey the specification and real time. Fast,
//!   and it says which rule was broken. It trusts nothing: a key that it certifies *is* linearizable.
//! * the **search** (Wing and Gong, with Lowe's list and memo): looks for any legal order and does not look at versions at
//!   all, so it also finds what a database that is consistently wrong about its versions would hide.
//!
//! Commands on [objects](objects), and transactions, are searched only: they are judged by group, and name no versions.
//!
//! Does not own transports or clients, and knows nothing of how the history came to be. Pure but for the recorder's writer.
//!
//! Invariant: a verdict of "linearizable" is a proof. What could not be decided within the budget is said to be undecided,
//! and is not a pass.

mod certificate;
mod check;
mod history;
mod objects;
mod recorder;
mod register;
mod report;
mod search;

pub use check::{Options, check, check_file, check_reader};
pub use history::{ABSENT, Action, History, Op, UNKNOWN, Value};
pub use objects::{Command, Expiry, Reply};
pub use recorder::{Call, Pending, PendingCommands, Recorder, Returned};
pub use report::{CheckKind, Described, Explanation, Report, Undecided, Verdict};
