//! Records of csv and tsv: their fields, quoted as in RFC 4180, and the line in which each begins.
//!
//! A field that begins with a quote ends with one: a separator or the end of the line comes next, and a quote inside is doubled. In
//! other fields a quote is a character like any other. Lines end with LF, CRLF or CR; blank ones are passed over. What is otherwise is
//! refused: a quote too many would take all that follows into one value.
//!
//! Invariant: of a field no more is in memory than it may have.

use std::io::{BufRead, ErrorKind};

use sextant_common::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

use super::input::{base64_bytes, wrong};
use crate::exit::Failure;

const QUOTE: u8 = b'"';
pub const FIELDS_MAX: usize = 3;
/// Of a lifetime: digits, and spaces around them.
const TTL_BYTES_MAX: usize = 64;

/// A record as it stands there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// In which it begins.
    pub line: u64,
    /// One at least, [`FIELDS_MAX`] at the most.
    pub fields: Vec<Vec<u8>>,
}

pub struct Rows {
    from: Box<dyn BufRead>,
    separator: u8,
    base64: bool,
    /// Where it reads.
    line: u64,
    is_at_end: bool,
}

/// What comes after a field.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Field,
    Row,
}

impl Rows {
    pub fn new(from: Box<dyn BufRead>, separator: u8, base64: bool) -> Self {
        Self { from, separator, base64, line: 1, is_at_end: false }
    }

    /// None: there are no more.
    pub fn next_row(&mut self) -> Result<Option<Row>, Failure> {
        while let Some(end @ (b'\r' | b'\n')) = self.peek()? {
            self.pass();
            self.end_line(end)?;
        }
        if self.peek()?.is_none() {
            return Ok(None);
        }
        let mut row = Row { line: self.line, fields: Vec::with_capacity(FIELDS_MAX) };
        loop {
            if row.fields.len() == FIELDS_MAX {
                return Err(wrong(
                    row.line,
                    "more than 3 fields: a key, a value and perhaps a lifetime are expected",
                ));
            }
            let (field, next) = self.field(row.fields.len())?;
            row.fields.push(field);
            if next == Next::Row {
                return Ok(Some(row));
            }
        }
    }

    fn field(&mut self, at: usize) -> Result<(Vec<u8>, Next), Failure> {
        let is_quoted = self.peek()? == Some(QUOTE);
        let mut field =
            Field { bytes: Vec::new(), at, begun: self.line, is_quoted, bytes_max: self.bytes_max(at) };
        let end = match is_quoted {
            true => self.quoted(&mut field)?,
            false => {
                let separator = self.separator;
                self.take_until(|byte| byte == separator || matches!(byte, b'\r' | b'\n'), &mut field)?
            }
        };
        Ok((field.bytes, self.after(end)?))
    }

    /// Up to the byte after the closing quote, which is returned.
    fn quoted(&mut self, field: &mut Field) -> Result<Option<u8>, Failure> {
        self.pass();
        loop {
            if self.take_until(|byte| byte == QUOTE, field)?.is_none() {
                return Err(wrong(
                    field.begun,
                    "a quote is opened here, and not closed until the end of the file",
                ));
            }
            let next = self.peek()?;
            if next.is_some() {
                self.pass();
            }
            match next {
                Some(QUOTE) => field.extend(&[QUOTE])?,
                Some(byte) if byte != self.separator && !matches!(byte, b'\r' | b'\n') => {
                    let why = "text comes after a closing quote (a quote in a quoted field is doubled)";
                    return Err(wrong(self.line, why));
                }
                next => return Ok(next),
            }
        }
    }

    fn after(&mut self, end: Option<u8>) -> Result<Next, Failure> {
        match end {
            Some(end @ (b'\r' | b'\n')) => self.end_line(end).map(|()| Next::Row),
            Some(_) => Ok(Next::Field),
            None => Ok(Next::Row),
        }
    }

    /// CRLF is one end.
    fn end_line(&mut self, end: u8) -> Result<(), Failure> {
        self.line += 1;
        if end == b'\r' && self.peek()? == Some(b'\n') {
            self.pass();
        }
        Ok(())
    }

    /// Puts what comes before such a byte into the field, passes the byte and returns it; None: there is none any more.
    fn take_until(&mut self, is_end: impl Fn(u8) -> bool, field: &mut Field) -> Result<Option<u8>, Failure> {
        loop {
            let bytes = self.fill()?;
            if bytes.is_empty() {
                return Ok(None);
            }
            let end = bytes.iter().position(|byte| is_end(*byte));
            let taken = &bytes[..end.unwrap_or(bytes.len())];
            field.extend(taken)?;
            // (There are some in quoted fields only.)
            let lines = taken.iter().filter(|byte| **byte == b'\n').count() as u64;
            let (found, passed) = (end.map(|at| bytes[at]), taken.len() + usize::from(end.is_some()));
            self.line += lines;
            self.from.consume(passed);
            if found.is_some() {
                return Ok(found);
            }
        }
    }

