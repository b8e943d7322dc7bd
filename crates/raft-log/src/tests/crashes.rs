//! Random histories with crashes, against a model.
//!
//! The model is the list of all records in the order in which they were queued. After a crash the log must be what some
//! first part of the list adds up to, and that part must contain everything that was acknowledged.

use std::collections::BTreeMap;

use futures::FutureExt;
use openraft::alias::OneshotReceiverOf;
use openraft::storage::RaftLogStorage;
use openraft::type_config::TypeConfigExt;
use proptest::prelude::*;
use sextant_environment::vfs::IoKind;
use sextant_simulated::{CrashMode, Fault};

use crate::{Entry, IoFlushed, LogId, PartitionLog, RaftLog, TypeConfig, Vote, log_id};

use super::support::{Contents, Server, marked, try_contents};

#[derive(Clone, Debug)]
pub(super) enum Step {
    Append {
        partition: usize,
        count: usize,
        length: usize,
    },
    /// Removes about this share (in 1/8) of the entries at the end.
    Truncate {
        partition: usize,
        share: u64,
    },
    /// Purges about this share of the entries.
    Purge {
        partition: usize,
        share: u64,
    },
    /// A purge beyond the end, as after a snapshot was installed.
    PurgeBeyond {
        partition: usize,
    },
    Vote {
        partition: usize,
    },
    Committed {
        partition: usize,
    },
    /// Waits until everything is durable.
    Settle,
    /// Lets the devices go on for so many milliseconds of paused time.
    Pause {
        ms: u64,
    },
    Crash,
    /// The process dies, the kernel lives.
    Kill,
    /// Power fails at some coming operation; what follows fails too, until the crash.
    CutPower {
        operation: u64,
    },
    /// An fsync fails, and with it the process.
    FailSync,
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let partition = 0..3usize;
    let step = prop_oneof![
        12 => (partition.clone(), 1..5usize, 0..2500usize)
            .prop_map(|(partition, count, length)| Step::Append { partition, count, length }),
        2 => (partition.clone(), 0..8u64).prop_map(|(partition, share)| Step::Truncate { partition, share }),
        3 => (partition.clone(), 4..=8u64).prop_map(|(partition, share)| Step::Purge { partition, share }),
        1 => partition.clone().prop_map(|partition| Step::PurgeBeyond { partition }),
        1 => partition.clone().prop_map(|partition| Step::Vote { partition }),
        1 => partition.prop_map(|partition| Step::Committed { partition }),
        3 => Just(Step::Settle),
        2 => Just(Step::Crash),
        1 => Just(Step::Kill),
        2 => (1..12u64).prop_map(|operation| Step::CutPower { operation }),
        1 => Just(Step::FailSync),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..80)
}

#[derive(Clone, Debug)]
enum Record {
    Entry(Entry),
    Truncate(Option<LogId>),
    Purge(LogId),
    Vote(Vote),
}

impl Contents {
    fn apply(&mut self, record: &Record) {
        match record {
            Record::Entry(entry) => self.entries.push(entry.clone()),
            Record::Truncate(after) => {
                let end = after.map_or(0, |id| id.index + 1);
                self.entries.retain(|entry| entry.log_id.index < end);
            }
            Record::Purge(upto) => {
                self.purged = Some(*upto);
                self.entries.retain(|entry| entry.log_id.index > upto.index);
            }
            Record::Vote(vote) => self.vote = Some(*vote),
        }
    }

    fn last(&self) -> Option<LogId> {
        self.entries.last().map(|entry| entry.log_id).or(self.purged)
    }
}

type Model = [Contents; 3];

pub(super) struct Run {
    pub(super) server: Server,
    log: Option<RaftLog>,
    /// What the log was when it was opened.
    base: Model,
    /// What was queued since, and how many of these records are known to be durable.
    records: Vec<(usize, Record)>,
    acked: usize,
    /// Appends that are not known to be durable: how many records there were after each.
    waiting: Vec<(usize, OneshotReceiverOf<TypeConfig, std::io::Result<()>>)>,
    now: Model,
    committed: BTreeMap<usize, Vec<LogId>>,
    term: u64,
}

