//! `sextant load`: a file becomes SSTables.
//!
//! Owns the way from lines ([`input`], [`separated`]) over their order by partition and key ([`sort`]) to what each partition is sent
//! ([`send`]), and what is remembered for another attempt ([`mark`]). Each partition is committed for itself, all in a row when everything is written.

mod input;
mod mark;
mod send;
mod separated;
mod sort;

use std::io::Write;
use std::path::Path;

use sextant_client::{Client, ErrorKind, LoadId, TableInfo};
use sextant_common::ids::DEFAULT_TABLE_NAME;
use sextant_common::key::SlotMap;

use super::client;
use crate::args::{LoadArgs, LoadFormat};
use crate::exit::{CommandResult, Failure};
use crate::network;
use input::Lines;
use mark::Mark;
use send::Sending;
use sort::{Sorted, Sorter};

const MIB: usize = 1024 * 1024;

pub async fn run(args: LoadArgs) -> CommandResult {
    let name = if args.table.table.is_empty() { DEFAULT_TABLE_NAME } else { &args.table.table };
    let client = client(&args.table.connection).await?;
    let table = table(&client, name).await?;
    let slots = SlotMap::even(client.partitions().await?);
    let (mark, at) = mark(&args, &table)?;
    let sorted = sorted(&args, &table, slots, mark.time_ms)?;
    if sorted.records() == 0 {
        return Ok(writeln!(std::io::stdout(), "nothing to load")?);
    }
    if let Some(at) = &at {
        mark::write(at, &mark)?;
    }
    let (records, parts) = (sorted.records(), sorted.parts().len());
    let sending = Sending::new(sorted);
    let env = network::client(&args.table.connection.tls)?;
    let begun_ns = env.clock.holder_ns();
    match sending.run(&client, name, LoadId(mark.id), args.parallel, args.quiet).await {
        Ok(()) => {
            if let Some(at) = &at {
                mark::remove(at)?;
            }
            let seconds = (env.clock.holder_ns() - begun_ns) as f64 / 1e9;
            writeln!(
                std::io::stdout(),
                "loaded {records} records into table {name:?}, in {parts} partitions, in {seconds:.1} s"
            )?;
            Ok(())
        }
        Err(e) => {
            let again = if at.is_some() { "; --resume goes on" } else { "" };
            let failure = if e.error.kind == ErrorKind::Invalid { Failure::usage } else { Failure::error };
            Err(failure(format!("{e}{again}")))
        }
    }
}

async fn table(client: &Client, name: &str) -> Result<TableInfo, Failure> {
    let known = client.list_tables().await?.into_iter().find(|table| table.name == name);
    known.ok_or_else(|| Failure::usage(format!("no table {name:?}: `sextant create-table` makes one")))
}

/// The load's number, and where it is kept as soon as records are sent: beside the file. (What is read from standard input cannot be
/// read again.)
fn mark(args: &LoadArgs, table: &TableInfo) -> Result<(Mark, Option<std::path::PathBuf>), Failure> {
    let env = network::client(&args.table.connection.tls)?;
    let new = |input| Mark {
        id: env.rng.nonzero_u64(),
        table: table.name.clone(),
        table_id: Some(table.id.0),
        time_ms: env.clock.wall_guess_ns() / 1_000_000,
        input,
    };
    if args.file.as_os_str() == "-" {
        if args.resume {
            return Err(Failure::usage("standard input cannot be read again: --resume needs a file"));
        }
        return Ok((new(String::new()), None));
    }
    let at = mark::path(&args.file);
    let input = mark::of_input(&args.file)?;
    let mark = match args.resume {
        true => mark::read(&at, table, &input)?,
        false => new(input),
    };
    Ok((mark, Some(at)))
}

/// Everything, in the order of partitions and keys.
fn sorted(args: &LoadArgs, table: &TableInfo, slots: SlotMap, now_ms: u64) -> Result<Sorted, Failure> {
    let dir = args.tmp.clone().unwrap_or_else(std::env::temp_dir);
    let memory = args.memory.saturating_mul(MIB);
    let mut sorter = Sorter::new(&dir, memory, args.refuse_duplicates);
    let format = args.format.or_else(|| format_of(&args.file));
    let format = format
        .ok_or_else(|| Failure::usage("the file's name does not say what it is: --format csv|tsv|jsonl"))?;
    let lines = Lines::open(&args.file, format, args.base64)?;
    for line in lines {
        let line = line?;
        let partition = slots.partition_of(&line.key, &table.options);
        sorter.push(partition, line.into_record(now_ms))?;
    }
    Ok(sorter.finish()?)
}

fn format_of(file: &Path) -> Option<LoadFormat> {
    match file.extension()?.to_str()? {
        "csv" => Some(LoadFormat::Csv),
        "tsv" => Some(LoadFormat::Tsv),
        "jsonl" | "ndjson" => Some(LoadFormat::Jsonl),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use sextant_common::ids::TableId;

    use super::*;
    use crate::args::{Cli, Command};

    /// All that is done before records are sent.
    fn prepared(file: &Path, more: &[&str]) -> Result<u64, Failure> {
        let words = ["sextant", "load"].iter().copied().chain(file.to_str()).chain(more.iter().copied());
        let Command::Load(args) = Cli::try_parse_from(words).unwrap().command else { panic!("it is a load") };
        let table = TableInfo { id: TableId(1), name: "t".into(), options: Default::default() };
        let (mark, at) = mark(&args, &table)?;
        assert_eq!(at, Some(mark::path(file)));
        Ok(sorted(&args, &table, SlotMap::even(2), mark.time_ms)?.records())
    }

    #[test]
    fn what_cannot_be_sent_leaves_nothing_to_resume() {
        let dir = tempfile::tempdir().unwrap();
        for (name, text, more) in [
            ("empty.csv", "\n", &[][..]),
            ("wrong.csv", "a,1\nb,\"2\n", &[]),
            ("twice.csv", "a,1\na,2\n", &["--refuse-duplicates"]),
            ("unknown.txt", "a,1\n", &[]),
        ] {
            let file = dir.path().join(name);
            std::fs::write(&file, text).unwrap();
            assert_eq!(prepared(&file, more).unwrap_or(0), 0, "{name}");
            assert!(!mark::path(&file).exists(), "{name}");
        }
        let folder = dir.path().join("folder");
        std::fs::create_dir(&folder).unwrap();
        assert!(prepared(&folder, &["--format", "csv"]).is_err());
        assert!(!mark::path(&folder).exists());
    }
}
