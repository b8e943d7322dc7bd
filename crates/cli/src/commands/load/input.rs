//! Lines of a file become records. What is wrong is told with the line's number.
//!
//! * csv, tsv: key, value and perhaps a lifetime in milliseconds, separated by a comma or a tab; quoted as in RFC 4180.
//! * jsonl: an object in each line, with `key`, `value` and perhaps `ttl_ms`.
//!
//! Keys and values are UTF-8, or with `base64` any bytes, encoded (RFC 4648, with padding).

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use sextant_common::expiry::Tick;
use sextant_common::limits::{VALUE_BYTES_MAX, check_key, check_value};

use super::sort::Record;
use crate::args::LoadFormat;
use crate::exit::Failure;

/// A value in base64 or with escapes is longer than its bytes.
const LINE_BYTES_MAX: u64 = 8 * VALUE_BYTES_MAX as u64;

#[derive(Debug)]
pub struct Line {
    pub number: u64,
    pub key: Vec<u8>,
    pub value: Vec<u8>,
    /// In milliseconds; None: it does not expire.
    pub ttl_ms: Option<u64>,
}

impl Line {
    /// `now_ms`: from when on its lifetime counts.
    pub fn into_record(self, now_ms: u64) -> Record {
        let expires_at = self.ttl_ms.map(|ttl| Tick(now_ms.saturating_add(ttl)));
        Record { line: self.number, key: self.key, value: self.value, expires_at }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Json {
    key: String,
    value: String,
    ttl_ms: Option<u64>,
}

enum Reader {
    Separated(Box<csv::ByteRecordsIntoIter<Box<dyn Read>>>),
    Json { lines: Box<dyn BufRead>, number: u64 },
}

pub struct Lines {
    reader: Reader,
    base64: bool,
}

impl Lines {
    /// `-`: standard input.
    pub fn open(file: &Path, format: LoadFormat, base64: bool) -> Result<Self, Failure> {
        let bytes: Box<dyn Read> = if file.as_os_str() == "-" {
            Box::new(std::io::stdin())
        } else {
            let opened = File::open(file).map_err(|e| Failure::usage(format!("{}: {e}", file.display())))?;
            Box::new(opened)
        };
        Ok(Self::of(bytes, format, base64))
    }

    fn of(bytes: Box<dyn Read>, format: LoadFormat, base64: bool) -> Self {
        let separated = |delimiter| {
            let mut builder = csv::ReaderBuilder::new();
            builder.has_headers(false).flexible(true).delimiter(delimiter);
            builder
        };
        let reader = match format {
            LoadFormat::Csv => separated(b','),
            LoadFormat::Tsv => separated(b'\t'),
            LoadFormat::Jsonl => {
                let reader = Reader::Json { lines: Box::new(BufReader::new(bytes)), number: 0 };
                return Self { reader, base64 };
            }
        };
        Self { reader: Reader::Separated(Box::new(reader.from_reader(bytes).into_byte_records())), base64 }
    }

    fn next_line(&mut self) -> Option<Result<Line, Failure>> {
        match &mut self.reader {
            Reader::Separated(records) => Some(match records.next()? {
                Ok(record) => separated(&record, self.base64),
                Err(e) => Err(Failure::usage(e.to_string())),
            }),
            Reader::Json { lines, number } => loop {
                let mut text = Vec::new();
                *number += 1;
                match lines.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut text) {
                    Ok(0) => return None,
                    Ok(_) if text.trim_ascii().is_empty() => {}
                    Ok(_) => return Some(json(*number, &text, self.base64)),
                    Err(e) => return Some(Err(wrong(*number, e))),
                }
            },
        }
    }
}

impl Iterator for Lines {
    type Item = Result<Line, Failure>;

