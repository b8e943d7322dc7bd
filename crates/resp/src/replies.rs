//! Room for long replies.

use std::time::Duration;

use sextant_common::limits;
use sextant_environment::room::{Room, Share};

use crate::frame::Reply;

/// Commands up to this size need no room: a connection's input buffer is as large in any case. Replies neither.
pub(crate) const SHORT_BYTES: usize = limits::LARGE_BYTES;
/// After this time one who waits for room may have more than there is: others may hold what they have until they have had its
/// answer or its end.
pub(crate) const PATIENCE: Duration = Duration::from_millis(500);

/// Room for long replies of all connections, until they are written. What finds none in time is dropped: a read can be made again.
#[derive(Debug)]
pub(crate) struct Replies {
    room: Room,
    /// Long replies that wait for room are in memory: as many bytes of them as there is room for. Further ones are dropped at once.
    waiting: Room,
    /// How long one waits.
    patience: Duration,
}

impl Replies {
    pub fn new(bytes_max: usize, patience: Duration) -> Self {
        Self { room: Room::new(bytes_max), waiting: Room::new(bytes_max), patience }
    }

    /// The reply with its room, or an error in its place.
    pub async fn admit(&self, reply: Reply) -> (Reply, Option<Share>) {
        if reply.size() <= SHORT_BYTES {
            return (reply, None);
        }
        let bytes = reply.size();
        let room = match self.room.try_take(bytes) {
            Some(share) => Some(share),
            None => match self.waiting.try_take(bytes) {
                // The room may be held by replies of the same pipeline, which wait for this one: so one may have more.
                Some(_waits) => {
                    let room = self.room.take_or_more(bytes, PATIENCE);
                    tokio::time::timeout(self.patience, room).await.ok()
                }
                None => None,
            },
        };
        match room {
            Some(share) => (reply, Some(share)),
            None => {
                drop(reply);
                let why =
                    "TRYAGAIN overloaded: too many bytes of replies wait for clients that do not read them";
                (Reply::error(why.to_owned()), None)
            }
        }
    }

    /// The same for the answer to a write that has taken effect: it waits longer before nothing is said.
    pub async fn admit_written(&self, reply: Reply) -> (Reply, Option<Share>) {
        if reply.size() <= SHORT_BYTES {
            return (reply, None);
        }
        let room = self.room.take_or_more(reply.size(), PATIENCE);
        match tokio::time::timeout(self.patience, room).await {
            Ok(share) => (reply, Some(share)),
            Err(_) => {
                let why = "OUTCOMEUNKNOWN the command took effect, but there was no room for its answer: too many bytes of \
                           replies wait for clients that do not read them";
                (Reply::error(why.to_owned()), None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: usize = 1 << 20;

    fn long() -> Reply {
        Reply::Bulk(vec![0; LONG - 1024].into())
    }

    /// Two long replies have all the room.
    async fn full() -> (Replies, [Share; 2]) {
        let replies = Replies::new(2 * LONG, Duration::from_secs(5));
        let (_, first) = replies.admit_written(long()).await;
        let (_, second) = replies.admit(long()).await;
        let shares = [first, second].map(|share| share.expect("there is room for two"));
        (replies, shares)
    }

    #[tokio::test(start_paused = true)]
    async fn the_answer_to_a_write_waits_for_room_and_is_never_called_undone() {
        let (replies, [first, _second]) = full().await;
        let (reply, more) = replies.admit_written(Reply::Integer(1)).await;
        assert!(more.is_none() && matches!(reply, Reply::Integer(1)));
        let waits = replies.admit_written(long());
        drop(first);
        assert!(waits.await.1.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn long_replies_wait_for_room_and_short_ones_need_none() {
        let (replies, [first, _second]) = full().await;
        // An earlier reply of the same pipeline, for example.
        let (_, more) = replies.admit(long()).await;
        assert!(more.is_some(), "one may have more than there is");
        let (refused, none) = replies.admit(long()).await;
        assert!(refused.is_error() && none.is_none(), "a value that nobody has room for is dropped");
        let (short, none) = replies.admit(Reply::Bulk(vec![0; 100].into())).await;
        assert!(!short.is_error() && none.is_none());
        let later = async {
            tokio::task::yield_now().await;
            drop(first);
        };
        let ((reply, room), ()) = tokio::join!(replies.admit(long()), later);
        assert!(!reply.is_error() && room.is_some(), "it waits a while");
    }
}
