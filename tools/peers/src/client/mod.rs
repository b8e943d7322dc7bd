//! Closed-loop clients. Each sends so many operations at once, waits for all their answers, and sends the next.
//!
//! Owns: what is sent when, whether the answers are right, how long they took. Does not own: what is asked for
//! ([`crate::load`]).
//!
//! All clients share the thread of this program, whoever is driven: RESP on a socket of each client's own, written once and
//! read until all replies are there; etcd over gRPC on connections that clients share, with as many calls under way.
//! An operation takes from the moment its batch is sent until the whole batch is answered.

pub mod etcd;
mod resp;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use futures::future::try_join_all;
use hdrhistogram::Histogram;
use serde::Serialize;
use sextant_common::error::{Error, Result};
use sextant_environment::Env;
use tokio::task::LocalSet;

use crate::load::{Operation, Source, VALUE_BYTES};
use crate::process::{Whose, cpu_us, own_cpu_us};
use crate::servers::{Addresses, Running};

/// Beyond what it was to take, after which a run is given up.
const LATE: Duration = Duration::from_secs(30);
/// Bringing records in has no time of its own.
const BULK_WITHIN: Duration = Duration::from_secs(600);
const BULK_CLIENTS: usize = 64;
const BULK_PIPELINE: usize = 16;

/// What an operation was answered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Written,
    /// So many bytes; `None`: there is no such record.
    Value(Option<usize>),
    Refused(String),
}

/// One client. An error is the connection's end.
trait Client {
    async fn batch(&mut self, operations: &[Operation], answers: &mut Vec<Answer>) -> Result<()>;
}

/// Where clients go, and how they connect.
#[derive(Clone, Copy, Debug)]
pub struct Reach {
    pub spread: bool,
    /// For each member that clients go to.
    pub etcd_connections: usize,
}

/// What came out of one run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Measured {
    pub per_second: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    /// CPU time an operation, of all processes of the server.
    pub server_us: f64,
    pub client_us: f64,
    /// Refusals and wrong answers, by what they said; they count in nothing else.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub errors: BTreeMap<String, u64>,
}

struct Tally {
    latency_ns: Histogram<u64>,
    answered: u64,
    errors: BTreeMap<String, u64>,
}

impl Tally {
    fn new() -> Self {
        // The digits are a constant that the library accepts.
        let latency_ns = Histogram::new(3).expect("0 to 5 digits");
        Self { latency_ns, answered: 0, errors: BTreeMap::new() }
    }

    fn take(&mut self, operations: &[Operation], answers: &[Answer], took_ns: u64) {
        for (operation, answer) in operations.iter().zip(answers) {
            match wrong(operation, answer) {
                None => {
                    self.answered += 1;
                    // An auto-resizing histogram takes any value.
                    let _ = self.latency_ns.record(took_ns.max(1));
                }
                Some(what) => *self.errors.entry(what).or_default() += 1,
            }
        }
    }
}

/// What is wrong with an answer.
fn wrong(operation: &Operation, answer: &Answer) -> Option<String> {
    let what = match (operation, answer) {
        (_, Answer::Refused(why)) => why,
        (Operation::Set { .. }, Answer::Written) => return None,
        (Operation::Get { exists, .. }, Answer::Value(found)) => match (exists, found) {
            (true, Some(VALUE_BYTES)) | (false, None) => return None,
            (true, None) => "a record is missing",
            (true, Some(_)) => "a value has another length",
            (false, Some(_)) => "a record is there that should not be",
        },
        _ => "an answer to something else",
    };
    Some(what.to_owned())
}

/// The clients of one server.
pub struct Driver<'a> {
    pub env: &'a Env,
    pub running: &'a Running,
    pub reach: Reach,
}

