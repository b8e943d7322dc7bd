//! A whole cluster on this machine.

use std::fmt::Write as _;
use std::io::Write as _;

use sextant_dev_cluster::{DevCluster, DevOptions, ReadyLine};
use sextant_environment::{Env, logging};

use crate::args::DevArgs;
use crate::exit::{CommandResult, Exit, Failure};
use crate::process::{StopSignals, raise_file_limit};

/// What the servers log goes to the same terminal as the banner, unless they are processes with log files of their own.
const LOG_FILTER: &str = "warn,openraft=error";

pub async fn run(args: DevArgs) -> CommandResult {
    logging::init_with(LOG_FILTER);
    raise_file_limit();
    let mut signals = StopSignals::listen()?;
    let options = options(&args)?;
    if !args.json {
        eprintln!("starting a cluster in {}", args.data.display());
    }
    let mut cluster = tokio::select! {
        started = DevCluster::start(Env::real(), options) => started?,
        () = signals.wait() => return Err(Failure::silent(Exit::Negative)),
    };
    let line = cluster.ready_line();
    let mut stdout = std::io::stdout().lock();
    if args.json {
        writeln!(stdout, "{}", line.json())?;
    } else {
        write!(stdout, "{}", banner(&args, &line))?;
    }
    stdout.flush()?;
    drop(stdout);
    loop {
        tokio::select! {
            () = signals.wait() => break,
            death = cluster.next_death() => {
                eprintln!(
                    "sextant: {} {}; its log: {}; to start it again: sextant {} --config {}",
                    death.name,
                    death.how,
                    death.log.display(),
                    death.name.split('-').next().unwrap_or_default(),
                    death.config.display()
                );
            }
        }
    }
    if !args.json {
        eprintln!("stopping: p-nodes, memtable servers, sstable servers");
    }
    match signals.drain(cluster.shutdown()).await {
        Some(stopped) => Ok(stopped?),
        None => Err(Failure::silent(Exit::Negative)),
    }
}

fn options(args: &DevArgs) -> Result<DevOptions, Failure> {
    let processes = if args.processes {
        Some(std::env::current_exe().map_err(|e| Failure::error(format!("where is this program? {e}")))?)
    } else {
        None
    };
    Ok(DevOptions {
        partitions: args.partitions,
        memtable: args.memtable.map(usize::from),
        sstable: args.sstable.map(usize::from),
        pnodes: usize::from(args.pnodes),
        resp_port: args.resp,
        grpc_port: args.grpc,
        http_port: args.http,
        processes,
        ..DevOptions::new(&args.data)
    })
}

/// How to talk to it.
fn banner(args: &DevArgs, line: &ReadyLine) -> String {
    let mut out = String::new();
    // As the caller named it, so that what is printed can be run.
    let program = std::env::args_os().next().unwrap_or_else(|| "sextant".into());
    let program = program.display();
    let data = args.data.display();
    let _ = writeln!(
        out,
        "Sextant is ready: {} p-nodes, {} memtable servers, {} sstable servers{}; data in {data}",
        line.pnodes.len(),
        line.memtable.len(),
        line.sstable.len(),
        if args.processes { ", a process each" } else { ", one process" },
    );
    for p in &line.pnodes {
        let _ = writeln!(
            out,
            "  p-node {}: RESP {}, gRPC {}, administration {}, http://{}/status",
            p.id, p.resp, p.grpc, p.admin, p.http
        );
    }
    for (name, servers) in [("memtable server", &line.memtable), ("sstable server", &line.sstable)] {
        for s in servers {
            let _ = writeln!(out, "  {name} {}: gRPC {}, http://{}/status", s.id, s.addr, s.http);
        }
    }
    let Some(first) = line.pnodes.first() else { return out };
    let other = line.pnodes.last().unwrap_or(first);
    let port = first.resp.rsplit_once(':').map_or("", |(_, port)| port);
    let _ = writeln!(out, "Try:");
    let _ = writeln!(out, "  redis-cli -p {port} set a 1");
    let _ = writeln!(out, "  {program} get a --server {}", other.grpc);
    let _ = writeln!(out, "  {program} status --server {}", first.grpc);
    let _ = writeln!(out, "  {program} ycsb load --records 100000 --table ycsb --grpc {}", first.grpc);
    let _ = writeln!(out, "  curl http://{}/metrics", first.http);
    let _ = writeln!(out, "Stop it with Ctrl-C; `{program} dev --data {data}` finds all data again.");
    out
}
