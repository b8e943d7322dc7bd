//! Phases: what a run consists of. Each phase is a source of requests for every thread; `drive` runs the threads.

mod drive;
mod request;
mod source;

pub use drive::{Driven, Pace, drive};
pub use request::Context;
pub use source::{Load, Reread, Transactions, Update, find_end};
