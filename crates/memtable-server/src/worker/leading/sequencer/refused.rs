//! What cannot go into the log: it is refused before anything of it is out, and whoever waits is told.

use sextant_common::error::Error;

use super::super::Leading;
use crate::command::Command;
use crate::flush::LOAD_BYTES_MAX;
use crate::metrics::Metrics;
use crate::partition::evaluate::{GROUP_ENTRY_BYTES_MAX, REQUEST_ENTRY_BYTES_MAX};
use crate::raft::wire::ENTRY_BYTES_MAX;
use crate::replica::{QueuedWrite, WriteFate};
use crate::worker::proposal::PendingCommand;
use crate::worker::replica::Replica;

// What clients may send, and load, makes entries that every follower can be sent.
const _: () = assert!(REQUEST_ENTRY_BYTES_MAX <= ENTRY_BYTES_MAX && LOAD_BYTES_MAX <= ENTRY_BYTES_MAX);
const _: () = assert!(GROUP_ENTRY_BYTES_MAX <= ENTRY_BYTES_MAX);

/// Writes whose group would be too long for an entry. They were not executed. (Such a group is not formed: requests and groups have
/// bounds of their own. An entry that no follower can be sent would end all writes for good, so it is looked at once more.)
pub(super) fn too_long(metrics: &Metrics, writes: Vec<QueuedWrite>, why: Error) {
    metrics.overloaded.inc_by(writes.len() as u64);
    tracing::error!("a group of {} writes is refused: {why}", writes.len());
    let is_one = writes.len() == 1;
    for write in writes {
        write.reply.send(match is_one {
            true => WriteFate::Invalid(why.message.clone()),
            // Each for itself may be short enough.
            false => WriteFate::Overloaded(why.message.clone()),
        });
    }
}

impl Leading {
    /// A command was not proposed: there is no room for it, or it must not be in this log. Commands that are as long as that, and that
    /// the worker has made, are ended as if what led to them had failed.
    pub(super) fn refuse_command(&mut self, replica: &Replica, pending: Box<PendingCommand>, why: Error) {
        match &pending.command {
            Command::Load(_) | Command::ChangeTable(_) => self.give_adoption_up(replica, why.clone()),
            Command::Compaction(compaction) => self.compaction_refused(replica, compaction, &why),
            _ => {}
        }
        pending.end(Err(why));
    }
}

#[cfg(test)]
mod tests {
    use sextant_common::operation::{RequestId, WriteRequest};
    use tokio::sync::mpsc;

    use super::*;
    use crate::raft::wire::check_entry;
    use crate::replica::{Answer, QueueShare, ReplySink};

    #[test]
    fn writes_of_a_group_that_no_message_carries_are_refused_and_one_alone_is_not_to_be_sent_again() {
        let metrics = Metrics::register(&mut Default::default());
        let (answers, mut told) = mpsc::unbounded_channel();
        let write = |id| QueuedWrite {
            request: WriteRequest { id: RequestId::default(), ops: Vec::new() },
            share: QueueShare::for_tests(10),
            deadline_ns: u64::MAX,
            reply: ReplySink::new(id, 0, answers.clone(), None),
        };
        let why = || check_entry(ENTRY_BYTES_MAX + 1).unwrap_err();
        too_long(&metrics, vec![write(1)], why());
        too_long(&metrics, vec![write(2), write(3)], why());
        let mut fates = Vec::new();
        while let Ok(Answer { id, fate, .. }) = told.try_recv() {
            fates.push((id, fate));
        }
        assert!(
            matches!(
                &fates[..],
                [(1, WriteFate::Invalid(why)), (2, WriteFate::Overloaded(_)), (3, WriteFate::Overloaded(_))]
                    if why.contains("at most")
            ),
            "{fates:?}"
        );
        assert_eq!(metrics.overloaded.get(), 3);
    }
}
