//! Sextant beside others on one machine: Redis without a disk, Redis that fsyncs each write, three nodes of etcd.
//!
//! Owns: starting them, a load generator that all of them are driven with, turns, medians, the page. Does not own: what is in
//! `sextant dev`, which is started as users start it.
//!
//! * [`servers`]: how each is started, and what it promises
//! * [`client`]: closed-loop clients over RESP or etcd's gRPC, one program for all
//! * [`benchmark`]: `redis-benchmark`, as a second opinion on whatever speaks RESP
//! * [`turns`]: rounds in which the servers take turns, load by load
//! * [`summary`], [`page`]: medians and ratios, and how they are shown
//!
//! All servers run all the time, and one is driven: what the others do at rest is measured too, and said.

mod args;
mod benchmark;
mod client;
mod install;
mod load;
mod machine;
mod page;
mod process;
mod servers;
mod summary;
mod turns;

use std::process::ExitCode;

use clap::Parser;
use sextant_common::error::{Error, Result};
use sextant_environment::Env;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::Args;
use crate::servers::{Server, Setting};
use crate::summary::Report;

fn main() -> ExitCode {
    let args = Args::parse();
    // One thread: a client that had more would take a core from the servers at rest, and hand over between them.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => {
            eprintln!("sextant-peers: no runtime: {e}");
            return ExitCode::from(2);
        }
    };
    let result = runtime.block_on(compare(&args));
    runtime.shutdown_background();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("sextant-peers: {}", e.message);
            ExitCode::FAILURE
        }
    }
}

/// Whatever becomes of the comparison, and also if it is interrupted: servers are ended and directories removed.
async fn compare(args: &Args) -> Result<()> {
    let parent = args.data_dir.clone().unwrap_or_else(std::env::temp_dir);
    let data = tempfile::Builder::new()
        .prefix("sextant-peers-")
        .tempdir_in(&parent)
        .map_err(|e| Error::invalid(format!("{}: {e}", parent.display())))?;
    let mut servers = servers::chosen(&args.only);
    let result = tokio::select! {
        report = measure(args, &mut servers, data.path()) => report,
        name = interrupted() => Err(Error::unavailable(format!("{name}: ended, nothing was written"))),
    };
    for server in &mut servers {
        server.stop().await;
    }
    if let Err(e) = data.close() {
        eprintln!("sextant-peers: a directory was not removed: {e}");
    }
    let report = result?;
    let written = page::write(&args.out(), &report)?;
    print!("{}", page::tables(&report));
    eprintln!("peers: written: {}", written.join(", "));
    Ok(())
}

async fn measure(args: &Args, servers: &mut [Server], data: &std::path::Path) -> Result<Report> {
    let env = Env::real();
    let setting = Setting { sextant: args.sextant()?, data: data.to_owned() };
    if !args.no_install {
        install::missing(servers).await;
    }
    let machine = machine::describe(data).await;
    for server in servers.iter_mut() {
        server.start(&setting).await;
        match &server.left_out {
            None => eprintln!("peers: {} runs: {}", server.name(), server.version),
            Some(why) => eprintln!("peers: {} is LEFT OUT: {why}", server.name()),
        }
    }
    if servers.iter().all(|server| server.running.is_none()) {
        return Err(Error::unavailable("no server could be started"));
    }
    turns::take(&env, args, servers, machine).await
}

async fn interrupted() -> &'static str {
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        // Without handlers the default holds: the process ends, and the kernel ends its children.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => "interrupted",
        _ = terminate.recv() => "terminated",
    }
}
