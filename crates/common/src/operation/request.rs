//! Requests as the leader of a partition gets them.

use bytes::Bytes;

use super::{Base, Condition, Effect, Lifetime, Returns};
use crate::ids::TableId;

/// Makes a retried write take effect once. The default names no session: nothing is remembered, and a repeated write
/// takes effect again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestId {
    /// A session that is open in the partition; 0: none.
    pub session: u64,
    /// Rising within the session; a retry repeats it.
    pub number: u64,
    /// The caller has had all answers below this number: they may be forgotten.
    pub acked_below: u64,
}

/// An [`Operation`](super::Operation) as it reaches its leader: the table by its id, and with what its condition rests
/// on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteOp {
    pub table: TableId,
    pub key: Bytes,
    pub effect: Effect,
    pub lifetime: Lifetime,
    pub condition: Condition,
    pub base: Option<Base>,
    /// The value of `base`, if there is one and the operation needs it.
    pub base_value: Option<Bytes>,
    /// A failed condition skips this operation only; otherwise it fails the whole request.
    pub skip_on_failure: bool,
    pub returns: Returns,
}

/// An atomic batch of one client, all in one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteRequest {
    pub id: RequestId,
    pub ops: Vec<WriteOp>,
}
