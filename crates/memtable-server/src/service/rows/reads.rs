//! Reads: from the wire, and back.

use std::collections::{BTreeMap, HashMap};

use prost::Message as _;
use sextant_common::ids::{ManifestVersion, TableId};
use sextant_common::limits;
use sextant_environment::room::Share;
use sextant_proto::convert::manifest_change::news;
use sextant_proto::v1;
use sextant_rules::probe::PausePoint;

use super::{CHANGES_BYTES_MAX, RowsShell};
use crate::partition::view::ReadAnswer;
use crate::reading::{Answered, Lapsed, Registered, Registration, Round};

/// Values that one answer carries: the last one may be as large as a value can be.
const REPLY_BYTES_MAX: usize = 12 * 1024 * 1024;

impl RowsShell {
    /// Answers a batch of reads.
    async fn read_batch(&self, batch: v1::ReadBatch) -> v1::ReadBatchReply {
        self.context.metrics.read_messages.inc();
        self.context.metrics.reads.inc_by(batch.reads.len() as u64);
        let mut reply = v1::ReadBatchReply { batch: batch.batch, ..Default::default() };
        let mut round = Round::default();
        let value_bytes_max = match batch.value_bytes_max {
            0 => usize::MAX,
            max => max as usize,
        };
        let mut partitions = Vec::with_capacity(batch.reads.len());
        let mut bytes = 0;
        for read in batch.reads {
            partitions.push((read.partition, ManifestVersion(read.manifest_version)));
            let mut answer = self.read_one(&read, &mut round);
            if answer.value.len() > value_bytes_max {
                answer = too_large(answer.value.len());
            } else if bytes > REPLY_BYTES_MAX {
                // To be asked again: one message carries only so much. (Who names no limit knows of none.)
                answer = match value_bytes_max {
                    usize::MAX => read_status(v1::ReadStatus::ReadNotReady),
                    _ => too_large(answer.value.len()),
                };
            }
            bytes += answer.value.len();
            reply.replies.push(answer);
        }
        self.context.env.pause_point(PausePoint::MemtablesRead).await;
        let mut lapsed: HashMap<u32, Option<v1::ReadStatus>> = HashMap::new();
        let mut stale: BTreeMap<u32, ManifestVersion> = BTreeMap::new();
        for ((id, searched), answer) in partitions.iter().zip(&mut reply.replies) {
            let Ok(handle) = self.context.partition(*id) else { continue };
            let lapsed = *lapsed.entry(*id).or_insert_with(|| {
                let why = round.lapsed(&handle.shared)?;
                if let Lapsed::NotLeader(leader) = why {
                    reply.leaders.push(leader.into());
                }
                Some(status_of(why))
            });
            if let Some(status) = lapsed {
                *answer = read_status(status);
            } else if answer.status() == v1::ReadStatus::ReadStaleManifest {
                self.context.metrics.stale_reads.inc();
                let oldest = stale.entry(*id).or_insert(*searched);
                *oldest = (*oldest).min(*searched);
            } else if answer.registration != 0 {
                let all = &mut reply.registrations;
                let known = all.iter().position(|r| r.partition == *id);
                answer.registration = known.map_or_else(
                    || {
                        all.extend(round.registration(&handle.shared).map(|r| r.to_wire(*id)));
                        all.len() as u32
                    },
                    |at| at as u32 + 1,
                );
            }
        }
        self.tell_of_manifests(&stale, batch.takes_changes, bytes, &mut reply);
        reply
    }

    /// What is current where reads were stale: once a partition, for all of them. What there is no room for is asked for.
    fn tell_of_manifests(
        &self,
        stale: &BTreeMap<u32, ManifestVersion>,
        takes_changes: bool,
        mut bytes: usize,
        reply: &mut v1::ReadBatchReply,
    ) {
        let mut changes_left = CHANGES_BYTES_MAX;
        for (id, searched) in stale {
            let Ok(handle) = self.context.partition(*id) else { continue };
            let versions = handle.shared.manifest_versions();
            if takes_changes {
                let news = news(&versions, *searched, None, changes_left);
                changes_left = changes_left.saturating_sub(news.encoded_len());
                reply.manifest_news.push(news);
                continue;
            }
            let whole = v1::Manifest::from(versions.newest.as_ref());
            bytes += whole.encoded_len();
            if bytes <= REPLY_BYTES_MAX {
                reply.manifests.push(whole);
            }
        }
    }

