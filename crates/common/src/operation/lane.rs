//! Who goes first.

/// In which line a request waits when there is more to do than can be done at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Of a caller who has nothing else under way: it does not wait behind whole pipelines.
    #[default]
    Single,
    /// Of a caller who has sent others before it.
    Pipelined,
}
