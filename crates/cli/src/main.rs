//! The `sextant` command. Only wires: arguments to commands, results to exit codes.

mod args;
mod commands;
mod exit;
mod network;
mod notify;
mod process;
mod server_file;

use clap::Parser;

use crate::args::{Cli, Command};
use crate::exit::{Exit, Failure};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    let exit = match Cli::try_parse_from(commands::user::with_rules_told_apart(std::env::args_os())) {
        Ok(cli) => run(cli.command),
        Err(e) => exit::usage(&e),
    };
    exit.into()
}

fn run(command: Command) -> Exit {
    if let Command::Sstable(_) = &command {
        process::gives_memory_back();
    }
    let workers = match &command {
        Command::Ycsb(ycsb) => ycsb.args.workers(),
        Command::Memtable(_) => Some(process::voter_workers()),
        Command::Pnode(args) => commands::server::pnode_workers(&args.config),
        _ => None,
    };
    let runtime = match process::runtime(workers) {
        Ok(runtime) => runtime,
        Err(e) => return Failure::error(format!("cannot start a runtime: {e}")).report(),
    };
    let result = runtime.block_on(async {
        match command {
            Command::Dev(args) => commands::dev::run(args).await,
            Command::Memtable(args) => commands::server::memtable(&args).await,
            Command::Sstable(args) => commands::server::sstable(&args).await,
            Command::Pnode(args) => commands::server::pnode(&args).await,
            Command::Get(args) => commands::kv::get(args).await,
            Command::Mget(args) => commands::kv::mget(args).await,
            Command::Put(args) => commands::kv::put(args).await,
            Command::Insert(args) => commands::kv::insert(args).await,
            Command::Delete(args) => commands::kv::delete(args).await,
            Command::Cas(args) => commands::kv::cas(args).await,
            Command::Scan(args) => commands::kv::scan(args).await,
            Command::Load(args) => commands::load::run(args).await,
            Command::CreateTable(args) => commands::tables::create(args).await,
            Command::AlterTable(args) => commands::tables::alter(args).await,
            Command::DropTable(args) => commands::tables::drop(args).await,
            Command::Tables(args) => commands::tables::list(args).await,
            Command::Status(args) => commands::status::run(args).await,
            Command::Admin(args) => commands::admin::run(args.command).await,
            Command::Snapshot(args) => commands::kv::snapshot(args.command).await,
            Command::Backup(args) => commands::backup::run(args).await,
            Command::Verify(connection) => commands::backup::verify_cluster(connection).await,
            Command::Ycsb(args) => commands::ycsb::run(args).await,
            Command::Check(args) => commands::check::run(args),
            Command::Config(args) => commands::config::run(args.command),
            Command::Cert(args) => commands::cert::run(&args.command),
            Command::User(args) => commands::user::run(args.command).await,
            Command::Health(args) => commands::health::run(args).await,
            Command::Doctor(args) => commands::doctor::run(&args).await,
        }
    });
    // Tasks that are left (a read that nobody waits for any more) must not hold up the exit.
    runtime.shutdown_background();
    match result {
        Ok(()) => Exit::Success,
        Err(failure) => failure.report(),
    }
}
