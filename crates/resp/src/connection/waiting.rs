//! A command that waits until there is something for it. It keeps neither turn nor room, and nothing after it is begun; but what its
//! client sends is read, up to a bound, as there is no other way to see that the client has gone.

use std::pin::pin;
use std::task::Context;

use sextant_environment::slow_log;

use super::pipeline::Ticket;
use super::{Connection, Due, Intake, Leave, READ_BYTES};
use crate::command::{Release, Waiting};
use crate::command_table::Id;
use crate::frame::Protocol;
use crate::store::Store;

/// What may come after a command that waits.
const READ_AHEAD_BYTES_MAX: usize = 4 * READ_BYTES;

impl<S: Store> Connection<S> {
    pub(super) fn start_waiting(
        &mut self,
        ticket: Ticket,
        (id, waiting, protocol): (Id, Box<Waiting>, Protocol),
        leave: Leave,
        since_ns: u64,
    ) -> Option<Due> {
        let (shared, client) = (self.shared.clone(), self.conversation.entry.clone());
        // (Whoever is gone already is not told later.)
        let released = match self.intake {
            Intake::Open => Ok(client.wait()),
            _ if self.stops => Err(Release::Stops),
            _ => Err(Release::Gone),
        };
        let standing = self.conversation.who.standing();
        self.running.push(Box::pin(async move {
            let filled = waiting.filled();
            let mut time = pin!(waiting.time());
            let mut at_once = Box::pin(slow_log::traced(waiting.at_once(&shared)));
            let taken = at_once.as_mut().await;
            let trace = at_once.as_mut().take_value();
            drop(at_once);
            let reply = match (taken, released) {
                (Ok(reply), _) => {
                    let key = waiting.object.keys.first().cloned();
                    shared.took(id, since_ns, key, &client, trace.as_ref());
                    reply
                }
                (Err(_), Err(why)) => why.reply(),
                (Err(blind), Ok(released)) => {
                    drop(leave);
                    // (How long it waits is nobody's fault, and not measured.)
                    waiting.wait(&shared, standing, released, time.as_mut(), blind).await
                }
            };
            filled.iter().for_each(|key| shared.waiters.wake(shared.database, key));
            let (reply, room) = shared.replies.admit_written(reply).await;
            (ticket, (reply, protocol, room))
        }));
        None
    }

    /// What is read waits in the input.
    pub(super) fn read_while_held(&mut self, cx: &mut Context<'_>) -> bool {
        if self.input.len() >= READ_AHEAD_BYTES_MAX {
            return self.conversation.entry.release(Release::Crowded);
        }
        if self.input.capacity() - self.input.len() < READ_BYTES / 2 {
            self.input.reserve(READ_BYTES);
        }
        self.read_some(cx)
    }
}
