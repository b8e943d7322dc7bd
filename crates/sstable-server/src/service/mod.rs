//! The gRPC shells: they turn messages into calls of [`crate::store::Store`] and decide nothing.

mod admin;
mod sst;
mod wire;

pub use admin::AdminService;
pub use sst::SstService;
