//! The page and its JSON.

use std::fmt::Write as _;
use std::path::Path;

use sextant_common::error::{Error, ErrorKind, Result};

use crate::load::{Load, Shape};
use crate::servers::Kind;
use crate::summary::{About, Program, Report, Row, slower};

const PAGE: &str = "peers.md";
const DATA: &str = "peers.json";
/// Of lines of text.
const WIDTH: usize = 120;

/// Writes both; their names.
pub fn write(dir: &Path, report: &Report) -> Result<Vec<String>> {
    let json = serde_json::to_string_pretty(report)
        .map_err(|e| Error::internal(format!("no JSON of the report: {e}")))?;
    let failed =
        |path: &Path, e: std::io::Error| Error::new(ErrorKind::Disk, format!("{}: {e}", path.display()));
    std::fs::create_dir_all(dir).map_err(|e| failed(dir, e))?;
    let write = |name: &str, text: String| -> Result<String> {
        let path = dir.join(name);
        std::fs::write(&path, text).map_err(|e| failed(&path, e))?;
        Ok(path.display().to_string())
    };
    Ok(vec![write(PAGE, page(report))?, write(DATA, json + "\n")?])
}

fn page(report: &Report) -> String {
    let options = &report.options;
    let mut text = String::from("# Sextant and its peers on one machine\n\n");
    if options.quick {
        text += "**A smoke run: it shows that the comparison works. Its figures mean nothing.**\n\n";
    }
    text += "Written by `cargo xtask peers`; every round is in [peers.json](peers.json).\n\n";
    text += &how(report);
    text += "\n## Who\n\n";
    text += &servers(report);
    text += "\n";
    text += &tables(report);
    text
}

fn how(report: &Report) -> String {
    let (machine, options) = (&report.machine, &report.options);
    let on = format!(
        "{}, {} cores, {} GiB; Linux {}; data on {}; commit {}; load average before: {}.",
        machine.cpu,
        machine.cores,
        machine.memory_gib,
        machine.kernel,
        machine.disk,
        machine.commit,
        machine.load_average
    );
    let rounds = format!(
        "{} records, keys of 16 bytes, values of {}; medians of {}, {} s for each figure, in which the servers take turns; \
         {} in all.",
        options.records,
        options.value_bytes,
        counted(options.rounds as u64, "round"),
        options.seconds,
        counted(report.took_seconds.div_ceil(60), "minute")
    );
    let shared = "Servers and load share the machine: on few cores a server with more processes, and a client that costs \
        more, leave less for the rest. All servers run all the time, one is driven.";
    let places = if options.spread {
        "Clients go to all p-nodes, and to all members of etcd, in turn."
    } else {
        "Clients go to one p-node, and to etcd's leader."
    };
    let client = format!(
        "One load generator drives all, closed loop, on one thread: RESP on a connection for each client; gRPC to etcd over \
         {} a member, which clients share: gRPC multiplexes, and etcd is slower with a connection for each. \
         `-P 16`: 16 operations of a client are under way at once (RESP: in one write; gRPC: 16 calls). An operation takes \
         until its batch is answered.",
        counted(options.etcd_connections as u64, "connection")
    );
    [&on, &rounds, shared, places, &client].map(|paragraph| wrapped(paragraph, "")).concat()
}

fn servers(report: &Report) -> String {
    let line = |about: &About| {
        let name = about.server.name();
        let said = match &about.left_out {
            Some(why) => format!("* **{name}** is left out: {}.", why.trim_end_matches('.')),
            None => format!(
                "* **{name}**: {}. {} At rest: {:.1} % of a core.",
                about.version, about.promises, about.at_rest_percent
            ),
        };
        wrapped(&said, "  ")
    };
    report.servers.iter().map(line).collect()
}

fn counted(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// Lines of at most [`WIDTH`] characters, if words allow; those after the first are indented.
fn wrapped(text: &str, indent: &str) -> String {
    let (mut lines, mut line) = (String::new(), String::new());
    for word in text.split(' ') {
        if !line.trim().is_empty() && line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines += &line;
            lines += "\n";
            line = format!("{indent}{word}");
        } else {
            line += if line.is_empty() { "" } else { " " };
            line += word;
        }
    }
    lines + &line + "\n"
}

