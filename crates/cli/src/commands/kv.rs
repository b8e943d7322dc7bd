//! Reading and writing records. Values are printed raw, byte for byte, with a line feed behind them as redis-cli does it.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use sextant_client::{Client, Effect, Expected, OpOutcome, ScanOptions};
use sextant_common::ids::Seq;
use sextant_common::limits::VALUE_BYTES_MAX;

use super::client;
use crate::args::{CasArgs, DeleteArgs, GetArgs, MgetArgs, PutArgs, ScanArgs, SnapshotCommand, TableArgs};
use crate::exit::{CommandResult, Failure};

/// Keys and values are bytes: whatever the shell passes.
fn bytes(argument: OsString) -> Bytes {
    argument.into_vec().into()
}

async fn client_of(table: &TableArgs) -> Result<Client, Failure> {
    client(&table.connection).await
}

pub async fn get(args: GetArgs) -> CommandResult {
    let client = client_of(&args.table).await?.with_mode(args.mode);
    let Some(record) = client.get(&args.table.table, bytes(args.key)).await? else {
        return Err(Failure::negative("no such key"));
    };
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(&record.value)?;
    if !args.no_newline {
        stdout.write_all(b"\n")?;
    }
    stdout.flush()?;
    if args.seq {
        eprintln!("seq {}", record.seq);
    }
    Ok(())
}

pub async fn mget(args: MgetArgs) -> CommandResult {
    let client = client_of(&args.table).await?.with_mode(args.mode);
    let keys: Vec<Bytes> = args.keys.into_iter().map(bytes).collect();
    let records = client.multi_get(&args.table.table, keys.clone()).await?;
    let mut missing = 0;
    let mut stdout = std::io::stdout().lock();
    for (key, record) in keys.iter().zip(records) {
        match record {
            Some(record) => print_record(&mut stdout, key, &record.value)?,
            None => missing += 1,
        }
    }
    stdout.flush()?;
    if missing > 0 {
        return Err(Failure::negative(format!("{missing} of {} keys do not exist", keys.len())));
    }
    Ok(())
}

/// `key <tab> value`, a line each.
fn print_record(out: &mut impl Write, key: &[u8], value: &[u8]) -> std::io::Result<()> {
    out.write_all(key)?;
    out.write_all(b"\t")?;
    out.write_all(value)?;
    out.write_all(b"\n")
}

fn value(args: &mut PutArgs) -> Result<Bytes, Failure> {
    if let Some(value) = args.value.take() {
        return Ok(bytes(value));
    }
    let mut value = Vec::new();
    // One byte more than is allowed is enough to refuse it.
    std::io::stdin().lock().take(VALUE_BYTES_MAX as u64 + 1).read_to_end(&mut value)?;
    Ok(value.into())
}

pub async fn put(mut args: PutArgs) -> CommandResult {
    let value = value(&mut args)?;
    client_of(&args.table).await?.put(&args.table.table, bytes(args.key), value).await?;
    Ok(())
}

pub async fn insert(mut args: PutArgs) -> CommandResult {
    let value = value(&mut args)?;
    let outcome = client_of(&args.table).await?.insert(&args.table.table, bytes(args.key), value).await?;
    if outcome.applied { Ok(()) } else { Err(Failure::negative("the key exists already")) }
}

pub async fn delete(args: DeleteArgs) -> CommandResult {
    let client = client_of(&args.table).await?;
    let table = &args.table.table;
    if !args.check {
        client.delete(table, bytes(args.key)).await?;
        return Ok(());
    }
    if client.delete_checked(table, bytes(args.key)).await?.existed {
        Ok(())
    } else {
        Err(Failure::negative("no such key"))
    }
}

pub async fn cas(args: CasArgs) -> CommandResult {
    let table = args.table.table.clone();
    let client = client_of(&args.table).await?;
    let (key, expected, effect) = cas_request(args)?;
    let outcome = client.compare_and_set(&table, key, expected, effect).await?;
    if outcome.applied { Ok(()) } else { Err(Failure::negative(why_not(&outcome))) }
}