    /// The same with the room that its large values take until it has left. (Until then its values are those of the
    /// memtables; it is encoded when the connection asks for it.)
    pub(super) async fn answer(&self, batch: v1::ReadBatch) -> (v1::ReadBatchReply, Option<Share>) {
        let clock = &*self.context.env.clock;
        let began_ns = clock.holder_ns();
        let mut reply = self.read_batch(batch).await;
        let is_large = |r: &v1::ReadReply| r.value.len() > limits::LARGE_BYTES;
        let bytes: usize = reply.replies.iter().filter(|r| is_large(r)).map(|r| r.value.len()).sum();
        let room = match self.room_for_answer(bytes).await {
            Ok(room) => room,
            Err(_) => {
                for reply in reply.replies.iter_mut().filter(|r| is_large(r)) {
                    *reply = too_large(reply.value.len());
                }
                None
            }
        };
        let took_ns = clock.holder_ns().saturating_sub(began_ns);
        self.context.metrics.read_batch_seconds.observe_ns(took_ns);
        (reply, room)
    }

    fn read_one(&self, read: &v1::ReadRequest, round: &mut Round) -> v1::ReadReply {
        let Ok(handle) = self.context.partition(read.partition) else {
            return read_status(v1::ReadStatus::ReadUnknownPartition);
        };
        let searched = ManifestVersion(read.manifest_version);
        let mut reader = round.at(&handle.shared);
        if read.register {
            let registered = reader.read_registered(TableId(read.table), &read.key, searched);
            self.count_registration(&registered);
            // Which one it is, is said when all are read.
            let registration = u32::from(registered.may_be_kept);
            return v1::ReadReply { registration, ..reply(registered.answered) };
        }
        reply(reader.read(TableId(read.table), &read.key, searched))
    }

    fn count_registration(&self, registered: &Registered) {
        let metrics = &self.context.metrics;
        match (&registered.answered.answer, registered.may_be_kept) {
            (_, true) => drop(metrics.registered_reads.inc()),
            (ReadAnswer::Found(_) | ReadAnswer::NoEntry, false) => drop(metrics.registrations_refused.inc()),
            _ => {}
        }
    }
}

impl Registration {
    fn to_wire(self, partition: u32) -> v1::Registration {
        v1::Registration { partition, epoch: Some(self.epoch.into()), serial: self.serial.0 }
    }
}

fn reply(answered: Answered) -> v1::ReadReply {
    match answered.answer {
        ReadAnswer::Found(version) => {
            let status = match version.value {
                Some(_) => v1::ReadStatus::ReadValue,
                None => v1::ReadStatus::ReadTombstone,
            };
            let value = version.value.unwrap_or_default();
            let expires_at = version.marks.word();
            v1::ReadReply { value, seq: version.seq, expires_at, ..read_status(status) }
        }
        ReadAnswer::NoEntry => {
            v1::ReadReply { tick: answered.tick.0, ..read_status(v1::ReadStatus::ReadNoEntry) }
        }
        ReadAnswer::StaleManifest => read_status(v1::ReadStatus::ReadStaleManifest),
        ReadAnswer::UnknownTable => read_status(v1::ReadStatus::ReadUnknownTable),
    }
}

fn read_status(status: v1::ReadStatus) -> v1::ReadReply {
    v1::ReadReply { status: status.into(), ..Default::default() }
}

pub(super) fn status_of(lapsed: Lapsed) -> v1::ReadStatus {
    match lapsed {
        Lapsed::NotReady => v1::ReadStatus::ReadNotReady,
        Lapsed::NotLeader(_) => v1::ReadStatus::ReadNotLeader,
    }
}

fn too_large(bytes: usize) -> v1::ReadReply {
    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    v1::ReadReply { bytes, ..read_status(v1::ReadStatus::ReadTooLarge) }
}
