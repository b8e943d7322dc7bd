//! Sorted records as what a load sends, with a bar that shows how far it is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::stream::{self, StreamExt};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sextant_client::{Client, Load, LoadFailed, LoadId, LoadRecord, LoadSource, PartitionId, Result};

use super::sort::{Part, Sorted};

/// Bytes of a message.
const MESSAGE_BYTES: usize = 512 * 1024;

pub struct Sending {
    sorted: Sorted,
    /// Records that were sent, by partition. (The bar shows what was sent, not how often.)
    sent: BTreeMap<PartitionId, (Part, Arc<AtomicU64>)>,
}

impl Sending {
    pub fn new(sorted: Sorted) -> Self {
        let sent = sorted.parts().iter().map(|part| (part.partition, (*part, Arc::default()))).collect();
        Self { sorted, sent }
    }

    pub async fn run(
        &self,
        client: &Client,
        table: &str,
        id: LoadId,
        parallel: usize,
        quiet: bool,
    ) -> Result<(), LoadFailed> {
        let load =
            Load { table: table.to_owned(), id, partitions: self.sent.keys().copied().collect(), parallel };
        let bar = bar(self.sorted.records(), quiet);
        let drawing = async {
            loop {
                bar.set_position(self.sent.values().map(|(_, sent)| sent.load(Ordering::Relaxed)).sum());
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        let done = tokio::select! {
            done = client.load(&load, self) => done,
            () = drawing => unreachable!("it draws for ever"),
        };
        bar.finish_and_clear();
        done
    }
}

impl LoadSource for Sending {
    /// In messages of about one size.
    fn records(&self, partition: PartitionId) -> Result<stream::BoxStream<'static, Result<Vec<LoadRecord>>>> {
        let Some((part, sent)) = self.sent.get(&partition) else { return Ok(stream::empty().boxed()) };
        let (mut records, sent) = (self.sorted.read(*part)?, sent.clone());
        sent.store(0, Ordering::Relaxed);
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

    fn is_there(&self, partition: PartitionId) {
        if let Some((part, sent)) = self.sent.get(&partition) {
            sent.store(part.records, Ordering::Relaxed);
        }
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
