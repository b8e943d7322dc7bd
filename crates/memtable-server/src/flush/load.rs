//! Records of a bulk load become SSTables: as they arrive they go to the servers of a table's replica set, all the same bytes, and when
//! a table is large enough the next one begins. Nobody names them yet.
//!
//! Invariants: records are held as one message of each stream, and the few that a server has not taken. A table counts when enough
//! servers have it durably, with one checksum. Tables whose load comes to nothing are given up.

use std::time::Duration;

use bytes::Bytes;
use sextant_common::error::{Error, Result};
use sextant_common::ids::{Generation, NodeId, Seq, SstId};
use sextant_common::key_range::KeyRange;
use sextant_common::limits::KEY_BYTES_MAX;
use sextant_common::load::LOADED_SSTS_MAX;
use sextant_common::manifest::{Generations, Origin, SstMeta, TableOptions};
use sextant_common::sstable::{IngestOrder, RecordVersion};
use sextant_proto::v1;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::Background;
use super::enough::enough;
use crate::replica::LoadJob;

/// Messages on their way to a server.
const MESSAGES_WAITING: usize = 2;
/// A server that does not take the next message for so long is left to repair.
const LAGGARD: Duration = Duration::from_secs(10);

/// What a load's tables may take in the entry that adopts them, which has to fit into messages between servers; beyond the last one.
const TABLES_BYTES_MAX: usize = 8 * 1024 * 1024;
/// What one table takes there, beside its keys.
const TABLE_BYTES: usize = 256;
/// The most that a load takes in the log.
pub const LOAD_BYTES_MAX: usize = TABLES_BYTES_MAX + 4 * KEY_BYTES_MAX + TABLE_BYTES;

/// Hashes of which a table's filter is made. Whoever writes a table keeps some 38 bytes for each in memory until it is sealed, and has
/// room for a million of them (sstable-server, `memory.rs`): small records come to a table of the target's size with many more.
const TABLE_HASHES_MAX: u64 = 1_000_000;

/// At most: each end of a table may become one of its range.
fn entry_bytes(sst: &SstMeta) -> usize {
    2 * (sst.min_key.len() + sst.max_key.len()) + TABLE_BYTES
}

/// Most records of a table.
fn records_max(options: &TableOptions) -> u64 {
    TABLE_HASHES_MAX / options.hashes_max(1)
}

/// How many more records a table of so many bytes and records takes.
fn room(bytes: u64, records: u64, target_bytes: u64, options: &TableOptions) -> u64 {
    if bytes >= target_bytes { 0 } else { records_max(options).saturating_sub(records) }
}

/// Takes off as many of the first records.
fn take_first(records: &mut Vec<RecordVersion>, most: u64) -> Vec<RecordVersion> {
    let most = usize::try_from(most).unwrap_or(usize::MAX).min(records.len());
    let rest = records.split_off(most);
    std::mem::replace(records, rest)
}

/// What arrives at once.
#[derive(Debug, Default)]
pub struct LoadPiece {
    pub records: Vec<RecordVersion>,
    /// With the last one: how many there were.
    pub finish: Option<u64>,
}

/// A server that writes a table.
struct Copy {
    node: NodeId,
    messages: mpsc::Sender<v1::IngestRequest>,
    answer: JoinHandle<Result<SstMeta>>,
}

/// The table that is being written.
struct Open {
    id: SstId,
    copies: Vec<Copy>,
    /// Of the whole replica set.
    replicas: Vec<NodeId>,
    required: usize,
    records: u64,
    bytes: u64,
    /// What went wrong at servers that are left out.
    errors: Vec<String>,
}

/// A load that arrives.
pub struct Arriving<'b> {
    background: &'b Background,
    job: LoadJob,
    open: Option<Open>,
    done: Vec<SstMeta>,
    last_key: Bytes,
    records: u64,
}

