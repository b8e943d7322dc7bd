//! The running cluster.

use std::path::{Path, PathBuf};

use futures::future::BoxFuture;
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_environment::Env;
use sextant_environment::config::ClusterConfig;
use sextant_environment::vfs::write_file_atomically;
use sextant_memtable_server::MemtableServer;
use sextant_pnode::{PNode, PNodeServer};
use sextant_sstable_server::SstServer;

use crate::files::{ClusterFile, cluster_file_path, port_of};
use crate::in_process::LocalServer;
use crate::layout::Member;
use crate::options::{DevOptions, SERVERS_MAX, Tuning};
use crate::ports;
use crate::process::{Keeper, Signal, describe};
use crate::ready::{PNodeReady, ReadyLine, ServerReady};
use crate::role::Role;
use crate::slot::{Launcher, Running, Slot};

/// A cluster on this machine. Dropping it kills server processes and lets servers in this process end undrained;
/// [`DevCluster::shutdown`] stops them in order.
pub struct DevCluster {
    options: DevOptions,
    cluster: ClusterConfig,
    /// In the order in which they are started: sstable, memtable, p-nodes.
    servers: Vec<Slot>,
    launcher: Launcher,
    _lock: Box<dyn Send + Sync>,
}

/// A server process that ended by itself, or by somebody else's signal.
#[derive(Clone, Debug)]
pub struct Death {
    /// `memtable-1`.
    pub name: String,
    pub how: String,
    /// What to start it again with, by hand.
    pub config: PathBuf,
    pub log: PathBuf,
}

