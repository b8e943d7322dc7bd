//! Bulk loads: sorted records become SSTables of a partition, and are seen all at once.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::channel::mpsc;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, StreamExt};
use sextant_common::error::{Error, Result};
use sextant_common::expiry::Tick;
use sextant_common::ids::{LoadId, PartitionId, Seq};
use sextant_common::marks::Marks;
use sextant_common::sstable::RecordVersion;
use sextant_environment::env::error_of;
use sextant_proto::v1;
use sextant_proto::v1::admin_client::AdminClient;

use crate::client::Client;
use crate::retry::timed;
use crate::wire::Wire;

mod whole;

pub use whole::{Load, LoadFailed, LoadSource};

/// One attempt to send a partition's records: as long as it goes on, whatever the client's deadline.
const SENDING_DEADLINE: Duration = Duration::from_secs(24 * 3600);
/// Messages that are made before the connection takes them.
const MESSAGES_WAITING: usize = 1;
/// A commit flushes what is in memory before.
const COMMIT_DEADLINE: Duration = Duration::from_secs(600);

/// A record of a load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadRecord {
    /// Its key.
    pub key: Bytes,
    /// Its value.
    pub value: Bytes,
    /// What it is, and until when: [`Marks::NONE`] for bytes that do not expire.
    pub marks: Marks,
}

impl LoadRecord {
    /// Plain bytes. `expires_at`: None: never.
    pub fn new(key: impl Into<Bytes>, value: impl Into<Bytes>, expires_at: Option<Tick>) -> Self {
        let marks = expires_at.map_or(Marks::NONE, Marks::until);
        Self { key: key.into(), value: value.into(), marks }
    }
}

/// Which part of a load is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadPart {
    /// The partition that all its keys are of.
    pub partition: PartitionId,
    /// The table; not empty.
    pub table: String,
    /// Random, and not 0; the same for all partitions of a load.
    pub id: LoadId,
}

/// How a part of a load is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadState {
    /// The partition's leader knows nothing of it: its records are to be sent again.
    Unknown,
    /// Its SSTables are durable, and wait for their commit, for a minute after they were last spoken of.
    Written {
        /// How many records they have.
        records: u64,
        /// How many bytes their files have.
        bytes: u64,
    },
    /// It is seen.
    Committed,
}

/// What is to become of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndLoad {
    /// It waits for another minute.
    Keep,
    /// It is seen, at once.
    Commit,
    /// It is forgotten.
    Abort,
}

impl Client {
    /// Sends the records of a part, in strictly rising order of keys; nothing of it can be seen before it is committed. What was sent
    /// under the same id before, and not committed, is forgotten. Needs the right of administration.
    ///
    /// Made once: whoever calls has to make the records again for another attempt, which is worth it after an error of kind
    /// [`Retry`](crate::ErrorKind::Retry), [`Unavailable`](crate::ErrorKind::Unavailable) or
    /// [`Overloaded`](crate::ErrorKind::Overloaded). The stream must not be silent for more than ten seconds; a
    /// message without records says that it goes on.
    pub fn send_load<'a>(
        &'a self,
        part: &'a LoadPart,
        records: BoxStream<'static, Result<Vec<LoadRecord>>>,
    ) -> BoxFuture<'a, Result<LoadState>> {
        Box::pin(async move {
            let (messages, failed) = messages(part, records);
            let messages = parking_lot::Mutex::new(Some(messages));
            let first: Arc<parking_lot::Mutex<Option<tonic::Status>>> = Arc::default();
            let sent = self
                .with_attempt_timeout(SENDING_DEADLINE)
                .administer(SENDING_DEADLINE, |admin, _| {
                    attempt(admin, messages.lock().take(), first.clone())
                })
                .await;
            // What the records say of themselves is the reason of all; what came after the first answer is of no interest.
            let why = failed.lock().take().or_else(|| first.lock().take().map(error_of));
            match (sent, why) {
                (Ok(reply), _) => Ok(state_of(reply)),
                (Err(e), why) => Err(why.unwrap_or(e)),
            }
        })
    }

    /// Ends a part of a load, or keeps it; how it is then. Idempotent.
    pub fn end_load<'a>(&'a self, part: &'a LoadPart, end: EndLoad) -> BoxFuture<'a, Result<LoadState>> {
        Box::pin(async move { self.ask_load(part, end).await.map(state_of) })
    }

    /// How many partitions the cluster has.
    pub fn partitions<'a>(&'a self) -> BoxFuture<'a, Result<u32>> {
        Box::pin(async move {
            let nothing = LoadPart { partition: PartitionId(0), table: String::new(), id: LoadId(0) };
            Ok(self.ask_load(&nothing, EndLoad::Keep).await?.partitions)
        })
    }

    async fn ask_load(&self, part: &LoadPart, end: EndLoad) -> Result<v1::LoadReply> {
        use v1::end_load_request::End;
        let end = match end {
            EndLoad::Keep => End::Keep,
            EndLoad::Commit => End::Commit,
            EndLoad::Abort => End::Abort,
        };
        let request = v1::EndLoadRequest { partition: part.partition.0, id: part.id.0, end: end.into() };
        let deadline = self.deadline().max(if end == End::Commit { COMMIT_DEADLINE } else { Duration::ZERO });
        self.with_attempt_timeout(deadline)
            .administer(deadline, async |mut admin, limit| {
                Ok(admin.end_load(timed(request, limit)).await?.into_inner())
            })
            .await
    }
}