impl<'b> Arriving<'b> {
    pub fn new(background: &'b Background, job: LoadJob) -> Self {
        Self { background, job, open: None, done: Vec::new(), last_key: Bytes::new(), records: 0 }
    }

    /// Records that follow those before. None: whoever loads says that it goes on, which the servers of the open table have to hear.
    pub async fn take(&mut self, mut records: Vec<RecordVersion>) -> Result<()> {
        if records.is_empty()
            && let Some(open) = &mut self.open
        {
            return open.send(self.background, v1::IngestRequest::default()).await;
        }
        for record in &records {
            self.records += 1;
            if record.key <= self.last_key {
                return Err(Error::invalid(format!(
                    "record {} is not in rising order of keys",
                    self.records
                )));
            }
            self.last_key = record.key.clone();
        }
        // (A message of tiny records may have more of them than there is room for.)
        while !records.is_empty() {
            let (target, options) = (self.background.tuning.sst_target_bytes, &self.job.options);
            let (bytes, taken) = self.open.as_ref().map_or((0, 0), |open| (open.bytes, open.records));
            match room(bytes, taken, target, options) {
                0 => self.finish_table().await?,
                room => self.send(take_first(&mut records, room)).await?,
            }
        }
        Ok(())
    }

    /// To the servers of the open table, or of a new one.
    async fn send(&mut self, records: Vec<RecordVersion>) -> Result<()> {
        let mut open = match self.open.take() {
            Some(open) => open,
            None => self.begin_table()?,
        };
        let bytes = |r: &RecordVersion| (r.key.len() + r.value.as_ref().map_or(0, Bytes::len)) as u64;
        open.bytes += records.iter().map(bytes).sum::<u64>();
        open.records += records.len() as u64;
        let seq = Seq(self.job.seq);
        let records = records.into_iter().map(|record| RecordVersion { seq, ..record }.into()).collect();
        let sent = open.send(self.background, v1::IngestRequest { records, ..Default::default() }).await;
        self.open = Some(open);
        sent
    }

    /// The tables, when all are durable.
    pub async fn finish(mut self, record_count: u64) -> Result<Vec<SstMeta>> {
        if record_count != self.records {
            let came = self.records;
            return Err(Error::invalid(format!("{came} records arrived, {record_count} were sent")));
        }
        self.finish_table().await?;
        Ok(std::mem::take(&mut self.done))
    }

    fn begin_table(&self) -> Result<Open> {
        let job = &self.job;
        if self.done.iter().map(entry_bytes).sum::<usize>() > TABLES_BYTES_MAX {
            return Err(Error::invalid(
                "the keys of a load's tables are too long for one entry of the log: load it in parts",
            ));
        }
        if self.done.len() >= LOADED_SSTS_MAX {
            let most = self.background.tuning.sst_target_bytes.saturating_mul(LOADED_SSTS_MAX as u64);
            let records = records_max(&job.options) * LOADED_SSTS_MAX as u64;
            return Err(Error::invalid(format!(
                "a load has at most {LOADED_SSTS_MAX} tables in a partition, so about {most} bytes, or {records} records: load it in \
                 parts"
            )));
        }
        let generation = Generation(job.first.0 + self.done.len() as u64);
        let id = self.background.new_id(job.plan, job.epoch);
        let order = IngestOrder {
            id,
            table: job.table,
            options: job.options.clone(),
            origin: Some(Origin {
                lineage: job.lineage,
                name: job.name.clone(),
                generations: Generations { first: generation, last: generation },
                range: KeyRange::all(),
            }),
        };
        let servers = self.background.choose(id);
        let replicas: Vec<NodeId> = servers.iter().map(|server| server.id).collect();
        let header = v1::IngestRequest { header: Some((&order).into()), ..Default::default() };
        let copies = servers.into_iter().map(|server| {
            let (messages, waiting) = mpsc::channel(MESSAGES_WAITING);
            let _ = messages.try_send(header.clone());
            let (node, all) = (server.id, self.background.servers.clone());
            let answer = self.background.runtime.spawn(async move {
                let server = all.get(node).ok_or_else(|| Error::internal("an unknown sstable server"))?;
                let waiting = tokio_stream::wrappers::ReceiverStream::new(waiting);
                server.ingest_messages(waiting).await
            });
            Copy { node, messages, answer }
        });
        Ok(Open {
            id,
            required: self.background.tuning.sst_replicas_required.min(replicas.len()),
            copies: copies.collect(),
            replicas,
            records: 0,
            bytes: 0,
            errors: Vec::new(),
        })
    }