impl DevCluster {
    /// Starts a cluster, or the one that the data directory holds; returns when every p-node can route to every partition.
    pub fn start(env: Env, mut options: DevOptions) -> BoxFuture<'static, Result<DevCluster>> {
        Box::pin(async move {
            if options.pnodes > SERVERS_MAX {
                return Err(Error::invalid(format!("p-nodes: at most {SERVERS_MAX}")));
            }
            // Servers get absolute paths: their working directory is nobody's business.
            options.data = std::path::absolute(&options.data)?;
            let data = options.data.clone();
            for dir in ["config", "log"] {
                env.vfs.create_dir_all(&data.join(dir))?;
            }
            let lock = env.vfs.lock(&data.join("dev.lock")).map_err(|e| {
                if e.kind() == std::io::ErrorKind::WouldBlock {
                    Error::unavailable(format!("another cluster runs on {}", data.display()))
                } else {
                    Error::from(e)
                }
            })?;
            let mut file = ClusterFile::read_or_create(&env, &options).await?;
            let members = file.members(&env, &options).await?;
            check_ports(&env, &members, &data).await?;
            file.write(&env, &data)?;
            for member in &members {
                let text = member.config(&data, &file.cluster, &options.tuning)?;
                write_file_atomically(&*env.vfs, &member.config_path(&data), text.as_bytes())?;
            }
            let launcher = Launcher {
                processes: options.processes.clone().map(|binary| (binary, Keeper::new(&env))),
                data,
                placement: options.placement.clone(),
                ready_within: options.ready_within,
                env,
            };
            let servers = members.into_iter().map(|member| Slot { member, running: Running::No }).collect();
            let mut cluster = DevCluster { options, cluster: file.cluster, servers, launcher, _lock: lock };
            if let Err(e) = cluster.start_all().await {
                if let Err(stop) = cluster.shutdown().await {
                    tracing::warn!("stopping a cluster that did not start: {stop}");
                }
                return Err(e);
            }
            Ok(cluster)
        })
    }

    async fn start_all(&mut self) -> Result<()> {
        for at in 0..self.servers.len() {
            if let Err(e) = self.launch(at).await {
                let name = self.servers[at].member.name();
                return Err(Error::new(e.kind, format!("{name}: {}", e.message)));
            }
        }
        futures::future::try_join_all(self.servers.iter().map(|slot| self.launcher.wait_ready(slot))).await?;
        self.write_ready_file()
    }

    async fn launch(&mut self, at: usize) -> Result<()> {
        let slot = &mut self.servers[at];
        slot.running = self.launcher.launch(&slot.member).await?;
        Ok(())
    }

    /// What all servers agree on.
    pub fn cluster_config(&self) -> &ClusterConfig {
        &self.cluster
    }

    /// The file that names the cluster to an embedded p-node.
    pub fn cluster_file(&self) -> PathBuf {
        cluster_file_path(&self.options.data)
    }

    pub fn data(&self) -> &Path {
        &self.options.data
    }

    /// How many servers of a role there are.
    pub fn count(&self, role: Role) -> usize {
        self.servers.iter().filter(|s| s.member.role == role).count()
    }

    /// The gRPC address of a server, `host:port`. `index` counts from 0 within the role.
    pub fn addr(&self, role: Role, index: usize) -> Result<&str> {
        Ok(&self.slot(role, index)?.member.addr)
    }

    pub fn http(&self, role: Role, index: usize) -> Result<&str> {
        Ok(&self.slot(role, index)?.member.http)
    }

    /// The RESP address of a p-node.
    pub fn resp(&self, index: usize) -> Result<&str> {
        let slot = self.slot(Role::PNode, index)?;
        slot.member.resp.as_deref().ok_or_else(|| Error::internal("a p-node without RESP"))
    }

    /// gRPC addresses of all p-nodes: for a client.
    pub fn grpc_addrs(&self) -> Vec<String> {
        let pnodes = self.servers.iter().filter(|s| s.member.role == Role::PNode);
        pnodes.map(|s| s.member.addr.clone()).collect()
    }

    /// The process that runs a server (this one, for servers in this process); `None` if it does not run.
    pub fn pid(&self, role: Role, index: usize) -> Result<Option<u32>> {
        Ok(self.slot(role, index)?.pid())
    }

    /// How a server process ended that nobody stopped; `None`: it runs, or was stopped, or is no process.
    pub fn ended(&self, role: Role, index: usize) -> Result<Option<String>> {
        Ok(match &self.slot(role, index)?.running {
            Running::Process(child) => child.has_ended().map(|exit| describe(Some(exit))),
            _ => None,
        })
    }

    /// The file with a server process's standard output and error.
    pub fn log_path(&self, role: Role, index: usize) -> Result<PathBuf> {
        Ok(self.slot(role, index)?.member.log_path(&self.options.data))
    }

    /// A p-node in this process.
    pub fn local_pnode(&self, index: usize) -> Option<&PNode> {
        self.pnode(index).map(PNodeServer::local)
    }

    /// A p-node in this process, if it runs.
    pub fn pnode(&self, index: usize) -> Option<&PNodeServer> {
        match self.here(Role::PNode, index)? {
            LocalServer::PNode(server) => Some(server),
            _ => None,
        }
    }

    /// A memtable server in this process, if it runs.
    pub fn memtable(&self, index: usize) -> Option<&MemtableServer> {
        match self.here(Role::Memtable, index)? {
            LocalServer::Memtable(server) => Some(server),
            _ => None,
        }
    }

    /// An sstable server in this process, if it runs.
    pub fn sstable(&self, index: usize) -> Option<&SstServer> {
        match self.here(Role::Sstable, index)? {
            LocalServer::Sstable(server) => Some(server),
            _ => None,
        }
    }

    fn here(&self, role: Role, index: usize) -> Option<&LocalServer> {
        match &self.slot(role, index).ok()?.running {
            Running::Here(server) => Some(server),
            _ => None,
        }
    }

    pub fn ready_line(&self) -> ReadyLine {
        let tier = |role| {
            let slots = self.servers.iter().filter(move |s| s.member.role == role);
            slots
                .map(|s| ServerReady {
                    id: s.member.id(),
                    addr: s.member.addr.clone(),
                    http: s.member.http.clone(),
                    pid: s.pid().unwrap_or(0),
                })
                .collect()
        };
        let pnodes = self.servers.iter().filter(|s| s.member.role == Role::PNode);
        ReadyLine {
            ready: true,
            pnodes: pnodes
                .map(|s| PNodeReady {
                    id: s.member.id(),
                    grpc: s.member.addr.clone(),
                    admin: s.member.admin.clone().unwrap_or_default(),
                    resp: s.member.resp.clone().unwrap_or_default(),
                    http: s.member.http.clone(),
                    pid: s.pid().unwrap_or(0),
                })
                .collect(),
            memtable: tier(Role::Memtable),
            sstable: tier(Role::Sstable),
        }
    }

    /// SIGKILL. Returns when the process is gone. Needs processes.
    pub fn kill(&mut self, role: Role, index: usize) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.signal(role, index, Signal::Kill).await?;
            let at = self.at(role, index)?;
            if let Running::Process(mut child) = std::mem::replace(&mut self.servers[at].running, Running::No)
            {
                child.ended().await;
            }
            Ok(())
        })
    }

    /// SIGSTOP. Needs processes.
    pub fn pause(&self, role: Role, index: usize) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { self.signal(role, index, Signal::Stop).await })
    }

    /// SIGCONT. Needs processes.
    pub fn resume(&self, role: Role, index: usize) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { self.signal(role, index, Signal::Continue).await })
    }

    async fn signal(&self, role: Role, index: usize, signal: Signal) -> Result<()> {
        let slot = self.slot(role, index)?;
        let (Running::Process(child), Some(keeper)) = (&slot.running, self.launcher.keeper()) else {
            return Err(Error::invalid(format!("{} is no running process", slot.member.name())));
        };
        if keeper.signal(child, signal).await? {
            Ok(())
        } else {
            Err(Error::invalid(format!("{} {}", slot.member.name(), describe(child.has_ended()))))
        }
    }

    /// Drains and stops one server (SIGTERM for a process).
    pub fn stop(&mut self, role: Role, index: usize) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let at = self.at(role, index)?;
            self.stop_at(at).await
        })
    }

    async fn stop_at(&mut self, at: usize) -> Result<()> {
        let slot = &mut self.servers[at];
        let running = std::mem::replace(&mut slot.running, Running::No);
        running.stop(&slot.member, self.launcher.keeper()).await
    }

    /// Starts a server again that was killed or stopped, on its data and its ports; returns when it is ready.
    pub fn restart(&mut self, role: Role, index: usize) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let at = self.at(role, index)?;
            self.stop_at(at).await?;
            self.launch(at).await?;
            self.launcher.wait_ready(&self.servers[at]).await?;
            self.write_ready_file()
        })
    }

    /// Starts a server again without waiting until it is ready: a p-node is not while the cluster has no majority.
    pub fn relaunch(&mut self, role: Role, index: usize) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let at = self.at(role, index)?;
            self.stop_at(at).await?;
            self.launch(at).await?;
            self.write_ready_file()
        })
    }

    /// Waits until a server process ends that nobody stopped; says which and how. For ever, if none does. The server then
    /// counts as not running. Safe to cancel.
    pub fn next_death(&mut self) -> BoxFuture<'_, Death> {
        Box::pin(async move {
            let deaths: Vec<_> = self
                .servers
                .iter()
                .enumerate()
                .filter_map(|(at, slot)| match &slot.running {
                    Running::Process(child) => Some((at, child.clone())),
                    _ => None,
                })
                .map(|(at, mut child)| Box::pin(async move { (at, child.ended().await) }))
                .collect();
            if deaths.is_empty() {
                return std::future::pending().await;
            }
            let ((at, exit), ..) = futures::future::select_all(deaths).await;
            let slot = &mut self.servers[at];
            slot.running = Running::No;
            Death {
                name: slot.member.name(),
                how: describe(exit),
                config: slot.member.config_path(&self.options.data),
                log: slot.member.log_path(&self.options.data),
            }
        })
    }

    /// Drains and stops everything: first the p-nodes, so that clients are answered, then the memtable servers, then the
    /// sstable servers.
    pub fn shutdown(self) -> BoxFuture<'static, Result<()>> {
        Box::pin(self.shut_down())
    }

    async fn shut_down(mut self) -> Result<()> {
        let ready = self.ready_file();
        if self.launcher.env.vfs.exists(&ready) {
            self.launcher.env.vfs.remove_file(&ready)?;
        }
        let mut first_error = Ok(());
        for role in [Role::PNode, Role::Memtable, Role::Sstable] {
            let tier = self.servers.iter_mut().filter(|s| s.member.role == role).map(|slot| {
                let running = std::mem::replace(&mut slot.running, Running::No);
                running.stop(&slot.member, self.launcher.keeper())
            });
            for result in futures::future::join_all(tier).await {
                first_error = first_error.and(result);
            }
        }
        first_error
    }

    fn at(&self, role: Role, index: usize) -> Result<usize> {
        self.servers
            .iter()
            .position(|s| s.member.role == role && s.member.index == index)
            .ok_or_else(|| Error::invalid(format!("there is no {} server number {index}", role.name())))
    }

    fn slot(&self, role: Role, index: usize) -> Result<&Slot> {
        Ok(&self.servers[self.at(role, index)?])
    }

    fn ready_file(&self) -> PathBuf {
        self.options.data.join("ready.json")
    }

    fn write_ready_file(&self) -> Result<()> {
        let line = self.ready_line().json() + "\n";
        write_file_atomically(&*self.launcher.env.vfs, &self.ready_file(), line.as_bytes())?;
        Ok(())
    }

    /// The overrides that the servers were started with.
    pub fn tuning(&self) -> &Tuning {
        &self.options.tuning
    }
}

/// Better one clear line now than a server that fails to start for a reason in its log.
async fn check_ports(env: &Env, members: &[Member], data: &Path) -> Result<()> {
    for member in members {
        for (what, addr) in [
            ("gRPC", Some(&member.addr)),
            ("HTTP", Some(&member.http)),
            ("RESP", member.resp.as_ref()),
            ("administration", member.admin.as_ref()),
        ] {
            let Some(port) = addr.and_then(|addr| port_of(addr)) else { continue };
            if !ports::is_free(env, port).await {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    format!(
                        "port {port} ({} of {}, {}) is taken by another process",
                        what,
                        member.name(),
                        data.display()
                    ),
                ));
            }
        }
    }
    Ok(())
}
