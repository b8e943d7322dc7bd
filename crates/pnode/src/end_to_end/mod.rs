//! The p-node against fakes of its servers, over real connections.

mod leases;
mod reads;
mod scans;
mod servers;
mod writes;
