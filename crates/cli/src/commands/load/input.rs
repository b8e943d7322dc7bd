//! Lines of a file become records. What is wrong is told with the line's number.
//!
//! * csv, tsv: key, value and perhaps a lifetime in milliseconds, separated by a comma or a tab; quoted as in RFC 4180.
//! * jsonl: an object in each line, with `key`, `value` and perhaps `ttl_ms`.
//!
//! Keys and values are UTF-8, or with `base64` any bytes, encoded (RFC 4648, with padding). A byte order mark at the beginning is passed
//! over.

use std::fs::File;
use std::io::{BufRead, BufReader, Cursor, Read};
use std::path::Path;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use sextant_common::expiry::Tick;
use sextant_common::limits::{VALUE_BYTES_MAX, check_key, check_value};

use super::separated::{Row, Rows};
use super::sort::Record;
use crate::args::LoadFormat;
use crate::exit::Failure;

/// Of jsonl: a value with escapes is longer than its bytes.
const LINE_BYTES_MAX: usize = 8 * VALUE_BYTES_MAX;
const BUFFER_BYTES: usize = 64 * 1024;
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

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
    Separated(Rows),
    Json { lines: Box<dyn BufRead>, number: u64 },
}

pub struct Lines {
    reader: Reader,
    base64: bool,
}

impl Lines {
    /// `-`: standard input.
    pub fn open(file: &Path, format: LoadFormat, base64: bool) -> Result<Self, Failure> {
        let failed = |e: std::io::Error| Failure::usage(format!("{}: {e}", file.display()));
        if file.as_os_str() == "-" {
            return Self::of(Box::new(std::io::stdin()), format, base64).map_err(failed);
        }
        let opened = File::open(file).map_err(failed)?;
        if opened.metadata().map_err(failed)?.is_dir() {
            return Err(Failure::usage(format!("{}: it is a directory", file.display())));
        }
        Self::of(Box::new(opened), format, base64).map_err(failed)
    }

    fn of(bytes: Box<dyn Read>, format: LoadFormat, base64: bool) -> std::io::Result<Self> {
        let lines = without_mark(bytes)?;
        let reader = match format {
            LoadFormat::Csv => Reader::Separated(Rows::new(lines, b',', base64)),
            LoadFormat::Tsv => Reader::Separated(Rows::new(lines, b'\t', base64)),
            LoadFormat::Jsonl => Reader::Json { lines, number: 0 },
        };
        Ok(Self { reader, base64 })
    }

    fn next_line(&mut self) -> Option<Result<Line, Failure>> {
        match &mut self.reader {
            Reader::Separated(rows) => {
                let row = rows.next_row().transpose()?;
                Some(row.and_then(|row| separated(row, self.base64)))
            }
            Reader::Json { lines, number } => loop {
                let mut text = Vec::new();
                *number += 1;
                match lines.by_ref().take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut text) {
                    Ok(0) => return None,
                    Ok(_) if text.len() > LINE_BYTES_MAX => {
                        return Some(Err(wrong(*number, "it is longer than 64 MiB")));
                    }
                    Ok(_) if text.trim_ascii().is_empty() => {}
                    Ok(_) => return Some(json(*number, text.trim_ascii(), self.base64)),
                    Err(e) => return Some(Err(wrong(*number, e))),
                }
            },
        }
    }
}

/// What other programs put before UTF-8 is none of the first key.
fn without_mark(mut bytes: Box<dyn Read>) -> std::io::Result<Box<dyn BufRead>> {
    let mut first = Vec::new();
    bytes.by_ref().take(BYTE_ORDER_MARK.len() as u64).read_to_end(&mut first)?;
    if first == BYTE_ORDER_MARK {
        first.clear();
    }
    Ok(Box::new(BufReader::with_capacity(BUFFER_BYTES, Cursor::new(first).chain(bytes))))
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

pub fn wrong(number: u64, why: impl std::fmt::Display) -> Failure {
    Failure::usage(format!("line {number}: {why}"))
}

/// How long so many bytes are in base64.
pub fn base64_bytes(bytes: usize) -> usize {
    bytes.div_ceil(3) * 4
}

fn separated(Row { line: number, fields }: Row, base64: bool) -> Result<Line, Failure> {
    let mut fields = fields.into_iter();
    let (Some(key), Some(value)) = (fields.next(), fields.next()) else {
        return Err(wrong(number, "1 field: a key, a value and perhaps a lifetime are expected"));
    };
    let ttl_ms = match fields.next() {
        Some(text) if !text.is_empty() => {
            let ttl_ms = std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok());
            Some(ttl_ms.ok_or_else(|| wrong(number, "the lifetime is no number of milliseconds"))?)
        }
        _ => None,
    };
    line(number, key, value, ttl_ms, base64)
}

