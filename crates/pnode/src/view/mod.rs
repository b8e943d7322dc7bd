//! What a p-node believes about a partition: one immutable object, loaded atomically.
//!
//! Owns [`PartitionView`] (filter copies, epoch, serial, manifest, set of SSTables, lease) and [`Views`], the place where the
//! current ones stand. Does not own any I/O: pullers and upstreams hand in what they received.
//!
//! Invariants:
//! * A reader loads the view first, reads the clock second, probes the filters third. The load is its linearization point:
//!   a lease that is unexpired at the clock reading was so at the load, when this view was the current one.
//! * A lease stands in a view only together with filters that contain its serial and SSTables of its version or newer.
//! * Filters that are shared between views only gain bits, and serials of registration slots only rise. A new epoch makes new objects, as
//!   do whole filters.
//! * The manifest version of a partition's views never falls.

mod filters;
mod layers;
mod manifest_view;
mod partition_view;
mod read_key;
mod slots;
mod tables;
mod views;

pub(crate) use filters::FilterCopies;
pub use filters::is_usable;
pub(crate) use manifest_view::{Flushed, ManifestView, Sst};
pub(crate) use partition_view::PartitionView;
pub(crate) use read_key::ReadKey;
pub use slots::Registration;
pub(crate) use slots::SlotSerials;
pub(crate) use tables::TableNames;
pub(crate) use views::Views;
