//! What clients speak to: gRPC (`Kv`, `Admin`, and what every gRPC server has) and RESP, over the library.
//!
//! Owns: translation of messages, limits of requests and connections, deadlines of calls, status for people. Does not own
//! any decision about a read or a write.

mod admin;
mod archive;
mod backup;
mod connections;
mod fields;
mod gate;
mod health;
mod incoming;
mod kv;
mod reflection;
mod resp_store;
mod shares;
mod status;
mod sweeper;
mod users;
mod users_service;
mod whereabouts;

pub(crate) use admin::AdminService;
pub(crate) use connections::counted;
pub(crate) use gate::Gate;
pub(crate) use health::HealthService;
pub(crate) use incoming::{Incoming, Rooms};
pub(crate) use kv::KvService;
pub(crate) use reflection::reflection;
pub(crate) use resp_store::RespStore;
pub(crate) use status::own_status;
pub(crate) use sweeper::{Sweep, Sweeper};
pub(crate) use users::UserRecord;
pub(crate) use users_service::UsersService;
pub(crate) use whereabouts::WhereaboutsService;
