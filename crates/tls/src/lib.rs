//! Encrypted connections on every port, and who is at the other end of them: rustls under the environment's `Network`.
//!
//! What servers do above it does not change: they listen at a [`Door`](sextant_environment::env::Door) and connect to
//! [whom](sextant_environment::env::Whom) they mean. Here is decided who may come in by which door.
//!
//! Invariants: with TLS there is no port without it. Through the door of members nobody comes without a certificate that names a
//! server of this cluster. A certificate that is shown and is not good ends the connection, whatever the door. Files that became
//! unreadable or wrong do not replace good ones.

pub mod authority;
mod certificate;
mod files;
mod handshakes;
mod material;
mod network;
mod refusals;
mod verify;

#[cfg(test)]
mod tests;

pub use certificate::host_names;
pub use files::{ClientFiles, Files};
pub use network::TlsNetwork;