    async fn finish_table(&mut self) -> Result<()> {
        let Some(mut open) = self.open.take() else { return Ok(()) };
        let id = open.id;
        match open.finish(self.background).await {
            Ok(meta) if meta.id == id && meta.table == self.job.table => {
                self.done.push(meta);
                Ok(())
            }
            Ok(_) => {
                self.open = Some(open);
                Err(Error::internal("an sstable server answered for another table"))
            }
            Err(e) => {
                self.open = Some(open);
                Err(e)
            }
        }
    }
}

impl Drop for Arriving<'_> {
    /// What is left came to nothing.
    fn drop(&mut self) {
        let open = self.open.take();
        let mut ids: Vec<SstId> = self.done.iter().map(|sst| sst.id).collect();
        ids.extend(open.iter().map(|open| open.id));
        for copy in open.into_iter().flat_map(|open| open.copies) {
            copy.answer.abort();
        }
        self.background.give_up(ids);
    }
}

impl Open {
    /// Each server takes it; those that do not are left out, as long as enough are left.
    async fn send(&mut self, background: &Background, message: v1::IngestRequest) -> Result<()> {
        let sends = self.copies.drain(..).map(|copy| {
            let message = message.clone();
            async move {
                match tokio::time::timeout(LAGGARD, copy.messages.send(message)).await {
                    Ok(Ok(())) => Ok(copy),
                    Ok(Err(_)) => Err((copy.node, why(copy.answer).await)),
                    Err(_) => {
                        copy.answer.abort();
                        Err((copy.node, format!("takes nothing for {LAGGARD:?}")))
                    }
                }
            }
        });
        for sent in futures::future::join_all(sends).await {
            match sent {
                Ok(copy) => self.copies.push(copy),
                Err((node, e)) => {
                    background.failed(node);
                    self.errors.push(format!("server {node}: {e}"));
                }
            }
        }
        self.check(self.copies.len())
    }

    fn check(&self, durable: usize) -> Result<()> {
        if durable >= self.required {
            return Ok(());
        }
        let errors = self.errors.join("; ");
        Err(Error::unavailable(format!(
            "only {durable} of {} replicas of a loaded table can be written ({errors})",
            self.required
        )))
    }

    async fn finish(&mut self, background: &Background) -> Result<SstMeta> {
        let end = v1::IngestRequest { finish: true, record_count: self.records, ..Default::default() };
        self.send(background, end).await?;
        let answers = self.copies.drain(..).map(|Copy { node, answer, .. }| {
            (node, async move { answer.await.unwrap_or_else(|e| Err(Error::internal(e.to_string()))) })
        });
        let done = enough(answers, self.required, || LAGGARD).await;
        done.failed().for_each(|server| background.failed(server));
        self.errors.extend(done.errors.iter().map(|(node, e)| format!("server {node}: {e}")));
        let mut written = done.by;
        self.check(written.len())?;
        let first = written.swap_remove(0);
        if written.iter().any(|meta| *meta != first) {
            return Err(Error::corrupt(format!(
                "replicas of {} differ: the servers wrote different bytes",
                self.id
            )));
        }
        Ok(SstMeta { replicas: self.replicas.clone(), ..first })
    }
}