    fn next(&mut self) -> Option<Self::Item> {
        let checked = |line: Line| {
            check_key(&line.key)
                .and_then(|()| check_value(&line.value))
                .map_err(|e| wrong(line.number, e))?;
            Ok(line)
        };
        self.next_line().map(|line| line.and_then(checked))
    }
}

fn wrong(number: u64, why: impl std::fmt::Display) -> Failure {
    Failure::usage(format!("line {number}: {why}"))
}

fn separated(record: &csv::ByteRecord, base64: bool) -> Result<Line, Failure> {
    let number = record.position().map_or(0, csv::Position::line);
    if record.len() < 2 || record.len() > 3 {
        return Err(wrong(
            number,
            format!("{} fields: a key, a value and perhaps a lifetime are expected", record.len()),
        ));
    }
    let ttl_ms = match record.get(2) {
        None | Some(b"") => None,
        Some(text) => {
            let number = std::str::from_utf8(text).ok().and_then(|text| text.trim().parse().ok());
            Some(number.ok_or_else(|| bad_ttl(record))?)
        }
    };
    line(number, &record[0], &record[1], ttl_ms, base64)
}

fn bad_ttl(record: &csv::ByteRecord) -> Failure {
    wrong(record.position().map_or(0, csv::Position::line), "the lifetime is no number of milliseconds")
}

fn json(number: u64, text: &[u8], base64: bool) -> Result<Line, Failure> {
    let Json { key, value, ttl_ms } = serde_json::from_slice(text).map_err(|e| wrong(number, e))?;
    line(number, key.as_bytes(), value.as_bytes(), ttl_ms, base64)
}

fn line(number: u64, key: &[u8], value: &[u8], ttl_ms: Option<u64>, base64: bool) -> Result<Line, Failure> {
    if ttl_ms == Some(0) {
        return Err(wrong(number, "a lifetime is at least 1 ms"));
    }
    let bytes = |text: &[u8]| match base64 {
        false => std::str::from_utf8(text).map(|_| text.to_vec()).map_err(|e| wrong(number, e)),
        true => BASE64_STANDARD.decode(text).map_err(|e| wrong(number, e)),
    };
    Ok(Line { number, key: bytes(key)?, value: bytes(value)?, ttl_ms })
}

#[cfg(test)]
mod tests {
    use super::*;

    type Told = Result<(String, String, Option<u64>), String>;

    fn read(text: &'static str, format: LoadFormat, base64: bool) -> Vec<Told> {
        let lines = Lines::of(Box::new(text.as_bytes()), format, base64);
        let text = |bytes| String::from_utf8(bytes).unwrap();
        lines
            .map(|line| line.map(|l| (text(l.key), text(l.value), l.ttl_ms)).map_err(|e| format!("{e:?}")))
            .collect()
    }

    fn record(key: &str, value: &str, ttl_ms: Option<u64>) -> Told {
        Ok((key.into(), value.into(), ttl_ms))
    }

    #[test]
    fn each_format_says_the_same() {
        let expected = [record("a", "x, \"y\"\n", None), record("b", "", Some(500))];
        assert_eq!(read("a,\"x, \"\"y\"\"\n\"\nb,,500\n", LoadFormat::Csv, false), expected);
        assert_eq!(read("a\t\"x, \"\"y\"\"\n\"\nb\t\t500\n", LoadFormat::Tsv, false), expected);
        let json =
            "{\"key\":\"a\",\"value\":\"x, \\\"y\\\"\\n\"}\n\n{\"key\":\"b\",\"value\":\"\",\"ttl_ms\":500}";
        assert_eq!(read(json, LoadFormat::Jsonl, false), expected);
        assert_eq!(read("YQ==,eHk=", LoadFormat::Csv, true), [record("a", "xy", None)]);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (text, format, base64, why) in [
            ("a,1\nb\n", LoadFormat::Csv, false, "line 2: 1 fields"),
            ("a,1\nb,2,soon\n", LoadFormat::Csv, false, "line 2: the lifetime"),
            ("a,1,0\n", LoadFormat::Csv, false, "line 1: a lifetime is at least"),
            (",1\n", LoadFormat::Csv, false, "line 1: "),
            ("a,*\n", LoadFormat::Csv, true, "line 1: "),
            ("{\"key\":\"a\"}\n", LoadFormat::Jsonl, false, "line 1: "),
            ("{\"key\":\"a\",\"value\":\"1\"}\n[]\n", LoadFormat::Jsonl, false, "line 2: "),
        ] {
            let read = read(text, format, base64);
            let error = read.into_iter().find_map(Result::err).unwrap();
            assert!(error.contains(why), "{error}");
        }
    }
}
