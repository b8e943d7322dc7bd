//! What is measured over the line, by clients in containers of their own: a client is in the zone of the p-node that it asks.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::Value;
use sextant_common::error::{Error, Result};
use sextant_environment::Env;

use super::Zone;
use super::apart::lead_from;
use super::report::{Reading, Report};
use crate::args::ZonesArgs;
use crate::hosts::clients::{OUT, client};
use crate::hosts::compose::Compose;
use crate::hosts::image;

const BOTH: &str = "pnode-1:7400,pnode-2:7400";
/// Of the records: rewritten after the flush, so that they are in memtables.
const RECENT: &str = "0.05";
/// Operations of each workload that is only to work.
const OPERATIONS: &str = "5000";
/// Those whose reads are compared: reads alone, and with a twentieth of updates.
const COMPARED: [&str; 2] = ["c", "b"];
const REDIS_CLI: &str = "/usr/bin/redis-cli";
const REDIS_IMAGE: &str = "sextant-redis-cli:hosts";

pub struct Measure<'a> {
    pub env: &'a Env,
    pub compose: &'a Compose,
    pub args: &'a ZonesArgs,
    /// Mounted into clients.
    pub out: &'a Path,
}

/// A directory that every user may write to.
pub fn writable(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir)?;
    Ok(std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o777))?)
}

impl Measure<'_> {
    async fn ycsb(&self, zone: Zone, words: &[&str]) -> Result<String> {
        let records = self.args.records.to_string();
        let all = [&["ycsb"], words, &["--quiet", "--records", &records]].concat();
        client(self.compose, zone.clients(), &self.compose.image, self.out, &all).await?.well()
    }

    /// Records in SSTables, and some of them again in memtables.
    pub async fn prepare(&self, report: &mut Report) -> Result<()> {
        let load = self.ycsb(Zone::A, &["load", "--grpc", BOTH]).await?;
        println!("{load}");
        report.said.push(("load".to_owned(), second_line(&load)));
        self.compose.sextant("pnode-1", &["admin", "flush", "--deadline-ms", "120000"]).await?;
        let update = self.ycsb(Zone::A, &["update", "--share", RECENT, "--grpc", BOTH]).await?;
        println!("{update}");
        Ok(())
    }

    /// Each workload from each zone.
    pub async fn workloads(&self, report: &mut Report) -> Result<()> {
        for workload in ["a", "b", "c", "d", "e", "f"] {
            for zone in Zone::ALL {
                let grpc = format!("{}:7400", zone.pnode());
                let words = ["run", "--workload", workload, "--operations", OPERATIONS, "--grpc", &grpc];
                let said = second_line(&self.ycsb(zone, &words).await?);
                println!("workload {workload}, zone {}: {said}", zone.name());
                report.said.push((format!("{workload}, zone {}", zone.name()), said));
            }
        }
        Ok(())
    }

    /// All modes and zones in turn, so that a slow minute of the machine hits all of them.
    pub async fn reads(&self, report: &mut Report) -> Result<()> {
        // New records of the workloads before are recent, too.
        self.compose.sextant("pnode-1", &["admin", "flush", "--deadline-ms", "120000"]).await?;
        self.ycsb(Zone::A, &["update", "--share", RECENT, "--grpc", BOTH]).await?;
        for round in 1..=self.args.rounds {
            // On a starved machine there are elections, too.
            report.moved += lead_from(self.env, self.compose, Zone::A).await?;
            for workload in COMPARED {
                for threads in &self.args.threads {
                    for zone in Zone::ALL {
                        let readings = self.compare(round, workload, *threads, zone).await?;
                        report.readings.extend(readings);
                    }
                }
            }
            println!("round {round} of {} is over", self.args.rounds);
        }
        Ok(())
    }

    async fn compare(
        &self,
        round: u32,
        workload: &'static str,
        threads: u32,
        zone: Zone,
    ) -> Result<Vec<Reading>> {
        let (grpc, metrics) = (format!("{}:7400", zone.pnode()), format!("{}:7480", zone.pnode()));
        let (seed, threads_word) = (round.to_string(), threads.to_string());
        let seconds = self.args.seconds.to_string();
        let file = format!("{workload}-{threads}-{}-{round}.json", zone.name());
        let json = format!("{OUT}/{file}");
        let mut words = vec!["compare", "--workload", workload, "--rounds", "1", "--seed", &seed];
        words.extend(["--threads", &threads_word, "--seconds", &seconds, "--operations", "100000000"]);
        words.extend(["--grpc", &grpc, "--metrics", &metrics, "--json", &json]);
        // Once for each p-node: afterwards it is warm.
        if round > 1 || workload != COMPARED[0] || threads != self.args.threads[0] {
            words.push("--cold");
        }
        self.ycsb(zone, &words).await?;
        let text = std::fs::read_to_string(self.out.join(&file))?;
        let json: Value = serde_json::from_str(&text).map_err(|e| Error::internal(format!("{file}: {e}")))?;
        let runs = json["runs"].as_array().cloned().unwrap_or_default();
        Ok(runs.iter().filter_map(|run| Reading::of(run, workload, threads, zone)).collect())
    }

    /// Redis' own client, in a container of its own, where the machine has it.
    pub async fn redis(&self, report: &mut Report) -> Result<()> {
        let made = image::of_program(REDIS_IMAGE, Path::new(REDIS_CLI), "redis-cli").await;
        if let Err(e) = made {
            println!("SKIP(redis-cli): {}", e.message);
            return Ok(());
        }
        for (zone, words, expected) in [
            (Zone::A, &["set", "zones", "crossed"][..], "OK"),
            (Zone::B, &["get", "zones"], "crossed"),
            (Zone::B, &["set", "zones", "back"], "OK"),
            (Zone::A, &["get", "zones"], "back"),
        ] {
            let tls = match &self.compose.certificates {
                Some(_) => &[
                    "--tls",
                    "--cacert",
                    "/etc/sextant-tls/ca.pem",
                    "--cert",
                    "/etc/sextant-tls/user.pem",
                    "--key",
                    "/etc/sextant-tls/user.key",
                ][..],
                None => &[],
            };
            let all = [&["-h", zone.pnode(), "-p", "6380"], tls, words].concat();
            let said = client(self.compose, zone.clients(), REDIS_IMAGE, self.out, &all).await?.well()?;
            let said = said.trim().to_owned();
            println!("redis-cli {} at {}: {said}", words.join(" "), zone.pnode());
            if said != expected {
                report.wrong.push(format!("redis-cli {}: {said:?}", words.join(" ")));
            }
        }
        Ok(())
    }
}

fn second_line(table: &str) -> String {
    table.lines().nth(1).unwrap_or_default().to_owned()
}
