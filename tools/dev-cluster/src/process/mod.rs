//! Servers as child processes.
//!
//! Owns: starting, signalling and reaping them, and that none outlives this process: a child is killed when the thread that
//! started it ends (PR_SET_PDEATHSIG), and that thread lives exactly as long as its [`Keeper`]. Children have process groups
//! of their own, so that an interrupt from the terminal reaches only the parent, which then stops them in order.

mod keeper;

pub use keeper::{Child, Keeper, Signal, describe};
