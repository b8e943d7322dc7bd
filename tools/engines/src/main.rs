//! `cargo xtask engines`: one sorted table of records, written and read by Sextant's table format, by lsm-tree's tables and by
//! RocksDB, in one process, in turns. What is counted is the CPU time of the thread that does the work.

mod engines;
mod records;
mod report;

use std::path::Path;

use engines::{Compression, Engine, Opened};
use records::Records;
use report::{Figures, Row};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const USAGE: &str = "usage: sextant-engines [--records N] [--rounds N] [--value-bytes N]";
/// Point reads of a round.
const READS: usize = 200_000;
/// A small cache has room for one of so many bytes of the data.
const SMALL_CACHE: u64 = 20;

fn main() {
    let (mut records, mut rounds, mut values) = (1_000_000, 5, vec![100, 1024]);
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let number = arguments.next().and_then(|n| n.parse::<usize>().ok()).filter(|n| *n > 0);
        match (name.as_str(), number) {
            ("--records", Some(n)) => records = n,
            ("--rounds", Some(n)) => rounds = n,
            ("--value-bytes", Some(n)) => values = vec![n],
            _ => {
                eprintln!("{USAGE}");
                std::process::exit(2);
            }
        }
    }
    println!(
        "{records} records of 16-byte keys, blocks of 4 KiB; medians of {rounds} rounds, engines in turns; thread CPU time"
    );
    for value_bytes in values {
        for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
            let data = Records::new(records, value_bytes);
            compare(&data, compression, rounds).print(value_bytes, compression);
        }
    }
}

fn compare(data: &Records, compression: Compression, rounds: usize) -> Figures {
    let engines: Vec<Box<dyn Engine>> =
        engines::all().into_iter().filter(|engine| engine.has(compression)).collect();
    let mut figures = Figures::new(engines.iter().map(|engine| engine.name()).collect());
    for round in 0..rounds {
        // Gone at the end of the round, with what is in it.
        let dir = tempfile::tempdir().expect("a folder for tables");
        let mut opened = Vec::new();
        for (at, engine) in engines.iter().enumerate() {
            let place = dir.path().join(at.to_string());
            std::fs::create_dir(&place).expect("a folder for one table");
            let spent = cpu(|| engine.build(&place, data, compression));
            figures.add(Row::Build, at, data.bytes() as f64 / 1e6 / spent);
            let table = engine.open(&place, compression, data.bytes() as u64 / SMALL_CACHE);
            figures.add(Row::Size, at, size(&place) as f64 / data.bytes() as f64);
            opened.push(table);
        }
        for (row, per) in [(Row::Warm, READS), (Row::SmallCache, READS), (Row::Absent, READS)] {
            for (at, table) in opened.iter().enumerate() {
                let keys = data.keys(per, row != Row::Absent, round as u64);
                // Everything that fits is in the cache before the first read is counted.
                if row == Row::Warm && data.count() > 0 {
                    (0..data.count()).for_each(|n| assert!(table.get(&data.key(n), row).is_some()));
                }
                let spent = cpu(|| read_all(&**table, &keys, row));
                figures.add(row, at, spent * 1e9 / keys.len() as f64);
            }
        }
        for row in [Row::Forward, Row::Backward] {
            for (at, table) in opened.iter().enumerate() {
                let mut seen = (0, 0);
                let spent = cpu(|| seen = table.scan(row == Row::Backward));
                assert_eq!(seen, (data.count(), data.bytes()), "all records are there");
                figures.add(row, at, spent * 1e9 / data.count() as f64);
            }
        }
    }
    figures
}

fn read_all(table: &dyn Opened, keys: &[[u8; 16]], row: Row) {
    for key in keys {
        assert_eq!(table.get(key, row).is_some(), row != Row::Absent);
    }
}

fn size(place: &Path) -> u64 {
    let entries = std::fs::read_dir(place).expect("a folder");
    // RocksDB's own log and manifests are no part of the table.
    let tables = entries.flatten().filter(|e| {
        let name = e.file_name();
        name == "table" || name.to_string_lossy().ends_with(".sst")
    });
    tables.map(|e| e.metadata().map_or(0, |m| m.len())).sum()
}

/// Seconds of this thread's CPU time.
fn cpu(work: impl FnOnce()) -> f64 {
    let before = thread_ns();
    work();
    (thread_ns() - before) as f64 / 1e9
}

fn thread_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place for the answer.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(status, 0, "a thread has a clock");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