    fn peek(&mut self) -> Result<Option<u8>, Failure> {
        self.fill().map(|bytes| bytes.first().copied())
    }

    /// What comes next; empty: nothing. (Who has said that there is nothing is not asked again: it may be a terminal.)
    fn fill(&mut self) -> Result<&[u8], Failure> {
        while !self.is_at_end {
            match self.from.fill_buf() {
                Ok([]) => self.is_at_end = true,
                Ok(_) => return self.from.fill_buf().map_err(|e| wrong(self.line, e)),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(wrong(self.line, e)),
            }
        }
        Ok(&[])
    }

    fn pass(&mut self) {
        self.from.consume(1);
    }

    fn bytes_max(&self, at: usize) -> usize {
        let bytes_max = match at {
            0 => KEY_BYTES_MAX,
            1 => VALUE_BYTES_MAX,
            _ => return TTL_BYTES_MAX,
        };
        if self.base64 { base64_bytes(bytes_max) } else { bytes_max }
    }
}

/// A field that is read.
struct Field {
    bytes: Vec<u8>,
    /// Which of the record's.
    at: usize,
    /// The line.
    begun: u64,
    is_quoted: bool,
    bytes_max: usize,
}

impl Field {
    fn extend(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        if self.bytes.len() + bytes.len() > self.bytes_max {
            return Err(self.too_long());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn too_long(&self) -> Failure {
        let why = match self.at {
            0 => "the key is longer than 16 KiB",
            1 => "the value is longer than 8 MiB",
            _ => "the lifetime is no number of milliseconds",
        };
        let hint = if self.is_quoted { "; or its quote is not closed" } else { "" };
        wrong(self.begun, format!("{why}{hint}"))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Read};

    use proptest::prelude::*;

    use super::*;

    type Told = Result<Vec<(u64, Vec<String>)>, String>;

    /// All records, or the first thing that is wrong. (Read in pieces of so many bytes.)
    fn read_in_pieces(text: &str, piece: usize) -> Told {
        let from = std::io::Cursor::new(text.to_owned().into_bytes());
        let mut rows = Rows::new(Box::new(BufReader::with_capacity(piece, from)), b',', false);
        let mut read = Vec::new();
        while let Some(row) = rows.next_row().map_err(|e| format!("{e:?}"))? {
            let fields = row.fields.into_iter().map(|field| String::from_utf8(field).unwrap());
            read.push((row.line, fields.collect()));
        }
        Ok(read)
    }

    fn read(text: &str) -> Told {
        let read = read_in_pieces(text, 4096);
        for piece in [1, 2, 3, 7] {
            assert_eq!(read_in_pieces(text, piece), read, "in pieces of {piece}");
        }
        read
    }

    fn rows(rows: &[(u64, &[&str])]) -> Told {
        let row = |(line, fields): &(u64, &[&str])| (*line, fields.iter().map(|f| (*f).to_owned()).collect());
        Ok(rows.iter().map(row).collect())
    }

    fn assert_refused(text: &str, why: &str) {
        let error = read(text).unwrap_err();
        assert!(error.contains(why), "{text:?}: {error}");
    }

    #[test]
    fn a_quote_that_is_not_closed_takes_no_records_along() {
        let unclosed = "a quote is opened here";
        assert_refused("g1,v1\ng2,\"v2\ng3,v3\ng4,v4\n", &format!("line 2: {unclosed}"));
        assert_refused("a,\"", &format!("line 1: {unclosed}"));
        assert_refused("a,1\n\"b", &format!("line 2: {unclosed}"));
        assert_refused("a,\"x\"\"", &format!("line 1: {unclosed}"));
        assert_refused("\"a\nb\",\"x", &format!("line 2: {unclosed}"));
    }

    #[test]
    fn text_after_a_closing_quote_is_refused() {
        for (text, line) in [
            ("d1,\"v\"garbage\"\n", 1),
            ("a,1\n\"kx\"z,v\n", 2),
            ("a,\"v\" \n", 1),
            ("a,\"v\nw\"x\n", 2),
            ("a,\"v\"\0\n", 1),
        ] {
            assert_refused(text, &format!("line {line}: text comes after a closing quote"));
        }
    }

    #[test]
    fn what_is_quoted_well_is_read_with_the_line_in_which_it_begins() {
        let text = "\"a\",\"x, \"\"y\"\"\"\r\n\"b\",\"1\r\n2\n3\"\n\n\r\nc,\"\"\rd,\"\"\"\",5";
        let expected: [(u64, &[&str]); 4] =
            [(1, &["a", "x, \"y\""]), (2, &["b", "1\r\n2\n3"]), (7, &["c", ""]), (8, &["d", "\"", "5"])];
        assert_eq!(read(text), rows(&expected));
    }

    #[test]
    fn the_last_line_needs_no_end() {
        for end in ["", "\n", "\r\n", "\r", "\n\n", "\r\n\r\n"] {
            assert_eq!(read(&format!("a,1{end}")), rows(&[(1, &["a", "1"])]), "{end:?}");
            assert_eq!(read(&format!("a,\"1\"{end}")), rows(&[(1, &["a", "1"])]), "{end:?}");
            assert_eq!(read(&format!("a,{end}")), rows(&[(1, &["a", ""])]), "{end:?}");
            assert_eq!(read(end), rows(&[]), "{end:?}");
        }
    }

    #[test]
    fn a_quote_inside_a_field_that_does_not_begin_with_one_is_a_character() {
        assert_eq!(read("a,5\" pipe\nb, \"x\"\n"), rows(&[(1, &["a", "5\" pipe"]), (2, &["b", " \"x\""])]));
    }

    #[test]
    fn a_fourth_field_is_refused_before_it_is_read() {
        assert_refused("a,1\nb,2,3,4\n", "line 2: more than 3 fields");
        assert_refused("b,2,3,", "line 1: more than 3 fields");
    }

    /// Says how much of it was read.
    struct Endless {
        begin: &'static [u8],
        read: std::sync::Arc<std::sync::atomic::AtomicUsize>,
    }

    impl Read for Endless {
        fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
            let bytes = match self.begin.is_empty() {
                true => {
                    to.fill(b'x');
                    to.len()
                }
                false => self.begin.read(to)?,
            };
            self.read.fetch_add(bytes, std::sync::atomic::Ordering::Relaxed);
            Ok(bytes)
        }
    }

    #[test]
    fn what_is_too_long_is_refused_as_soon_as_it_is() {
        let begins: [(&[u8], bool, usize, &str); 5] = [
            (b"a,1\nb,", false, VALUE_BYTES_MAX, "line 2: the value is longer than 8 MiB\""),
            (b"a,1\n\nb,\"", false, VALUE_BYTES_MAX, "line 3: the value is longer than 8 MiB; or its quote"),
            (b"a,1\n", false, KEY_BYTES_MAX, "line 2: the key is longer than 16 KiB\""),
            (b"a,", true, VALUE_BYTES_MAX / 3 * 4, "line 1: the value is longer than 8 MiB\""),
            (b"a,1,", false, TTL_BYTES_MAX, "line 1: the lifetime is no number"),
        ];
        for (begin, base64, bytes_max, why) in begins {
            let read = std::sync::Arc::<std::sync::atomic::AtomicUsize>::default();
            let endless = Endless { begin, read: read.clone() };
            let mut rows = Rows::new(Box::new(BufReader::new(endless)), b',', base64);
            let error = loop {
                match rows.next_row() {
                    Ok(row) => assert!(row.is_some()),
                    Err(e) => break format!("{e:?}"),
                }
            };
            assert!(error.contains(why), "{error}");
            let read = read.load(std::sync::atomic::Ordering::Relaxed);
            assert!(read < bytes_max + 100_000, "{read} bytes");
        }
    }

    #[test]
    fn the_longest_key_and_value_are_read() {
        let (key, value) = ("k".repeat(KEY_BYTES_MAX), "v".repeat(VALUE_BYTES_MAX));
        let read = read_in_pieces(&format!("{key},{value}\n\"{key}\",\"{value}\"\n"), 4096);
        assert!(read == rows(&[(1, &[&key, &value]), (2, &[&key, &value])]));
    }

    fn quoted(field: &str, always: bool) -> String {
        let needs = field.contains([',', '"', '\r', '\n']);
        if always || needs { format!("\"{}\"", field.replace('"', "\"\"")) } else { field.to_owned() }
    }

    proptest! {
        /// Whatever is in them, fields that are quoted as they should come back, and in the lines that they are in.
        #[test]
        fn fields_are_read_as_they_were_written(
            records in prop::collection::vec(("[a,\"\r\n]{0,5}", "[b,\"\r\n]{0,5}", prop::option::of("[0-9]{0,3}")), 0..20),
            always in any::<bool>(),
            end in prop::sample::select(vec!["\n", "\r\n"]),
            piece in 1usize..9,
        ) {
            let (mut text, mut expected) = (String::new(), Vec::new());
            for (key, value, ttl) in records {
                let line = 1 + text.bytes().filter(|byte| *byte == b'\n').count() as u64;
                let fields: Vec<String> = [key, value].into_iter().chain(ttl).collect();
                let written: Vec<String> = fields.iter().map(|field| quoted(field, always)).collect();
                text += &written.join(",");
                text += end;
                expected.push((line, fields));
            }
            prop_assert_eq!(read_in_pieces(&text, piece), Ok(expected));
        }
    }
}
