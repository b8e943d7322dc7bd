//! A file system in memory that loses what was not fsynced when it crashes. (Being written.)

#[derive(Debug, Default)]
pub struct FaultyVfs;