fn why_not(outcome: &OpOutcome) -> String {
    if outcome.seq == Seq(0) {
        "not changed: no such key".into()
    } else {
        format!("not changed: the record is another one (seq {})", outcome.seq)
    }
}

fn cas_request(args: CasArgs) -> Result<(Bytes, Expected, Effect), Failure> {
    let mut values = args.first.into_iter().chain(args.second).map(bytes);
    let missing = |what: &str| Failure::usage(format!("cas: {what} is missing"));
    let expected = match (args.seq, args.absent) {
        (Some(seq), _) => Expected::Seq(Seq(seq)),
        (None, true) => Expected::Absent,
        (None, false) => Expected::Value(values.next().ok_or_else(|| missing("the expected value"))?),
    };
    let effect = if args.delete {
        Effect::Delete
    } else {
        Effect::Put(values.next().ok_or_else(|| missing("the new value"))?)
    };
    if values.next().is_some() {
        return Err(Failure::usage("cas: one value too many"));
    }
    Ok((bytes(args.key), expected, effect))
}

pub async fn scan(args: ScanArgs) -> CommandResult {
    let client = client_of(&args.table).await?;
    let options = ScanOptions {
        start: args.start.map(bytes).unwrap_or_default(),
        end: args.end.map(bytes).unwrap_or_default(),
        prefix: args.prefix.or(args.prefix_argument).map(bytes).unwrap_or_default(),
        reverse: args.reverse,
        limit: args.limit,
        page_records: 0,
    };
    if !options.prefix.is_empty() && (!options.start.is_empty() || !options.end.is_empty()) {
        return Err(Failure::usage("scan: a prefix, or --start and --end"));
    }
    let mut pages = match args.snapshot {
        None => client.scan(&args.table.table, options),
        Some(snapshot) => client.scan_snapshot(snapshot, &args.table.table, options),
    };
    let mut stdout = std::io::BufWriter::new(std::io::stdout().lock());
    while let Some(page) = pages.next().await {
        for record in page?.records {
            if args.keys_only {
                stdout.write_all(&record.key)?;
                stdout.write_all(b"\n")?;
            } else {
                print_record(&mut stdout, &record.key, &record.value)?;
            }
        }
        stdout.flush()?;
    }
    Ok(())
}

pub async fn snapshot(command: SnapshotCommand) -> CommandResult {
    match command {
        SnapshotCommand::Open(args) => {
            let lease = Duration::from_secs(args.lease_s);
            let snapshot = client(&args.connection).await?.open_snapshot(lease).await?;
            writeln!(std::io::stdout(), "{:016x}", snapshot.id)?;
        }
        SnapshotCommand::Renew(args) => {
            client(&args.connection).await?.renew_snapshot(args.id).await?;
        }
        SnapshotCommand::Close(args) => client(&args.connection).await?.close_snapshot(args.id).await?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};
    use crate::exit::Exit;

    fn request(line: &str) -> Result<(Bytes, Expected, Effect), Failure> {
        let args = ["sextant", "cas"].into_iter().chain(line.split_whitespace());
        match Cli::try_parse_from(args).unwrap().command {
            Command::Cas(args) => cas_request(args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn cas_by_value_by_seq_and_by_absence() {
        let k = Bytes::from("k");
        let new = || Effect::Put("new".into());
        assert_eq!(request("k old new").unwrap(), (k.clone(), Expected::Value("old".into()), new()));
        assert_eq!(request("k new --seq 7").unwrap(), (k.clone(), Expected::Seq(Seq(7)), new()));
        assert_eq!(request("k new --absent").unwrap(), (k.clone(), Expected::Absent, new()));
        assert_eq!(
            request("k old --delete").unwrap(),
            (k.clone(), Expected::Value("old".into()), Effect::Delete)
        );
        assert_eq!(request("k --seq 7 --delete").unwrap(), (k, Expected::Seq(Seq(7)), Effect::Delete));
        for bad in ["k", "k old", "k --seq 7", "k a b --seq 7", "k a b --delete"] {
            assert_eq!(request(bad).unwrap_err().report(), Exit::Usage, "{bad}");
        }
    }
}
