//! The sstable servers, as a leader talks to them.
//!
//! Owns the connections to them, the deadlines of calls, and what an ingest streams. Does not own any decision: which
//! tables are written, compacted, copied or deleted is said by [`crate::flush`] and [`crate::recover`]; here is only which
//! servers a new one is spread over.
//!
//! Messages end here: what is asked and answered are orders and tables of the domain.

mod ingest;
mod servers;
mod zones;

pub use servers::{Held, SstServer, SstServers};