/// Why a server takes no more.
async fn why(answer: JoinHandle<Result<SstMeta>>) -> String {
    match answer.await {
        Ok(Err(e)) => e.to_string(),
        Ok(Ok(_)) => "it has ended the table".into(),
        Err(e) => e.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use prometheus_client::registry::Registry;
    use sextant_common::ids::{LogPosition, TableId};
    use sextant_environment::Env;
    use sextant_environment::config::ClusterConfig;

    use super::*;
    use crate::config::Tuning;
    use crate::metrics::Metrics;
    use crate::replica::ReplicaState;
    use crate::upstream::SstServers;

    #[tokio::test]
    async fn the_servers_of_an_open_table_hear_that_it_goes_on() {
        let env = Env::real();
        let (id, lease) = ("test".into(), Default::default());
        let cluster = ClusterConfig { id, partitions: 1, memtable: Vec::new(), sstable: Vec::new(), lease };
        let background = Background {
            runtime: tokio::runtime::Handle::current(),
            shared: ReplicaState::for_tests(&env),
            servers: Arc::new(SstServers::connect(&env, &cluster, NodeId(1))),
            events: mpsc::unbounded_channel().0,
            tuning: Tuning::default(),
            attempts: Arc::default(),
            orders: Arc::default(),
            metrics: Arc::new(Metrics::register(&mut Registry::default())),
        };
        let job = LoadJob {
            count: 1,
            term: 1,
            epoch: Default::default(),
            table: TableId(1),
            name: "t".into(),
            options: TableOptions::default(),
            plan: LogPosition::default(),
            lineage: 1,
            first: Generation(1),
            seq: 1,
        };
        let mut arriving = Arriving::new(&background, job);
        arriving.take(Vec::new()).await.unwrap();
        assert!(arriving.open.is_none(), "nobody waits for anything");
        let (messages, mut waiting) = mpsc::channel(MESSAGES_WAITING);
        let copy = Copy { node: NodeId(1), messages, answer: tokio::spawn(std::future::pending()) };
        arriving.open = Some(Open {
            id: background.new_id(LogPosition::default(), Default::default()),
            copies: vec![copy],
            replicas: vec![NodeId(1)],
            required: 1,
            records: 1,
            bytes: 1,
            errors: Vec::new(),
        });
        arriving.take(Vec::new()).await.unwrap();
        assert_eq!(waiting.try_recv().unwrap(), v1::IngestRequest::default());
    }

    #[test]
    fn a_table_of_small_records_ends_before_its_servers_have_no_room_for_its_hashes() {
        let (target, plain) = (128 << 20, TableOptions::default());
        let with_prefixes = TableOptions { filter_prefix: 4, ..plain.clone() };
        assert_eq!(room(0, 0, target, &plain), 1_000_000);
        assert_eq!(room(target, 1, target, &plain), 0);
        // 16 bytes each: a tenth of the target.
        assert_eq!(room(16_000_000, 1_000_000, target, &plain), 0);
        assert_eq!(room(16_000_000, 999_999, target, &plain), 1);
        assert_eq!(room(8_000_000, 500_000, target, &with_prefixes), 0, "two hashes a record");
        assert_eq!(room(8_000_000, 499_999, target, &with_prefixes), 1);
    }

    #[test]
    fn a_message_of_more_records_than_a_table_takes_is_divided_in_their_order() {
        let record = |key: u8| RecordVersion {
            key: vec![key].into(),
            seq: Seq(1),
            value: None,
            marks: sextant_common::marks::Marks::NONE,
        };
        let keys = |records: &[RecordVersion]| records.iter().map(|r| r.key[0]).collect::<Vec<u8>>();
        let mut records: Vec<RecordVersion> = (0..5).map(record).collect();
        assert_eq!(keys(&take_first(&mut records, 2)), [0, 1]);
        assert_eq!(keys(&take_first(&mut records, u64::MAX)), [2, 3, 4]);
        assert!(records.is_empty());
    }
}
