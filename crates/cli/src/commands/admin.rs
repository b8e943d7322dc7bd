//! Maintenance.

use std::io::Write;

use sextant_client::{
    ConfigurationChange, LeaseMode, Maintenance, PartitionFormat, RecoveredPartition, RecoveryOrder,
    RecoveryOutcome,
};
use sextant_common::ids::{NodeId, PartitionId};

use super::client;
use crate::args::{AdminCommand, RaiseFormatArgs, RecoverArgs, TransferArgs, VotersArgs};
use crate::exit::{CommandResult, Failure};

pub async fn run(command: AdminCommand) -> CommandResult {
    let (what, done) = match command {
        AdminCommand::Freeze(args) => {
            ("frozen", client(&args.connection).await?.freeze(args.table.as_deref()).await?)
        }
        AdminCommand::Flush(args) => {
            ("flushed", client(&args.connection).await?.flush(args.table.as_deref()).await?)
        }
        AdminCommand::Compact(args) => {
            ("compacted", client(&args.connection).await?.compact(args.table.as_deref()).await?)
        }
        AdminCommand::Configure(args) => {
            let change = ConfigurationChange {
                mode: args.mode.as_deref().map(lease_mode),
                lease_ms: args.lease_ms,
                leader_lease_ms: args.leader_lease_ms,
                drift_ppm: args.drift_ppm,
                memory_bytes: args.memory_bytes,
                draining: None,
            };
            ("configured", client(&args.connection).await?.configure(&change).await?)
        }
        AdminCommand::Drain(args) => {
            let draining = Some(args.sstable.into_iter().collect());
            let change = ConfigurationChange { draining, ..ConfigurationChange::default() };
            ("configured", client(&args.connection).await?.configure(&change).await?)
        }
        AdminCommand::Transfer(args) => return transfer(args).await,
        AdminCommand::Voters(args) => return voters(args).await,
        AdminCommand::RaiseFormat(args) => return raise_format(args).await,
        AdminCommand::Recover(args) => return recover(args).await,
    };
    report(what, &done)
}

/// The option takes no other than these.
fn lease_mode(name: &str) -> LeaseMode {
    if name == "timed" { LeaseMode::Timed } else { LeaseMode::Ack }
}

async fn transfer(args: TransferArgs) -> CommandResult {
    let (partition, to) = (PartitionId(args.partition), NodeId(args.to));
    let leader = client(&args.connection).await?.transfer(partition, to).await?;
    writeln!(std::io::stdout(), "partition {partition} is led by memtable server {leader}")?;
    if leader == to { Ok(()) } else { Err(Failure::error("another server was elected".to_owned())) }
}

async fn voters(args: VotersArgs) -> CommandResult {
    let (partition, voters) = (PartitionId(args.partition), args.voters.into_iter().map(NodeId));
    let voters: Vec<NodeId> = voters.collect();
    let voters = client(&args.connection).await?.change_voters(partition, &voters).await?;
    let list: Vec<String> = voters.iter().map(NodeId::to_string).collect();
    writeln!(std::io::stdout(), "partition {partition}: memtable servers {} vote", list.join(", "))?;
    Ok(())
}

async fn raise_format(args: RaiseFormatArgs) -> CommandResult {
    let partitions = client(&args.connection).await?.raise_format(args.to, args.dry_run).await?;
    let mut stdout = std::io::stdout().lock();
    for PartitionFormat { partition, format, possible, hindrances, refused } in &partitions {
        write!(stdout, "partition {partition}: format {format}")?;
        if possible > format {
            write!(stdout, ", {possible} is possible")?;
        }
        writeln!(stdout)?;
        for line in hindrances {
            writeln!(stdout, "  {line}")?;
        }
        if !refused.is_empty() {
            writeln!(stdout, "  refused: {refused}")?;
        }
    }
    match partitions.iter().any(|p| !p.refused.is_empty()) {
        true => Err(Failure::error("the format was not raised everywhere")),
        false => Ok(()),
    }
}

async fn recover(args: RecoverArgs) -> CommandResult {
    let order = RecoveryOrder {
        dry_run: !args.yes,
        without: args.without_sstable.into_iter().map(NodeId).collect(),
        accept_loss: args.accept_loss,
        with_loads: args.with_load,
        without_loads: args.without_load,
    };
    let partitions = client(&args.connection).await?.recover(&order).await?;
    let mut stdout = std::io::stdout().lock();
    let refused = partitions.iter().any(|p| p.outcome == RecoveryOutcome::Refused);
    for RecoveredPartition { partition, outcome, message, found, losses, undecided } in &partitions {
        let what = match outcome {
            RecoveryOutcome::Founded => "has a group: nothing to be done",
            RecoveryOutcome::Planned => "can be rebuilt",
            RecoveryOutcome::Recovered => "is rebuilt",
            RecoveryOutcome::Refused => message,
        };
        writeln!(stdout, "partition {partition}: {what}")?;
        for line in found {
            writeln!(stdout, "  {line}")?;
        }
        for line in losses {
            writeln!(stdout, "  MISSING: {line}")?;
        }
        for load in undecided {
            writeln!(stdout, "  UNDECIDED: {load}")?;
        }
    }
    if refused {
        return Err(Failure::error("not every partition can be rebuilt".to_owned()));
    }
    if partitions.iter().any(|p| p.outcome == RecoveryOutcome::Planned) {
        writeln!(stdout, "Nothing was done. `--yes` rebuilds the partitions from what was found.")?;
        if partitions.iter().any(|p| !p.losses.is_empty()) {
            writeln!(stdout, "Flushed records are missing: that has to be accepted with --accept-loss.")?;
        }
        let undecided: Vec<String> =
            partitions.iter().flat_map(|p| &p.undecided).map(|load| load.name.to_string()).collect();
        if !undecided.is_empty() {
            writeln!(
                stdout,
                "Nothing tells whether these loads were committed. Say so of each: --with-load if it was, --without-load if not \
                 (what its SSTables have is lost then): {}",
                undecided.join(",")
            )?;
        }
    }
    Ok(())
}

fn report(what: &str, done: &Maintenance) -> CommandResult {
    let mut partitions: Vec<u32> = done.done.iter().map(|p| p.0).collect();
    partitions.sort_unstable();
    partitions.dedup();
    let list: Vec<String> = partitions.iter().map(u32::to_string).collect();
    if !list.is_empty() {
        writeln!(std::io::stdout(), "{what}: partitions {}", list.join(" "))?;
    }
    if done.errors.is_empty() { Ok(()) } else { Err(Failure::error(done.errors.join("; "))) }
}
