//! Doors for the fuzz targets. Not part of the interface.

pub use crate::filter_copies::fuzzing::take_replies;
