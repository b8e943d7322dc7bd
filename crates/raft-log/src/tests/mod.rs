//! Tests of the whole log, over a disk in memory that crashes on order.

mod crashes;
mod devices;
mod faults;
mod fixture;
mod full;
mod openraft_suite;
mod overlaps;
mod reading;
mod segments;
mod snapshots;
mod support;
mod torn;
