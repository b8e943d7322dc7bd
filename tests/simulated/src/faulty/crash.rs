//! How much of what was not synced a loss of power leaves.

/// What becomes of unsynced changes when power fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CrashMode {
    /// None survives.
    LoseAll,
    /// Each write survives, is lost, or is torn between two 512-byte sectors, as the seed decides. New names, renames and
    /// removals are undone.
    #[default]
    TearWrites,
    /// As `TearWrites`; and of the changes of names, some first ones survive, as on a journaling file system.
    TearAll,
}
