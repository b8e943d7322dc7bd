//! The same random commands against redis-server and against a Sextant cluster: every reply has to be the same, byte for byte.
//!
//! Owns: starting both ([`servers`]), the commands ([`commands`]), reading replies as they come ([`wire`]), and the comparison with what
//! may differ: times to live by what the commands took, pages of scans by their order. One client: what several may see of each other is
//! the linearizability checker's.

mod commands;
mod servers;
mod several;
mod suite;
mod wire;

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::Parser;
use sextant_environment::Env;

use crate::commands::{Compared, Generator, Said};
use crate::servers::Server;
use crate::wire::{Connection, Reply};

/// Compares Sextant's replies with those of redis-server, which is installed if it may be.
#[derive(Debug, Parser)]
#[command(name = "conformance", max_term_width = 120)]
struct Args {
    /// Commands to each
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    commands: usize,
    /// Of the random numbers [default: another one each time]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Without a redis-server, or with one of another version than 7.0: end well, and say so
    #[arg(long)]
    optional: bool,
    /// Not the replies, but the speed: redis-benchmark's whole default suite, the servers taking turns
    #[arg(long)]
    suite: bool,
    /// Of the suite: requests of each test
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    requests: u32,
    /// Of the suite: rounds, of which the medians are taken
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,
    /// Of the suite: a file for the table
    #[arg(long, value_name = "PATH")]
    write: Option<std::path::PathBuf>,
    /// The program `sextant`
    #[arg(long, value_name = "PATH", default_value = "target/release/sextant")]
    sextant: std::path::PathBuf,
}

/// Differences that are shown.
const SHOWN: usize = 20;
/// Commands that are sent before replies are read.
const PIPELINE: usize = 20;
/// What a cluster says that cannot serve at the moment. (What it has made of the command may be unknown then, and there is nothing to
/// compare any more.)
const REFUSALS: [&str; 3] = ["-TRYAGAIN", "-CLUSTERDOWN", "-OUTCOMEUNKNOWN"];
/// How far times to live may be apart, in milliseconds: commands take time, and two machines' worth of processes share one.
const LIFE_MS: i64 = 10_000;

fn main() -> ExitCode {
    let args = Args::parse();
    match compare(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(Ended::Failed(e)) => {
            eprintln!("conformance: {e}");
            ExitCode::from(2)
        }
        Err(Ended::Refused(e)) => {
            eprintln!("conformance: the cluster refused to serve, which redis-server never does: {e}");
            ExitCode::from(3)
        }
    }
}

/// Why it came to no end.
enum Ended {
    Failed(String),
    Refused(String),
}

impl From<String> for Ended {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

/// Whether there was no difference.
fn compare(args: &Args) -> Result<bool, Ended> {
    let env = Env::real();
    let seed = args.seed.unwrap_or_else(|| env.rng.next_u64() % 1_000_000_000);
    if let Err(why) = servers::has_redis() {
        if args.optional {
            println!("conformance: SKIPPED: {why}");
            return Ok(true);
        }
        return Err(Ended::Failed(why));
    }
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    if args.suite {
        suite::run(args, dir.path())?;
        return Ok(true);
    }
    let redis = servers::redis(dir.path(), &[])?;
    let sextant = servers::sextant(&args.sextant, dir.path())?;
    println!(
        "conformance: seed {seed}, {} commands each; {} and {}",
        args.commands, redis.version, sextant.version
    );
    let mut tally = Tally::default();
    for protocol in [2, 3] {
        run(
            &env,
            &redis,
            &sextant,
            seed.wrapping_mul(10) + protocol,
            args.commands / 2,
            protocol,
            &mut tally,
        )?;
    }
    Ok(tally.report())
}

#[derive(Default)]
struct Tally {
    /// By command: how often it was sent, and how often answered otherwise.
    commands: BTreeMap<String, (usize, usize)>,
    errors: usize,
    shown: usize,
}

impl Tally {
    fn note(&mut self, together: &[Said], said: &Said, ours: &Reply, theirs: &Reply) {
        let entry = self.commands.entry(said.name()).or_default();
        entry.0 += 1;
        self.errors += usize::from(theirs.is_error());
        if said.is_same(ours, theirs, LIFE_MS) {
            return;
        }
        entry.1 += 1;
        if self.shown < SHOWN {
            self.shown += 1;
            let before: Vec<String> = together.iter().map(ToString::to_string).collect();
            println!("  {said}   in: {}\n    redis:   {theirs}\n    sextant: {ours}", before.join("; "));
        }
    }