impl Run {
    async fn new(seed: u64, devices: usize, mode: CrashMode) -> Self {
        Self::on(Server::with_devices(seed, devices), mode).await
    }

    pub(super) async fn on(mut server: Server, mode: CrashMode) -> Self {
        server.config.segment_bytes = 16 << 10;
        server.vfs.set_crash_mode(mode);
        let log = Some(server.open().await.unwrap());
        Self {
            server,
            log,
            base: Model::default(),
            records: Vec::new(),
            acked: 0,
            waiting: Vec::new(),
            now: Model::default(),
            committed: BTreeMap::new(),
            term: 1,
        }
    }

    fn partition(&self, partition: usize) -> PartitionLog {
        self.log.as_ref().unwrap().partition(self.server.partitions[partition])
    }

    fn queued(&mut self, partition: usize, record: Record) {
        self.now[partition].apply(&record);
        self.records.push((partition, record));
    }

    pub(super) async fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Append { partition, count, length } => {
                let first = self.now[partition].last().map_or(1, |id| id.index + 1);
                let entry = |i| marked(partition as u32, self.term, i, length);
                let entries: Vec<Entry> = (first..first + count as u64).map(entry).collect();
                let (done, waiting) = TypeConfig::oneshot();
                let appended =
                    self.partition(partition).append(entries.clone(), IoFlushed::signal(done)).await;
                if appended.is_ok() {
                    entries.into_iter().for_each(|entry| self.queued(partition, Record::Entry(entry)));
                    self.waiting.push((self.records.len(), waiting));
                }
            }
            Step::Truncate { partition, share } => {
                let contents = &self.now[partition];
                let keep = contents.entries.len() as u64 * share / 8;
                let after = match keep.checked_sub(1) {
                    Some(last) => Some(contents.entries[last as usize].log_id),
                    None => contents.purged,
                };
                if self.partition(partition).truncate_after(after).await.is_ok() {
                    self.term += 1;
                    self.queued(partition, Record::Truncate(after));
                }
            }
            Step::Purge { partition, share } => {
                let entries = &self.now[partition].entries;
                if let Some(last) = (entries.len() as u64 * share / 8).checked_sub(1) {
                    let upto = entries[last as usize].log_id;
                    if self.partition(partition).purge(upto).await.is_ok() {
                        self.queued(partition, Record::Purge(upto));
                    }
                }
            }
            Step::PurgeBeyond { partition } => {
                let last = self.now[partition].last().map_or(0, |id| id.index);
                let upto = log_id(self.term, last + 5);
                if self.partition(partition).purge(upto).await.is_ok() {
                    self.queued(partition, Record::Purge(upto));
                }
            }
            Step::Vote { partition } => {
                self.term += 1;
                let vote = Vote::new(self.term, partition as u64);
                self.queued(partition, Record::Vote(vote));
                if self.partition(partition).save_vote(&vote).await.is_ok() {
                    self.acked = self.records.len();
                }
            }
            Step::Committed { partition } => {
                let last = self.now[partition].last();
                self.committed.entry(partition).or_default().extend(last);
                self.partition(partition).save_committed(last).await.unwrap();
            }
            Step::Settle => {
                for (count, waiting) in std::mem::take(&mut self.waiting) {
                    if matches!(waiting.await, Ok(Ok(()))) {
                        prop_assert!(count > self.acked || count <= self.records.len());
                        self.acked = self.acked.max(count);
                    }
                }
            }
            Step::Pause { ms } => tokio::time::sleep(std::time::Duration::from_millis(ms)).await,
            Step::Crash => {
                self.collect_acks();
                self.server.vfs.crash();
                self.reopen().await?;
            }
            Step::Kill => {
                self.collect_acks();
                self.server.vfs.kill();
                self.reopen().await?;
            }
            Step::CutPower { operation } => {
                self.server.vfs.cut_power_at(operation);
            }
            Step::FailSync => {
                self.server.vfs.fail_next(IoKind::Sync, 1, Fault::Io, |path| path.extension().is_some());
            }
            Step::Reopen => {
                self.log.as_ref().unwrap().shutdown().await;
                self.collect_acks();
                if self.server.vfs.has_power() && !self.log.as_ref().unwrap().stats().failed {
                    prop_assert!(self.waiting.is_empty(), "shutdown answers everybody");
                    self.acked = self.records.len();
                } else {
                    self.server.vfs.crash();
                }
                self.reopen().await?;
            }
        }
        Ok(())
    }

    async fn read_all(&self, log: &RaftLog) -> std::io::Result<Model> {
        let mut found = Model::default();
        for (partition, contents) in found.iter_mut().enumerate() {
            let mut handle = log.partition(self.server.partitions[partition]);
            *contents = try_contents(&handle).await?;
            let committed = handle.read_committed().await?;
            let ever = self.committed.get(&partition);
            assert!(committed.is_none_or(|id| ever.is_some_and(|ever| ever.contains(&id))));
        }
        Ok(found)
    }

    fn collect_acks(&mut self) {
        let acked = &mut self.acked;
        self.waiting.retain_mut(|(count, waiting)| match waiting.now_or_never() {
            Some(Ok(Ok(()))) => {
                *acked = (*count).max(*acked);
                false
            }
            Some(_) => false,
            None => true,
        });
    }

    /// Opens what the disk has now and compares.
    async fn reopen(&mut self) -> Result<(), TestCaseError> {
        if let Some(log) = self.log.take() {
            log.shutdown().await;
        }
        self.waiting.clear();
        self.server.vfs.clear_faults();
        if !self.server.vfs.has_power() {
            self.server.vfs.crash();
        }
        let (log, found) = loop {
            let opened = self.server.open().await;
            let failed = match opened {
                Ok(log) => match self.read_all(&log).await {
                    Ok(found) => break (log, found),
                    Err(e) => {
                        log.shutdown().await;
                        format!("cannot read: {e}")
                    }
                },
                Err(e) => format!("cannot open: {e}"),
            };
            if self.server.vfs.has_power() {
                return Err(TestCaseError::fail(format!("{failed}\n{}", self.server.dump())));
            }
            // Power failed during recovery: once more.
            self.server.vfs.crash();
        };
        // The longest first part that fits is what the log will go on from.
        let mut model = self.base.clone();
        let mut fits = (self.acked == 0 && model == found).then_some(0);
        for (count, (partition, record)) in self.records.iter().enumerate() {
            model[*partition].apply(record);
            if count + 1 >= self.acked && model == found {
                fits = Some(count + 1);
            }
        }
        prop_assert!(
            fits.is_some(),
            "no first part of {} records with at least {} fits:\n{:?}\nqueued {:?}",
            self.records.len(),
            self.acked,
            found,
            self.records
        );
        self.base = found.clone();
        self.now = found;
        self.records.clear();
        self.acked = 0;
        self.log = Some(log);
        Ok(())
    }
}

fn modes() -> impl Strategy<Value = CrashMode> {
    prop_oneof![Just(CrashMode::LoseAll), Just(CrashMode::TearWrites), Just(CrashMode::TearAll)]
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 500, ..ProptestConfig::default() })]

    #[test]
    fn what_was_acknowledged_survives_and_nothing_is_invented(
        seed in any::<u64>(), mode in modes(), devices in 1..3usize, slow in 0..8u8, steps in steps()
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut run = Run::new(seed, devices, mode).await;
            if slow == 0 {
                // Devices overlap more when they take their time.
                let delay = std::time::Duration::from_millis(1);
                run.server.vfs.set_delay(move |kind| (kind == IoKind::Sync).then_some(delay));
            }
            for step in &steps {
                run.step(step).await?;
            }
            run.step(&Step::Crash).await?;
            run.step(&Step::Reopen).await
        })?;
    }
}