/// Ratios first, then every load.
pub fn tables(report: &Report) -> String {
    let rows = &report.rows;
    let mut text = String::new();
    if rows.iter().any(|row| row.sextant_ratio.is_some()) {
        text += &ratios(rows);
    }
    for program in [Program::Own, Program::RedisBenchmark] {
        for load in Load::ALL {
            let of: Vec<_> =
                rows.iter().filter(|row| row.run.program == program && row.run.load == load).collect();
            if !of.is_empty() {
                text += &table(program, load, &of);
            }
        }
    }
    text
}

fn ratios(rows: &[Row]) -> String {
    let own: Vec<_> = rows.iter().filter(|row| row.run.program == Program::Own).collect();
    let peers = slower(rows);
    let mut text = String::from(
        "## Ratios\n\nSextant's throughput as a multiple of each peer's, by medians of the rounds' ratios.\n\
         **Below 1.00 Sextant is slower.**\n",
    );
    let counts: Vec<_> =
        peers.iter().map(|p| format!("than {} in {} of {}", p.peer.name(), p.slower, p.of)).collect();
    let _ = writeln!(text, "It is slower {}.", counts.join(", "));
    text += "\n```\n";
    let mut head = format!("{:<27} clients  -P", "load");
    peers.iter().for_each(|peer| head += &format!(" {:>12}", peer.peer.name()));
    text += &head;
    text += "\n";
    let mut keys: Vec<(Load, Shape)> = own.iter().map(|row| (row.run.load, row.run.shape)).collect();
    keys.sort_by_key(|(load, shape)| (*load, shape.pipeline, shape.clients));
    keys.dedup();
    for (load, shape) in keys {
        let _ = write!(text, "{:<27} {:>7} {:>3}", load.title(), shape.clients, shape.pipeline);
        for peer in &peers {
            let of = |row: &&&Row| (row.run.load, row.run.shape, row.run.server) == (load, shape, peer.peer);
            let ratio = own.iter().find(of).and_then(|row| row.sextant_ratio);
            let _ = write!(text, " {:>12}", ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}")));
        }
        text += "\n";
    }
    text += "```\n\n";
    text
}

fn table(program: Program, load: Load, rows: &[&Row]) -> String {
    let mut text = match program {
        Program::Own => format!("## {}\n\n{}\n", load.title(), load.about()),
        Program::RedisBenchmark => format!(
            "## {}, by redis-benchmark\n\nThe same with another client, on the records that are there before.\n",
            load.title()
        ),
    };
    text += "CPU: microseconds an operation.\n\n```\n";
    text += "clients  -P  server       per second    p50 ms    p99 ms  CPU: server  client  sextant\n";
    let mut rows = rows.to_vec();
    rows.sort_by_key(|row| (row.run.shape.pipeline, row.run.shape.clients, row.run.server));
    for row in rows {
        let Shape { clients, pipeline } = row.run.shape;
        let _ = write!(text, "{clients:>7} {pipeline:>3}  {:<11}", row.run.server.name());
        match &row.median {
            None => text += " failed: ",
            Some(median) => {
                let _ = write!(
                    text,
                    " {:>11} {:>9} {:>9} {:>12} {:>7} {:>8}",
                    thousands(median.per_second),
                    figure(median.p50_us / 1e3),
                    figure(median.p99_us / 1e3),
                    figure(median.server_us),
                    figure(median.client_us),
                    row.sextant_ratio.map_or(String::new(), |ratio| format!("{ratio:.2} x")),
                );
                for (what, count) in &median.errors {
                    let _ = write!(text, "  errors: {count} {what}");
                }
            }
        }
        if let Some((_, why)) = row.rounds.failed.first_key_value() {
            let _ = write!(text, "  {} rounds failed: {why}", row.rounds.failed.len());
        }
        text.truncate(text.trim_end_matches(' ').len());
        text += "\n";
    }
    text += "```\n\n";
    if load == Load::Set && program == Program::Own {
        let missing = Kind::Redis.name();
        let _ = writeln!(
            text,
            "`{missing}` writes to no disk: what it is faster by is also what it does not do.\n"
        );
    }
    text
}

/// `1234567.8` as `1,234,568`.
fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut shown = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

