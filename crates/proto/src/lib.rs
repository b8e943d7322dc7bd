//! The wire protocol between Sextant's tiers and its clients.
//!
//! Owns: the protobuf files, the code generated from them, and their conversion to the domain types of `common`
//! (`convert`), which validates what came over the wire. Does not own: any decision. Invariant: nothing outside of this
//! crate and the thin service shells sees a generated message where a domain type exists.

pub mod convert;

/// Messages and services generated from `proto/*.proto` by `cargo xtask proto`.
#[allow(clippy::all, clippy::pedantic, missing_docs)]
pub mod v1 {
    include!("generated/sextant.v1.rs");
}

/// All methods of all services: path, service, method. Generated with them.
pub const METHODS: &[(&str, &str, &str)] = include!("generated/methods.rs");

/// A `FileDescriptorSet` of what clients and operators call, for server reflection. Generated with them.
pub const DESCRIPTORS: &[u8] = include_bytes!("generated/clients.binpb");

/// The largest gRPC message that any of our services accepts: a batch of the largest size plus its framing.
pub const MESSAGE_BYTES_MAX: usize = 24 * 1024 * 1024;
