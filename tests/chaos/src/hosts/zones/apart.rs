//! The cluster over two zones: the line, who leads, and clients in either.

use std::time::Duration;

use sextant_common::error::{Error, Result};
use sextant_environment::Env;

use super::Zone;
use super::line::{self, Line, Qualities};
use super::relay::Relay;
use crate::hosts::SERVICES;
use crate::hosts::compose::Compose;

/// Of p-nodes: HTTP, which answers without asking anybody.
const HTTP_PORT: u16 = 7480;
/// Of p-nodes: where clients ask.
const GRPC_PORT: u16 = 7400;
const LEADERS_WITHIN: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(500);

pub struct Apart {
    pub line: Line,
    /// How long a connection takes from zone A.
    pub round_trips: Vec<(Zone, Duration)>,
}

impl Apart {
    /// Of a healthy cluster; zone A leads.
    pub async fn set(env: &Env, compose: &Compose, qualities: Qualities) -> Result<Self> {
        println!("seed of the line: {}", qualities.seed);
        let line = Line::lay(env, &compose.bridge().await?, qualities).await?;
        for service in SERVICES {
            line.take(compose, service).await?;
        }
        let mut round_trips = Vec::new();
        for zone in Zone::ALL {
            let took = line::round_trip(env, compose, zone.pnode(), HTTP_PORT).await?;
            println!("from this machine to zone {}: {:.2} ms", zone.name(), took.as_secs_f64() * 1e3);
            round_trips.push((zone, took));
        }
        compose.wait_healthy(&SERVICES).await?;
        lead_from(env, compose, Zone::A).await?;
        Ok(Self { line, round_trips })
    }

    /// A way to zone B's p-node past the line, for clients of this machine.
    pub async fn relay(&self, compose: &Compose) -> Result<Relay> {
        let namespace = self.line.stand_in_zone_b(&compose.address_of_harness()).await?;
        Relay::start(&compose.bind(), &namespace, pnode_in_zone_b(compose).await?).await
    }

    /// A container that was started or connected again goes to where it belongs.
    pub async fn settle(&self, compose: &Compose, service: &str, relay: &Relay) -> Result<()> {
        self.line.take(compose, service).await?;
        if service == Zone::B.pnode() {
            relay.lead_to(pnode_in_zone_b(compose).await?);
        }
        Ok(())
    }

    /// Cuts the zones off from each other, waits, and mends it.
    pub async fn part(&self, hold: Duration) -> Result<()> {
        self.line.cut().await?;
        tokio::time::sleep(hold).await;
        self.line.mend().await
    }
}

async fn pnode_in_zone_b(compose: &Compose) -> Result<String> {
    Ok(format!("{}:{GRPC_PORT}", compose.address(Zone::B.pnode()).await?))
}

/// Which memtable server leads which partition, as p-node 1 sees it.
pub async fn leaders(compose: &Compose) -> Result<Vec<(u64, Option<u64>)>> {
    let status = compose.sextant("pnode-1", &["status", "--json"]).await?;
    let status: serde_json::Value =
        serde_json::from_str(&status).map_err(|e| Error::internal(format!("the status: {e}")))?;
    let partitions = status["pnode"]["partitions"].as_array().cloned().unwrap_or_default();
    let leader = |p: &serde_json::Value| Some((p["partition"].as_u64()?, p["leader"].as_u64()));
    Ok(partitions.iter().filter_map(leader).collect())
}

/// Whoever leads in the other zone hands it over. How many partitions that were.
pub async fn lead_from(env: &Env, compose: &Compose, zone: Zone) -> Result<usize> {
    let began_ns = env.clock.holder_ns();
    let mut moved = 0;
    loop {
        let found = leaders(compose).await?;
        let is_there = |leader: Option<u64>| leader.is_some_and(|id| zone.memtables().contains(&id));
        let elsewhere: Vec<u64> =
            found.iter().filter(|(_, leader)| !is_there(*leader)).map(|(p, _)| *p).collect();
        if elsewhere.is_empty() && !found.is_empty() {
            return Ok(moved);
        }
        moved = moved.max(elsewhere.len());
        if env.clock.holder_ns() - began_ns > LEADERS_WITHIN.as_nanos() as u64 {
            let zone = zone.name();
            return Err(Error::unavailable(format!("partitions {elsewhere:?} are not led from zone {zone}")));
        }
        for partition in elsewhere {
            let to = zone.memtables()[partition as usize % zone.memtables().len()].to_string();
            let words = ["admin", "transfer", "--partition", &partition.to_string(), "--to", &to];
            if let Err(e) = compose.sextant("pnode-1", &words).await {
                println!("partition {partition}: {}", e.message);
            }
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}
