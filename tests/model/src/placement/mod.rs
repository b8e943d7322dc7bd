//! A third, small model: on which servers an SSTable is, and how it moves from one to another.
//!
//! The manifest names a table's servers; a change of them is a command in the log. A leader has a server copy the table, then
//! proposes to name it, and has a server that is no longer named *release* its copy. Leaders are deposed at any time and go on
//! for a while with what they knew; their orders arrive late, or never; disks are lost. What has to hold: **a server that the
//! manifest or a cut names has the table, unless it has lost its disk since a leader in office had it copy
//! the table, or heard that it is there.**
//!
//! A cut names the table where the manifest does when the cut is committed, until an entry ends it; a compaction may take the table
//! out of the manifest meanwhile. A table that neither names is deleted.
//!
//! One table stands for all: what is remembered of orders is remembered for a whole partition.

mod state;
mod step;

pub use state::{Leader, SERVERS, State};
pub use step::{Action, Placement};

use crate::Mutant;

/// How much may happen.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Leaders after the first.
    pub elections: u8,
    /// Orders to copy, and questions.
    pub copies: u8,
    /// Changes that are proposed.
    pub changes: u8,
    /// Cuts that are begun, at any time, and end at any time.
    pub cuts: u8,
    /// Orders to release or delete.
    pub releases: u8,
    /// Disks that are lost.
    pub wipes: u8,
    pub mutant: Option<Mutant>,
}

impl Bounds {
    pub fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }
}