    fn report(&self) -> bool {
        let sum = |of: fn(&(usize, usize)) -> usize| self.commands.values().map(of).sum::<usize>();
        let (sent, different) = (sum(|n| n.0), sum(|n| n.1));
        let counts: Vec<String> = self.commands.iter().map(|(name, n)| format!("{name} {}", n.0)).collect();
        println!("conformance: {} commands: {}", counts.len(), counts.join(", "));
        println!("conformance: {sent} replies, {} of them errors, {different} different", self.errors);
        for (name, (sent, different)) in self.commands.iter().filter(|(_, n)| n.1 > 0) {
            println!("  {name}: {different} of {sent}");
        }
        different == 0
    }
}

fn run(
    env: &Env,
    redis: &Server,
    sextant: &Server,
    seed: u64,
    commands: usize,
    protocol: u64,
    tally: &mut Tally,
) -> Result<(), Ended> {
    let (mut theirs, mut ours) = (Connection::open(&redis.address)?, Connection::open(&sextant.address)?);
    // Its answer names the server.
    for connection in [&mut theirs, &mut ours] {
        connection.send(&[vec![b"HELLO".to_vec(), protocol.to_string().into_bytes()]])?;
        connection.read()?;
        for key in Generator::keys() {
            connection.send(&[vec![b"DEL".to_vec(), key]])?;
            connection.read()?;
        }
    }
    let mut generator = Generator::new(seed, env.clock.wall_guess_ns() / 1_000_000);
    let mut left = commands;
    while left > 0 {
        let batch: Vec<Said> = generator.batch(PIPELINE.min(left));
        left -= batch.len().min(left);
        // A pipeline whose commands may take effect side by side is no comparison: only what belongs together is sent together.
        for together in batch.chunk_by(|a, b| a.goes_on && !b.begins) {
            let words: Vec<Vec<Vec<u8>>> = together.iter().map(|said| said.words.clone()).collect();
            theirs.send(&words)?;
            ours.send(&words)?;
            for said in together {
                let (theirs, ours) = (theirs.read()?, ours.read()?);
                check_served(said, &ours)?;
                tally.note(together, said, &ours, &theirs);
            }
        }
        if let Some(Compared::Walk) = batch.last().map(|said| said.compared) {
            walk(&mut theirs, &mut ours, &mut generator, tally)?;
        }
    }
    Ok(())
}

/// Whether the cluster has served at all.
fn check_served(said: &Said, ours: &Reply) -> Result<(), Ended> {
    match ours {
        Reply::Line(line) if REFUSALS.iter().any(|refusal| line.starts_with(refusal)) => {
            Err(Ended::Refused(format!("{said}: {line}")))
        }
        _ => Ok(()),
    }
}

/// A whole scan of each.
fn walk(
    theirs: &mut Connection,
    ours: &mut Connection,
    generator: &mut Generator,
    tally: &mut Tally,
) -> Result<(), Ended> {
    let options = generator.scan_options();
    let all = |connection: &mut Connection| -> Result<Reply, String> {
        let (mut cursor, mut found) = (b"0".to_vec(), Vec::new());
        loop {
            let words = [vec![b"SCAN".to_vec(), cursor.clone()], options.clone()].concat();
            connection.send(&[words])?;
            let (next, keys) = match connection.read()? {
                Reply::Array(parts) => match &parts[..] {
                    [Reply::Bulk(next), Reply::Array(keys)] => (next.clone(), keys.clone()),
                    _ => return Err("a scan is answered with something else".into()),
                },
                other => return Ok(other),
            };
            found.extend(keys);
            if next == b"0" {
                found.sort();
                return Ok(Reply::Array(found));
            }
            cursor = next;
        }
    };
    let (mut found_theirs, found_ours) = (all(theirs)?, all(ours)?);
    let said = Said::whole_scan(&options);
    check_served(&said, &found_ours)?;
    // Redis may tell of a key twice, while it makes its table larger or smaller. Sextant does not.
    if let Reply::Array(keys) = &mut found_theirs {
        keys.dedup();
    }
    tally.note(&[], &said, &found_ours, &found_theirs);
    Ok(())
}
