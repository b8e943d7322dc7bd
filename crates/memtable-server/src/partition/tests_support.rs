//! Shared by the unit tests of the partition.
