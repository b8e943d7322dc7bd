//! Rounds. Within a round all loads follow each other, and for each load and shape the servers take turns, in another order
//! in each round, so that what else the machine does hits all alike.
//!
//! At the start of a round everything is put where it belongs at rest and read once. What writes comes last.

use std::collections::BTreeMap;
use std::time::Duration;

use sextant_common::error::{Error, Result};
use sextant_environment::Env;

use crate::args::Args;
use crate::benchmark;
use crate::client::{Driver, Measured, Reach};
use crate::install::is_there;
use crate::load::{self, Load, Operation, Shape, Source, VALUE_BYTES};
use crate::machine::Machine;
use crate::process::cpu_us;
use crate::servers::{Kind, Running, Server};
use crate::summary::{About, Options, Program, Report, Rounds, Run, rows};

/// What servers do by themselves after they were loaded is not to hit the first of those that are driven.
const PAUSE: Duration = Duration::from_secs(1);
const AT_REST: Duration = Duration::from_secs(2);

struct Turns<'a> {
    env: &'a Env,
    args: &'a Args,
    servers: &'a mut [Server],
    runs: BTreeMap<Run, Rounds>,
}

pub async fn take(env: &Env, args: &Args, servers: &mut [Server], machine: Machine) -> Result<Report> {
    let started_ns = env.clock.holder_ns();
    let mut turns = Turns { env, args, servers, runs: BTreeMap::new() };
    turns.each("loading", |records| Box::new(load::load_all(records))).await;
    tokio::time::sleep(PAUSE).await;
    let at_rest = turns.at_rest().await;
    for round in 0..args.rounds() {
        turns.round(round).await;
    }
    let Turns { runs, servers, .. } = turns;
    let about = |server: &Server| About {
        server: server.kind,
        version: server.version.clone(),
        promises: server.kind.promises(),
        left_out: server.left_out.clone(),
        at_rest_percent: at_rest.get(&server.kind).copied().unwrap_or(0.0),
    };
    let options = Options {
        quick: args.quick,
        rounds: args.rounds(),
        seconds: args.seconds(),
        records: args.records(),
        value_bytes: VALUE_BYTES,
        spread: args.spread,
        etcd_connections: usize::from(args.etcd_connections),
    };
    let rows = rows(runs);
    if rows.iter().all(|row| row.median.is_none()) {
        return Err(Error::unavailable("nothing could be measured"));
    }
    let took_seconds = (env.clock.holder_ns() - started_ns) / 1_000_000_000;
    Ok(Report { machine, options, servers: servers.iter().map(about).collect(), took_seconds, rows })
}

type Bulk = Box<dyn Iterator<Item = Operation>>;

impl Turns<'_> {
    fn reach(&self) -> Reach {
        Reach { spread: self.args.spread, etcd_connections: usize::from(self.args.etcd_connections) }
    }

    async fn round(&mut self, round: usize) {
        let loads = self.args.loads();
        eprintln!("peers: round {} of {}", round + 1, self.args.rounds());
        for server in &mut *self.servers {
            if let Err(e) = server.settle().await {
                leave_out(server, &format!("settling: {}", e.message)).await;
            }
        }
        self.each("reading all", |records| Box::new(load::read_all(records))).await;
        tokio::time::sleep(PAUSE).await;
        for load in loads {
            if load == Load::Recent {
                self.each("writing", |records| Box::new(load::write_recent(records))).await;
            }
            for shape in self.args.shapes() {
                for i in 0..self.servers.len() {
                    self.one((round + i) % self.servers.len(), round, load, shape).await;
                }
            }
        }
    }

    /// One server, with our clients and then, where it can, with `redis-benchmark`.
    async fn one(&mut self, server: usize, round: usize, load: Load, shape: Shape) {
        let server = &self.servers[server];
        let Some(running) = &server.running else { return };
        let (seconds, records) = (self.args.seconds(), self.args.records());
        let sources =
            (0..shape.clients as u64).map(|client| Source::new(load, records, (round as u64) << 32 | client));
        let driver = Driver { env: self.env, running, reach: self.reach() };
        let measured = driver.drive(sources.collect(), shape.pipeline, seconds).await;
        let rate = measured.as_ref().map_or(0.0, |measured| measured.per_second);
        let run = Run { program: Program::Own, load, shape, server: server.kind };
        let theirs = match benchmark::test_of(load) {
            Some(test) if self.benchmarked(server.kind) && rate > 0.0 => {
                Some(benchmark::drive(running, test, records, shape, rate * seconds).await)
            }
            _ => None,
        };
        self.keep(run, round, measured);
        if let Some(theirs) = theirs {
            self.keep(Run { program: Program::RedisBenchmark, ..run }, round, theirs);
        }
    }

    fn benchmarked(&self, server: Kind) -> bool {
        server != Kind::Etcd && !self.args.no_redis_benchmark && is_there("redis-benchmark")
    }

    fn keep(&mut self, run: Run, round: usize, measured: Result<Measured>) {
        let Run { program, load, shape, server } = run;
        let shown = format!(
            "{}{}, {} x {}, {}",
            if program == Program::RedisBenchmark { "redis-benchmark: " } else { "" },
            load.title(),
            shape.clients,
            shape.pipeline,
            server.name()
        );
        let rounds = self.runs.entry(run).or_default();
        match measured {
            Ok(measured) => {
                eprintln!("peers: {shown}: {:.0} /s", measured.per_second);
                rounds.measured.insert(round, measured);
            }
            Err(e) => {
                eprintln!("peers: {shown}: FAILED: {}", e.message);
                rounds.failed.insert(round, e.message.to_string());
            }
        }
    }

    /// Has every server do the same once. One that does not is left out from here on.
    async fn each(&mut self, what: &str, operations: impl Fn(u64) -> Bulk) {
        let (reach, records, env) = (self.reach(), self.args.records(), self.env);
        for server in &mut *self.servers {
            let Some(running) = &server.running else { continue };
            let started_ns = env.clock.holder_ns();
            let done = Driver { env, running, reach }.all(operations(records)).await;
            let seconds = (env.clock.holder_ns() - started_ns) as f64 / 1e9;
            match done {
                Ok(()) => eprintln!("peers: {what}: {}: {seconds:.1} s", server.name()),
                Err(e) => leave_out(server, &format!("{what}: {}", e.message)).await,
            }
        }
    }

    /// Per cent of a core that each takes while nobody asks.
    async fn at_rest(&self) -> BTreeMap<Kind, f64> {
        let running = || self.servers.iter().filter_map(|s| Some((s.kind, s.running.as_ref()?)));
        let cpu = |running: &Running| cpu_us(&running.pids);
        let before: Vec<_> = running().map(|(_, running)| cpu(running)).collect();
        tokio::time::sleep(AT_REST).await;
        let percent = |us: u64| us as f64 * 100.0 / AT_REST.as_micros() as f64;
        running().zip(before).map(|((kind, now), before)| (kind, percent(cpu(now) - before))).collect()
    }
}

async fn leave_out(server: &mut Server, why: &str) {
    eprintln!("peers: {} is LEFT OUT from here on: {why}", server.name());
    server.left_out = Some(why.to_owned());
    server.stop().await;
}
