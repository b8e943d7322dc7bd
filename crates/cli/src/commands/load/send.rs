//! Sorted records go to their partitions, a few at a time; when all are written they are committed, one after the other. Whatever a
//! leader has forgotten is sent again.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::stream::{self, StreamExt, TryStreamExt};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sextant_client::{
    Client, EndLoad, Error, ErrorKind, LoadId, LoadPart, LoadRecord, LoadState, PartitionId, Result,
};

use super::sort::{Part, Sorted};

/// Bytes of a message.
const MESSAGE_BYTES: usize = 512 * 1024;
/// How often a partition is tried in a row without anything that went well.
const ATTEMPTS: u32 = 30;
const PAUSE: Duration = Duration::from_millis(500);
/// Pauses before commits grow to this: for each, writes are held a moment.
const COMMIT_PAUSE_MAX: Duration = Duration::from_secs(10);
/// How often what waits for its commit is spoken of: leaders forget it after a minute.
const KEEP: Duration = Duration::from_secs(15);

/// What did not work, and how far the load came.
#[derive(Debug)]
pub struct Failed {
    partition: PartitionId,
    committed: Vec<PartitionId>,
    pub error: Error,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "partition {}: {}", self.partition, self.error)?;
        match self.committed.is_empty() {
            true => write!(f, "; nothing of it is seen"),
            false => {
                let all: Vec<String> = self.committed.iter().map(ToString::to_string).collect();
                write!(f, "; it is seen in partitions {} only", all.join(" "))
            }
        }
    }
}

pub struct Sending {
    client: Client,
    table: String,
    id: LoadId,
    sorted: Arc<Sorted>,
    /// Records that were sent.
    sent: Arc<AtomicU64>,
}

fn is_worth_another_attempt(error: &Error) -> bool {
    error.is_retryable() || matches!(error.kind, ErrorKind::Unavailable | ErrorKind::Stopping)
}

impl Sending {
    pub fn new(client: Client, table: &str, id: LoadId, sorted: Sorted) -> Self {
        Self { client, table: table.to_owned(), id, sorted: sorted.into(), sent: Arc::default() }
    }

    fn named(&self, part: Part) -> LoadPart {
        LoadPart { partition: part.partition, table: self.table.clone(), id: self.id }
    }

    pub async fn run(&self, parallel: usize, quiet: bool) -> Result<(), Failed> {
        let bar = bar(self.sorted.records(), quiet);
        let drawing = async {
            loop {
                bar.set_position(self.sent.load(Ordering::Relaxed));
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        let keeping = async {
            loop {
                tokio::time::sleep(KEEP).await;
                for part in self.sorted.parts() {
                    // (What is forgotten shows when it is committed.)
                    let _ = self.client.end_load(&self.named(*part), EndLoad::Keep).await;
                }
            }
        };
        let done = tokio::select! {
            done = self.send_and_commit(parallel) => done,
            () = drawing => unreachable!("it draws for ever"),
            () = keeping => unreachable!("it speaks of them for ever"),
        };
        bar.finish_and_clear();
        done
    }

    async fn send_and_commit(&self, parallel: usize) -> Result<(), Failed> {
        let failed = |partition, committed: &[PartitionId]| {
            let committed = committed.to_vec();
            move |error| Failed { partition, committed, error }
        };
        let parts = self.sorted.parts();
        stream::iter(parts)
            .map(|part| async { self.write(*part).await.map_err(failed(part.partition, &[])) })
            .buffer_unordered(parallel.max(1))
            .try_collect::<()>()
            .await?;
        let mut committed = Vec::new();
        for part in parts {
            self.commit(*part).await.map_err(failed(part.partition, &committed))?;
            committed.push(part.partition);
        }
        Ok(())
    }

    /// Until it is written, or seen.
    async fn write(&self, part: Part) -> Result<()> {
        let named = self.named(part);
        let mut failures = 0;
        loop {
            let state = match self.client.end_load(&named, EndLoad::Keep).await {
                Ok(LoadState::Unknown) => {
                    let sent = self.client.send_load(&named, self.records(part)?).await;
                    if sent.is_err() {
                        self.sent_again(part);
                    }
                    sent
                }
                Ok(known) => {
                    self.sent.fetch_add(part.records, Ordering::Relaxed);
                    Ok(known)
                }
                Err(e) => Err(e),
            };
            match state {
                Ok(LoadState::Written { .. } | LoadState::Committed) => return Ok(()),
                Ok(LoadState::Unknown) => failures += 1,
                Err(e) if failures >= ATTEMPTS || !is_worth_another_attempt(&e) => return Err(e),
                Err(_) => failures += 1,
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// (The bar shows what was sent, not how often.)
    fn sent_again(&self, part: Part) {
        let less = |sent: u64| Some(sent.saturating_sub(part.records));
        let _ = self.sent.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    async fn commit(&self, part: Part) -> Result<()> {
        let named = self.named(part);
        let mut failures = 0;
        loop {
            match self.client.end_load(&named, EndLoad::Commit).await {
                Ok(LoadState::Committed) => return Ok(()),
                Ok(LoadState::Unknown | LoadState::Written { .. }) if failures < ATTEMPTS => {
                    failures += 1;
                    self.write(part).await?;
                }
                Ok(_) => return Err(Error::unavailable("its leader changes all the time")),
                Err(e) if failures >= ATTEMPTS || !is_worth_another_attempt(&e) => return Err(e),
                Err(_) => {
                    failures += 1;
                    tokio::time::sleep((PAUSE * failures).min(COMMIT_PAUSE_MAX)).await;
                }
            }
        }
    }

    /// In messages of about one size.
    fn records(&self, part: Part) -> Result<stream::BoxStream<'static, Result<Vec<LoadRecord>>>> {
        let (mut records, sent) = (self.sorted.read(part)?, self.sent.clone());
        let mut next = move || -> Result<Vec<LoadRecord>> {
            let (mut message, mut bytes) = (Vec::new(), 0);
            while bytes < MESSAGE_BYTES
                && let Some(record) = records.next()
            {
                let record = record?;
                bytes += record.key.len() + record.value.len();
                message.push(LoadRecord::new(record.key, record.value, record.expires_at));
            }
            sent.fetch_add(message.len() as u64, Ordering::Relaxed);
            Ok(message)
        };
        let messages = std::iter::from_fn(move || match next() {
            Ok(message) if message.is_empty() => None,
            message => Some(message),
        });
        Ok(stream::iter(messages).boxed())
    }
}

fn bar(records: u64, quiet: bool) -> ProgressBar {
    // (Nothing is drawn where standard error is no terminal.)
    let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let bar = ProgressBar::with_draw_target(Some(records), target);
    if let Ok(style) = ProgressStyle::with_template(
        "load [{elapsed}] {wide_bar} {human_pos}/{human_len} {per_sec} eta {eta}",
    ) {
        bar.set_style(style);
    }
    bar
}
