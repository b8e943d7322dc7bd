//! The Redis protocol front end.
//!
//! Owns sockets, framing (RESP2, RESP3, inline), the command table, the order of replies and of a connection's commands, and
//! the limits that keep one client from exhausting the server. Does not own data or routing: every key is asked of a
//! [`Store`], and nothing here knows what is behind it.
//!
//! Invariants
//! * Replies leave a connection in the order of its commands.
//! * Commands of one connection that touch the same key, one of them writing, take effect in their order. Commands on
//!   different keys, and reads, may run side by side: see [`connection`](crate::RespServer) for what that means to clients.
//! * What a client announces costs nothing; only what it sends does, and that is bounded.

mod clients;
mod command;
mod command_table;
mod companions;
mod config;
mod connection;
mod cursors;
mod element_turns;
pub mod frame;
#[doc(hidden)]
pub mod fuzzing;
mod gathering;
mod glob;
mod hints;
mod metrics;
mod queued;
mod remembered;
mod repeats;
mod replies;
mod server;
mod shared;
mod store;
mod subcommands;
mod waiters;
mod who;

pub use config::{Order, Patience, RespConfig, TCP_KEEPALIVE_S_DEFAULT};
pub use metrics::RespMetrics;
pub use server::{Common, RespServer};
pub use store::{
    ElementPage, ElementRange, ElementStep, InLine, Look, Named, Position, STEP_TIME_MAX, SetCondition,
    SetDone, Store, Walk, between, one_by_one,
};