impl Driver<'_> {
    /// Drives the server with a load for so many seconds.
    pub async fn drive(&self, sources: Vec<Source>, pipeline: usize, seconds: f64) -> Result<Measured> {
        let sources = sources.into_iter().map(|mut source| std::iter::from_fn(move || Some(source.next())));
        let outcome = self.run(sources, pipeline, Some(Duration::from_secs_f64(seconds))).await?;
        let tally = outcome.tally;
        if tally.answered == 0 && tally.errors.is_empty() {
            return Err(Error::unavailable("nothing was answered"));
        }
        let answered = tally.answered.max(1) as f64;
        let us = |quantile| tally.latency_ns.value_at_quantile(quantile) as f64 / 1e3;
        Ok(Measured {
            per_second: tally.answered as f64 * 1e9 / outcome.took_ns.max(1) as f64,
            p50_us: us(0.5),
            p99_us: us(0.99),
            server_us: outcome.server_us as f64 / answered,
            client_us: outcome.client_us as f64 / answered,
            errors: tally.errors,
        })
    }

    /// Has the server do all of these once; fails if an answer is wrong.
    pub async fn all(&self, operations: impl Iterator<Item = Operation> + 'static) -> Result<()> {
        let shared = Rc::new(RefCell::new(operations));
        let sources = (0..BULK_CLIENTS).map(|_| {
            let shared = shared.clone();
            std::iter::from_fn(move || shared.borrow_mut().next())
        });
        let outcome = self.run(sources, BULK_PIPELINE, None).await?;
        match outcome.tally.errors.iter().next() {
            None => Ok(()),
            Some((what, count)) => Err(Error::unavailable(format!("{what} ({count} times)"))),
        }
    }

    /// A client for each source, until all sources have ended or the time is over.
    async fn run<I>(&self, sources: I, pipeline: usize, limit: Option<Duration>) -> Result<Outcome>
    where
        I: ExactSizeIterator<Item: Iterator<Item = Operation> + 'static>,
    {
        let addresses = self.running.addresses(self.reach.spread);
        match self.running.addresses {
            Addresses::Resp(_) => {
                let clients =
                    (0..sources.len()).map(|i| resp::Client::connect(&addresses[i % addresses.len()]));
                let clients = try_join_all(clients).await?;
                self.timed(clients.into_iter().zip(sources), pipeline, limit).await
            }
            Addresses::Etcd(_) => {
                let connections = sources.len().min(self.reach.etcd_connections * addresses.len());
                let connect = |i: usize| etcd::Client::connect(&addresses[i % addresses.len()]);
                let connections = try_join_all((0..connections).map(connect)).await?;
                let clients = connections.into_iter().cycle();
                self.timed(clients.zip(sources), pipeline, limit).await
            }
        }
    }

    async fn timed<C: Client + 'static, S: Iterator<Item = Operation> + 'static>(
        &self,
        clients: impl Iterator<Item = (C, S)>,
        pipeline: usize,
        limit: Option<Duration>,
    ) -> Result<Outcome> {
        let tally = Rc::new(RefCell::new(Tally::new()));
        let (server_before, client_before) = (cpu_us(&self.running.pids), own_cpu_us(Whose::Own));
        let started_ns = self.env.clock.holder_ns();
        let end_ns = limit.map(|limit| started_ns + limit.as_nanos() as u64);
        let local = LocalSet::new();
        let tasks: Vec<_> = clients
            .map(|(client, source)| {
                let (env, tally) = (self.env.clone(), tally.clone());
                local.spawn_local(act(env, client, source, pipeline, end_ns, tally))
            })
            .collect();
        let done = local.run_until(try_join_all(tasks));
        let within = limit.map_or(BULK_WITHIN, |limit| limit + LATE);
        let ended = tokio::time::timeout(within, done)
            .await
            .map_err(|_| Error::unavailable(format!("not done within {within:?}")))?;
        ended
            .map_err(|e| Error::internal(format!("a client died: {e}")))?
            .into_iter()
            .collect::<Result<()>>()?;
        let took_ns = self.env.clock.holder_ns() - started_ns;
        let server_us = cpu_us(&self.running.pids).saturating_sub(server_before);
        let client_us = own_cpu_us(Whose::Own) - client_before;
        Ok(Outcome { tally: tally.replace(Tally::new()), took_ns, server_us, client_us })
    }
}

struct Outcome {
    tally: Tally,
    took_ns: u64,
    server_us: u64,
    client_us: u64,
}

/// One client, until its source or the time ends. What was sent is waited for.
async fn act(
    env: Env,
    mut client: impl Client,
    mut source: impl Iterator<Item = Operation>,
    pipeline: usize,
    end_ns: Option<u64>,
    tally: Rc<RefCell<Tally>>,
) -> Result<()> {
    let (mut operations, mut answers) = (Vec::with_capacity(pipeline), Vec::with_capacity(pipeline));
    loop {
        operations.clear();
        operations.extend(source.by_ref().take(pipeline));
        if operations.is_empty() {
            return Ok(());
        }
        let sent_ns = env.clock.holder_ns();
        if end_ns.is_some_and(|end| sent_ns >= end) {
            return Ok(());
        }
        answers.clear();
        client.batch(&operations, &mut answers).await?;
        tally.borrow_mut().take(&operations, &answers, env.clock.holder_ns().saturating_sub(sent_ns));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_right_answers_count() {
        let mut tally = Tally::new();
        let get = |exists| Operation::Get { number: 1, exists };
        let operations = [get(true), get(true), get(false), get(false), Operation::Set { number: 1 }];
        let right = [
            Answer::Value(Some(VALUE_BYTES)),
            Answer::Value(None),
            Answer::Value(None),
            Answer::Value(Some(1)),
            Answer::Refused("TRYAGAIN".to_owned()),
        ];
        tally.take(&operations, &right, 5_000);
        assert_eq!((tally.answered, tally.latency_ns.len(), tally.errors.len()), (2, 2, 3));
        assert_eq!(tally.errors["TRYAGAIN"], 1);
    }
}
