//! One server of the cluster: started, watched until it is ready, stopped.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sextant_client::http;
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_environment::Env;

use crate::in_process::{LocalConfig, LocalServer};
use crate::layout::Member;
use crate::options::Placement;
use crate::process::{Child, Keeper, Signal, describe};
use crate::role::Role;

/// How often a server that is starting is asked whether it is ready.
const READY_POLL: Duration = Duration::from_millis(20);
/// How long one such question may take.
const READY_ASK: Duration = Duration::from_secs(2);
/// How long a server process may drain before it is killed.
const DRAIN_MAX: Duration = Duration::from_secs(30);
/// How much of a server's log is shown if it does not start.
const LOG_TAIL_BYTES: usize = 2000;

pub struct Slot {
    pub member: Member,
    pub running: Running,
}

pub enum Running {
    No,
    Here(Box<LocalServer>),
    Process(Child),
}

/// What a server is started with.
pub struct Launcher {
    pub env: Env,
    pub data: PathBuf,
    /// The binary and who keeps its processes; `None`: in this process.
    pub processes: Option<(PathBuf, Keeper)>,
    pub placement: Option<Placement>,
    pub ready_within: Duration,
}

impl Launcher {
    pub fn keeper(&self) -> Option<&Keeper> {
        self.processes.as_ref().map(|(_, keeper)| keeper)
    }

    /// Starts a server; it may not be ready yet.
    pub async fn launch(&self, member: &Member) -> Result<Running> {
        let config = member.config_path(&self.data);
        let Some((binary, keeper)) = &self.processes else {
            return self.launch_here(member, LocalConfig::load(member.role, &config)?).await;
        };
        let config =
            config.to_str().ok_or_else(|| Error::invalid("the data directory's path is not UTF-8"))?;
        let binary =
            binary.to_str().ok_or_else(|| Error::invalid("the server binary's path is not UTF-8"))?;
        let mut words =
            self.placement.as_ref().map_or_else(Vec::new, |p| p.0.wrap(member.role, member.index));
        words.extend([binary, member.role.name(), "--config", config].map(str::to_owned));
        if self.placement.is_some() {
            // On addresses of a network of its own, which only who has placed it there reaches.
            words.push("--insecure".to_owned());
        }
        let args: Vec<&str> = words[1..].iter().map(String::as_str).collect();
        let log = member.log_path(&self.data);
        Ok(Running::Process(keeper.start(Path::new(&words[0]), &args, &log).await?))
    }

    async fn launch_here(&self, member: &Member, mut config: LocalConfig) -> Result<Running> {
        let mut env = self.env.clone();
        if let Some(Placement(place)) = &self.placement {
            env = place.environment(member.role, member.index, env);
            place.configure(member.index, &mut config);
        }
        Ok(Running::Here(Box::new(LocalServer::start(env, config).await?)))
    }

    /// Waits until a server that was launched does its work: a p-node routes, any other answers.
    pub async fn wait_ready(&self, slot: &Slot) -> Result<()> {
        let ready = async {
            match &slot.running {
                Running::No => Err(Error::invalid("it does not run")),
                Running::Here(server) => match &**server {
                    LocalServer::PNode(pnode) => pnode.local().ready(self.ready_within).await,
                    _ => Ok(()),
                },
                Running::Process(child) => self.wait_process_ready(&slot.member, child.clone()).await,
            }
        };
        let result = tokio::time::timeout(self.ready_within, ready).await.unwrap_or_else(|_| {
            let log = slot.member.log_path(&self.data);
            Err(Error::unavailable(format!(
                "not ready after {} s; its log may say why ({})",
                self.ready_within.as_secs(),
                log.display()
            )))
        });
        result.map_err(|e| Error::new(e.kind, format!("{}: {}", slot.member.name(), e.message)))
    }

    async fn wait_process_ready(&self, member: &Member, mut child: Child) -> Result<()> {
        let path = if member.role == Role::PNode { "/health/ready" } else { "/health/live" };
        let answers = async {
            while !http::get(&self.env, &member.http, path, READY_ASK).await.is_ok_and(|a| a.is_ok()) {
                tokio::time::sleep(READY_POLL).await;
            }
        };
        tokio::select! {
            () = answers => Ok(()),
            exit = child.ended() => {
                let log = member.log_path(&self.data);
                Err(Error::new(
                    ErrorKind::Unavailable,
                    format!("{} before it was ready; {} ends with: {}", describe(exit), log.display(), tail(&log)),
                ))
            }
        }
    }
}

impl Slot {
    pub fn pid(&self) -> Option<u32> {
        match &self.running {
            Running::No => None,
            Running::Here(_) => Some(std::process::id()),
            Running::Process(child) => Some(child.pid),
        }
    }
}

impl Running {
    /// Drains it and waits until it has ended.
    pub async fn stop(self, member: &Member, keeper: Option<&Keeper>) -> Result<()> {
        let mut child = match self {
            Running::No => return Ok(()),
            Running::Here(server) => {
                server.shutdown().await;
                return Ok(());
            }
            Running::Process(child) => child,
        };
        let keeper = keeper.ok_or_else(|| Error::internal("a process without a keeper"))?;
        // A paused process would never see the signal.
        keeper.signal(&child, Signal::Continue).await?;
        keeper.signal(&child, Signal::Terminate).await?;
        if tokio::time::timeout(DRAIN_MAX, child.ended()).await.is_err() {
            tracing::warn!("{} did not drain within {DRAIN_MAX:?} and is killed", member.name());
            keeper.signal(&child, Signal::Kill).await?;
            child.ended().await;
        }
        Ok(())
    }
}

/// The end of a log file, on one line.
fn tail(log: &Path) -> String {
    let Ok(text) = std::fs::read(log) else { return "(nothing)".into() };
    let text = &text[text.len().saturating_sub(LOG_TAIL_BYTES)..];
    let text = String::from_utf8_lossy(text);
    let lines: Vec<&str> = text.lines().rev().take(3).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join(" | ")
}
