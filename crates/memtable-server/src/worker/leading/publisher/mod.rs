//! Publication, as the worker does it: strictly in log order, when Raft has committed and the rule allows
//! ([`crate::publication`]); and the answers that wait for it.
//!
//! Every replica publishes what is committed; only a leader has leases that forbid it, and clients that wait.

mod publish;

use std::collections::VecDeque;

use crate::replica::WriteFate;
use crate::worker::proposal::Reply;

/// What came of a look at the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::worker) struct Published {
    pub any: bool,
    /// The leases forbid the next one until an acknowledgement, or this time (grantor's clock).
    pub look_again_at_ns: Option<u64>,
}

/// What a leader's publication adds.
#[derive(Default)]
pub(in crate::worker) struct Publisher {
    /// Answers about appended state, and the entry after whose publication each is given: everything that it saw is published then.
    deferred: VecDeque<(u64, Reply)>,
    pub look_again_at_ns: Option<u64>,
}

impl Publisher {
    pub fn is_busy(&self) -> bool {
        !self.deferred.is_empty() || self.look_again_at_ns.is_some()
    }

    /// The log was cut, or leadership ends: what was seen may never have been.
    pub fn refuse_all(&mut self, why: &'static str) {
        for (_, reply) in self.deferred.drain(..) {
            reply.sink.send(WriteFate::Retry(why));
        }
    }
}
