//! What the machine offers for breaking things: probed by doing, never assumed.
//!
//! Owns: the run's namespaces ([`confine`]), its network ([`net`], rules in [`rules`]), small disks ([`volume`]), the library
//! between server and kernel ([`shim`]), and the list of what works here ([`capability`]).

pub mod capability;
pub mod confine;
pub mod memory;
pub mod net;
pub mod rules;
pub mod shell;
pub mod shim;
pub mod throttle;
pub mod volume;
