//! The p-node against fakes of its servers, over real connections.

mod batches;
mod expiry;
mod kept;
mod leases;
mod manners;
mod read_failures;
mod reads;
mod scans;
mod servers;
mod unix;
mod writes;
