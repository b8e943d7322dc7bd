//! One operation: prepared before its clock starts, executed and checked while it runs.

use std::sync::Arc;

use bytes::Bytes;

use crate::keys::key;
use crate::measure::Failure;
use crate::record::Layout;
use crate::sequence::Sequence;
use crate::target::Thread;
use crate::workload::Operation;

/// What all threads of a phase share.
#[derive(Clone, Debug)]
pub struct Context {
    pub layout: Layout,
    pub sequence: Arc<Sequence>,
}

/// Keys and values are made when the request is: their making is not the target's time.
#[derive(Debug)]
pub enum Request {
    Read {
        number: u64,
        key: Bytes,
    },
    /// Rewrites the whole record without reading it.
    Update {
        key: Bytes,
        value: Bytes,
    },
    /// `blind`: overwrite what may be there.
    Insert {
        number: u64,
        key: Bytes,
        value: Bytes,
        blind: bool,
    },
    Scan {
        number: u64,
        key: Bytes,
        count: u32,
    },
    /// Reads the record, changes one field, writes it back: not atomic, as in YCSB.
    ReadModifyWrite {
        number: u64,
        key: Bytes,
    },
}

impl Request {
    pub fn read(number: u64) -> Self {
        Request::Read { number, key: key(number) }
    }

    pub fn operation(&self) -> Operation {
        match self {
            Request::Read { .. } => Operation::Read,
            Request::Update { .. } => Operation::Update,
            Request::Insert { .. } => Operation::Insert,
            Request::Scan { .. } => Operation::Scan,
            Request::ReadModifyWrite { .. } => Operation::ReadModifyWrite,
        }
    }

    pub async fn execute<T: Thread>(
        self,
        thread: &mut T,
        context: &Context,
        rng: &mut fastrand::Rng,
    ) -> Result<(), Failure> {
        match self {
            Request::Read { number, key } => read(thread, context, number, &key).await.map(drop),
            Request::Update { key, value } => Ok(thread.put(key, value).await?),
            Request::Insert { number, key, value, blind } => {
                let result = if blind {
                    thread.put(key, value).await.map(|()| true)
                } else {
                    thread.insert(key, value).await
                };
                context.sequence.settle(number, result.is_ok());
                if result? { Ok(()) } else { Err(Failure::Exists) }
            }
            Request::Scan { number, key, count } => {
                let records = thread.scan(key.clone(), count).await?;
                check_scan(context, number, &key, count, &records)
            }
            Request::ReadModifyWrite { number, key } => {
                let Some(value) = read(thread, context, number, &key).await? else { return Ok(()) };
                let value = context.layout.modify(&key, &value, rng);
                Ok(thread.put(key, value).await?)
            }
        }
    }
}

/// `None` only if the record may be missing because its insert failed.
async fn read<T: Thread>(
    thread: &mut T,
    context: &Context,
    number: u64,
    key: &Bytes,
) -> Result<Option<Bytes>, Failure> {
    match thread.read(key.clone()).await? {
        Some(value) => {
            context.layout.verify(key, &value)?;
            Ok(Some(value))
        }
        None if context.sequence.may_be_missing(number) => Ok(None),
        None => Err(Failure::Missing),
    }
}

fn check_scan(
    context: &Context,
    number: u64,
    start: &Bytes,
    count: u32,
    records: &[(Bytes, Bytes)],
) -> Result<(), Failure> {
    for (key, value) in records {
        context.layout.verify(key, value)?;
    }
    let ordered = records.windows(2).all(|pair| pair[0].0 < pair[1].0);
    let bounded = records.len() <= count as usize && records.iter().all(|(key, _)| key >= start);
    let complete = records.iter().any(|(key, _)| key == start) || context.sequence.may_be_missing(number);
    if ordered && bounded && complete { Ok(()) } else { Err(Failure::BadScan) }
}