fn json(number: u64, text: &[u8], base64: bool) -> Result<Line, Failure> {
    if !text.starts_with(b"{") {
        return Err(wrong(
            number,
            "it has to be an object: {\"key\": \"..\", \"value\": \"..\"}, perhaps with \"ttl_ms\": 1000",
        ));
    }
    // (It is given one line, and does not know which.)
    let wrong_at =
        |e: serde_json::Error| wrong(number, e.to_string().replace(" at line 1 column ", " at column "));
    let Json { key, value, ttl_ms } = serde_json::from_slice(text).map_err(wrong_at)?;
    line(number, key.into_bytes(), value.into_bytes(), ttl_ms, base64)
}

fn line(
    number: u64,
    key: Vec<u8>,
    value: Vec<u8>,
    ttl_ms: Option<u64>,
    base64: bool,
) -> Result<Line, Failure> {
    if ttl_ms == Some(0) {
        return Err(wrong(number, "a lifetime is at least 1 ms"));
    }
    let bytes = |text: Vec<u8>| match base64 {
        false => String::from_utf8(text).map(String::into_bytes).map_err(|e| wrong(number, e)),
        true => BASE64_STANDARD.decode(text).map_err(|e| wrong(number, e)),
    };
    Ok(Line { number, key: bytes(key)?, value: bytes(value)?, ttl_ms })
}

#[cfg(test)]
mod tests {
    use super::*;

    type Told = Result<(String, String, Option<u64>), String>;

    fn read(text: &'static str, format: LoadFormat, base64: bool) -> Vec<Told> {
        let lines = Lines::of(Box::new(text.as_bytes()), format, base64).unwrap();
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
            ("a,1\nb\n", LoadFormat::Csv, false, "line 2: 1 field"),
            ("a,1\nb,2,soon\n", LoadFormat::Csv, false, "line 2: the lifetime"),
            ("a,1,0\n", LoadFormat::Csv, false, "line 1: a lifetime is at least"),
            (",1\n", LoadFormat::Csv, false, "line 1: "),
            ("a,*\n", LoadFormat::Csv, true, "line 1: "),
            ("{\"key\":\"a\"}\n", LoadFormat::Jsonl, false, "line 1: "),
            (
                "{\"key\":\"a\",\"value\":\"1\"}\n[]\n",
                LoadFormat::Jsonl,
                false,
                "line 2: it has to be an object",
            ),
            ("[\"a\",\"1\",null]\n", LoadFormat::Jsonl, false, "line 1: it has to be an object"),
            ("\n{\"key\":\"a\"}\n", LoadFormat::Jsonl, false, "line 2: missing field `value` at column 11"),
            ("\n{\"key\":\"a\"\n", LoadFormat::Jsonl, false, "at column 10"),
            ("a,1\nb,\"2\nc,3\n", LoadFormat::Csv, false, "line 2: a quote is opened"),
            ("a\t\"1\"2\n", LoadFormat::Tsv, false, "line 1: text comes after"),
        ] {
            let read = read(text, format, base64);
            let error = read.into_iter().find_map(Result::err).unwrap();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_first_record() {
        let (expected, json) = ([record("a", "1", None)], "\u{feff}{\"key\":\"a\",\"value\":\"1\"}");
        assert_eq!(read(json, LoadFormat::Jsonl, false), expected);
        for text in ["\u{feff}a,1\n", "\u{feff}\"a\",\"1\"", "\u{feff}\n\na,1"] {
            assert_eq!(read(text, LoadFormat::Csv, false), expected);
        }
        assert_eq!(read("\u{feff}", LoadFormat::Csv, false), []);
        // Only there: elsewhere, and of another key, it is a character.
        let text = "b,2\n\u{feff}a,1\n";
        assert_eq!(read(text, LoadFormat::Csv, false)[1], record("\u{feff}a", "1", None));
    }

    #[test]
    fn a_line_of_json_is_read_so_far_and_no_further() {
        let long = std::io::repeat(b'x').take(10 * LINE_BYTES_MAX as u64);
        let text = Box::new(Cursor::new(b"{\"key\":\"").chain(long));
        let mut lines = Lines::of(text, LoadFormat::Jsonl, false).unwrap();
        let error = lines.next().unwrap().unwrap_err();
        assert!(format!("{error:?}").contains("line 1: it is longer than 64 MiB"));
    }

    #[test]
    fn a_directory_is_no_input() {
        let dir = tempfile::tempdir().unwrap();
        let error = Lines::open(dir.path(), LoadFormat::Csv, false).map(drop).unwrap_err();
        assert!(format!("{error:?}").contains("it is a directory"));
    }
}