type Messages = BoxStream<'static, v1::LoadRequest>;
type Attempt = BoxFuture<'static, Result<v1::LoadReply, tonic::Status>>;

/// `first`: gets what the first attempt was answered: a stream that is gone cannot be sent again.
fn attempt(
    mut admin: AdminClient<Wire>,
    messages: Option<Messages>,
    first: Arc<parking_lot::Mutex<Option<tonic::Status>>>,
) -> Attempt {
    Box::pin(async move {
        let messages = messages.ok_or_else(|| tonic::Status::invalid_argument("sent once"))?;
        let (sender, waiting) = mpsc::channel(MESSAGES_WAITING);
        tokio::spawn(messages.map(Ok).forward(sender));
        let sent = admin.load(waiting).await;
        Ok(sent.inspect_err(|e| *first.lock() = Some(e.clone()))?.into_inner())
    })
}

fn state_of(reply: v1::LoadReply) -> LoadState {
    match reply.state() {
        v1::load_reply::State::Unknown => LoadState::Unknown,
        v1::load_reply::State::Written => LoadState::Written { records: reply.records, bytes: reply.bytes },
        v1::load_reply::State::Committed => LoadState::Committed,
    }
}

type Failed = Arc<parking_lot::Mutex<Option<Error>>>;

/// The header, the records, how many there were. If they fail there is no end, so nothing is written; why.
fn messages(part: &LoadPart, records: BoxStream<'static, Result<Vec<LoadRecord>>>) -> (Messages, Failed) {
    let header = v1::LoadHeader { partition: part.partition.0, table: part.table.clone(), id: part.id.0 };
    let first = v1::LoadRequest { header: Some(header), ..Default::default() };
    let failed = Failed::default();
    let why = failed.clone();
    let body = futures::stream::unfold((records, 0u64, false), move |(mut records, sent, ended)| {
        let why = why.clone();
        async move {
            if ended {
                return None;
            }
            let message = match records.next().await {
                None => v1::LoadRequest { finish: true, record_count: sent, ..Default::default() },
                Some(Err(e)) => {
                    *why.lock() = Some(e);
                    return None;
                }
                Some(Ok(records)) => {
                    let records = records.into_iter().map(wire).collect();
                    v1::LoadRequest { records, ..Default::default() }
                }
            };
            let next = (records, sent + message.records.len() as u64, message.finish);
            Some((message, next))
        }
    });
    (futures::stream::iter([first]).chain(body).boxed(), failed)
}

fn wire(LoadRecord { key, value, marks }: LoadRecord) -> v1::ScanRecord {
    RecordVersion { key, seq: Seq(0), value: Some(value), marks }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part() -> LoadPart {
        LoadPart { partition: PartitionId(3), table: "t".into(), id: LoadId(7) }
    }

    #[tokio::test]
    async fn the_last_message_says_how_many_records_there_were() {
        let record = |key: &'static str| LoadRecord::new(key, "v", None);
        let pieces = vec![Ok(vec![record("a"), record("b")]), Ok(vec![record("c")])];
        let (messages, failed) = messages(&part(), futures::stream::iter(pieces).boxed());
        let messages: Vec<_> = messages.collect().await;
        assert_eq!(messages[0].header.as_ref().unwrap().partition, 3);
        assert_eq!((messages.len(), messages[3].finish, messages[3].record_count), (4, true, 3));
        assert!(failed.lock().is_none());
    }

    #[tokio::test]
    async fn records_that_fail_have_no_end() {
        let pieces = vec![Ok(vec![LoadRecord::new("a", "v", None)]), Err(Error::invalid("line 2"))];
        let (messages, failed) = messages(&part(), futures::stream::iter(pieces).boxed());
        assert!(messages.collect::<Vec<_>>().await.iter().all(|message| !message.finish));
        assert_eq!(failed.lock().take().unwrap().message, "line 2");
    }
}
