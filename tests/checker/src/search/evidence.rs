//! What shows that a key has no legal order.

/// Why there is no legal order. Numbers are indexes into the key's operations.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Evidence {
    /// It met a value that nobody had begun to write when it returned.
    FromNowhere(usize),
    /// The record was in one state from the return of one operation to the call of another: these do not fit.
    Held { from: usize, to: usize, against: Vec<usize> },
    /// A state that came about once was replaced by one operation, and met by another that cannot have come before.
    Replaced { by: usize, then: usize },
    /// All orders were tried.
    DeadEnd(DeadEnd),
}

/// How far the longest attempt came.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DeadEnd {
    /// Operations placed.
    pub placed: usize,
    /// The last of them, in order.
    pub last: Vec<usize>,
    /// The operation that returns next and cannot be placed.
    pub stuck: usize,
    /// The operation that wrote the state it met; `None`: nobody had written yet.
    pub written_by: Option<usize>,
}
