//! Commands to bytes, bytes to replies: as little as possible between what a server said and what is compared.

use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Far longer than any command takes.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reply {
    /// With its kind: `+OK`, `-ERR ..`, `:1`, `$-1`, `*-1`, `_`, and others of one line.
    Line(String),
    Bulk(Vec<u8>),
    Array(Vec<Reply>),
}

impl Reply {
    pub fn is_error(&self) -> bool {
        matches!(self, Self::Line(line) if line.starts_with('-'))
    }

    pub fn integer(&self) -> Option<i64> {
        match self {
            Self::Line(line) => line.strip_prefix(':')?.parse().ok(),
            _ => None,
        }
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(line) => f.write_str(line),
            Self::Bulk(bytes) => write!(f, "{:?}", bytes.escape_ascii().to_string()),
            Self::Array(items) => f.debug_list().entries(items.iter().map(ToString::to_string)).finish(),
        }
    }
}

pub struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    pub fn open(address: &str) -> Result<Self, String> {
        let failed = |e: std::io::Error| format!("{address}: {e}");
        let stream = TcpStream::connect(address).map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    pub fn send(&mut self, commands: &[Vec<Vec<u8>>]) -> Result<(), String> {
        let mut out = Vec::new();
        for words in commands {
            out.extend(format!("*{}\r\n", words.len()).into_bytes());
            for word in words {
                out.extend(format!("${}\r\n", word.len()).into_bytes());
                out.extend(word);
                out.extend(b"\r\n");
            }
        }
        self.stream.get_mut().write_all(&out).map_err(|e| format!("sending: {e}"))
    }

    pub fn read(&mut self) -> Result<Reply, String> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line).map_err(|e| format!("reading: {e}"))?;
        let text = String::from_utf8_lossy(line.strip_suffix(b"\r\n").ok_or("the connection was closed")?)
            .into_owned();
        let count = text.get(1..).and_then(|number| number.parse::<i64>().ok());
        match (text.as_bytes().first(), count) {
            (Some(b'$' | b'='), Some(len @ 0..)) => {
                let mut bytes = vec![0; len as usize + 2];
                self.stream.read_exact(&mut bytes).map_err(|e| format!("reading: {e}"))?;
                bytes.truncate(len as usize);
                Ok(Reply::Bulk(bytes))
            }
            (Some(b'*' | b'~'), Some(items @ 0..)) => {
                (0..items).map(|_| self.read()).collect::<Result<_, _>>().map(Reply::Array)
            }
            (Some(b'%'), Some(pairs @ 0..)) => {
                (0..2 * pairs).map(|_| self.read()).collect::<Result<_, _>>().map(Reply::Array)
            }
            _ => Ok(Reply::Line(text)),
        }
    }
}