/// About three digits.
fn figure(value: f64) -> String {
    match value {
        v if v >= 99.95 => format!("{v:.0}"),
        v if v >= 9.995 => format!("{v:.1}"),
        v if v >= 0.9995 => format!("{v:.2}"),
        v => format!("{v:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::machine::Machine;
    use crate::summary::tests::{rounds, run};
    use crate::summary::{Options, rows};

    fn report() -> Report {
        let mut failed = rounds(&[]);
        failed.failed.insert(0, "gone".to_owned());
        let mut refused = rounds(&[1000.0]);
        refused.measured.get_mut(&0).unwrap().errors.insert("TRYAGAIN".to_owned(), 4);
        let runs = BTreeMap::from([
            (run(Load::Cached, 1, Kind::Sextant), rounds(&[1234567.0])),
            (run(Load::Cached, 1, Kind::Redis), rounds(&[2469134.0])),
            (run(Load::Set, 64, Kind::Sextant), refused),
            (run(Load::Set, 64, Kind::Etcd), failed),
        ]);
        let about = |server: Kind, left_out: Option<&str>| About {
            server,
            version: "1".to_owned(),
            promises: server.promises(),
            left_out: left_out.map(str::to_owned),
            at_rest_percent: 1.0,
        };
        Report {
            machine: Machine {
                cpu: "some CPU".to_owned(),
                cores: 2,
                memory_gib: 24,
                kernel: "6.1".to_owned(),
                disk: "tmpfs".to_owned(),
                load_average: "0, 0, 0".to_owned(),
                commit: "abc".to_owned(),
            },
            options: Options {
                quick: true,
                rounds: 1,
                seconds: 0.5,
                records: 10,
                value_bytes: 100,
                spread: false,
                etcd_connections: 1,
            },
            servers: vec![
                about(Kind::Sextant, None),
                about(Kind::Redis, None),
                about(Kind::RedisFsync, Some("no apt-get.")),
            ],
            took_seconds: 61,
            rows: rows(runs),
        }
    }

    #[test]
    fn the_tables_say_who_is_slower_what_failed_and_who_is_left_out() {
        let text = page(&report());
        for expected in [
            "**A smoke run",
            "* **redis-fsync** is left out: no apt-get.\n",
            "It is slower than redis in 1 of 1.\n",
            "GET, cached                       1   1         0.50\n",
            "SET                              64   1            -\n",
            "      1   1  redis         2,469,134     0.000     0.001         20.0    10.0   0.50 x\n",
            "      1   1  sextant       1,234,567     0.001     0.002         20.0    10.0\n",
            "errors: 4 TRYAGAIN\n",
            "     64   1  etcd        failed:   1 rounds failed: gone\n",
            "2 minutes in all.\n",
            "medians of 1 round, ",
        ] {
            assert!(text.contains(expected), "{expected:?} is not in\n{text}");
        }
        assert!(text.lines().all(|line| line.trim_end() == line), "no blanks at the ends of lines");
    }

    #[test]
    fn both_files_are_written_and_the_data_has_every_round() {
        let dir = tempfile::tempdir().unwrap();
        let written = write(&dir.path().join("new"), &report()).unwrap();
        assert_eq!(written.len(), 2);
        let json: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(dir.path().join("new/peers.json")).unwrap())
                .unwrap();
        let row = &json["rows"][0];
        assert_eq!((row["load"].as_str(), row["server"].as_str()), (Some("cached"), Some("sextant")));
        assert_eq!(row["measured"]["0"]["per_second"], 1234567.0);
    }

    #[test]
    fn text_is_wrapped_and_indented() {
        let words = ["word"; 50].join(" ");
        let lines = wrapped(&words, "  ");
        assert!(lines.lines().count() == 3 && lines.lines().all(|line| line.chars().count() <= WIDTH));
        assert!(lines.lines().skip(1).all(|line| line.starts_with("  word")));
        assert_eq!(wrapped("a b", "  "), "a b\n");
    }

    #[test]
    fn figures_have_three_digits() {
        assert_eq!([0.0, 999.0, 1000.0, 1234567.8].map(thousands), ["0", "999", "1,000", "1,234,568"]);
        assert_eq!([0.01234, 1.0, 9.996, 123.4].map(figure), ["0.012", "1.00", "10.0", "123"]);
    }
}
