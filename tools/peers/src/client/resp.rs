//! GET and SET over RESP2, as bytes.

use sextant_common::error::{Error, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Answer;
use crate::load::{KEY_BYTES, Operation, VALUE_BYTES, key, value};

/// More than a batch of replies.
const READ_BYTES: usize = 64 << 10;
/// How much of an error reply is kept: its kind.
const REFUSAL_WORDS: usize = 1;

pub struct Client {
    socket: TcpStream,
    out: Vec<u8>,
    read: Vec<u8>,
}

impl Client {
    pub async fn connect(address: &str) -> Result<Self> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        Ok(Self { socket, out: Vec::new(), read: Vec::with_capacity(READ_BYTES) })
    }
}

impl super::Client for Client {
    async fn batch(&mut self, operations: &[Operation], answers: &mut Vec<Answer>) -> Result<()> {
        self.out.clear();
        operations.iter().for_each(|operation| encode(operation, &mut self.out));
        self.socket.write_all(&self.out).await?;
        let mut parsed = 0;
        while answers.len() < operations.len() {
            match parse(&self.read[parsed..])? {
                Some((answer, bytes)) => {
                    answers.push(answer);
                    parsed += bytes;
                }
                None => {
                    self.read.drain(..parsed);
                    parsed = 0;
                    if self.socket.read_buf(&mut self.read).await? == 0 {
                        return Err(Error::unavailable("the server has closed the connection"));
                    }
                }
            }
        }
        self.read.drain(..parsed);
        Ok(())
    }
}

fn encode(operation: &Operation, out: &mut Vec<u8>) {
    match *operation {
        Operation::Get { number, .. } => {
            out.extend_from_slice(b"*2\r\n$3\r\nGET\r\n");
            bulk(&key(number), KEY_BYTES, out);
        }
        Operation::Set { number } => {
            out.extend_from_slice(b"*3\r\n$3\r\nSET\r\n");
            bulk(&key(number), KEY_BYTES, out);
            bulk(&value(number), VALUE_BYTES, out);
        }
    }
}

fn bulk(bytes: &[u8], len: usize, out: &mut Vec<u8>) {
    // Never fails: a vector takes it.
    let _ = std::io::Write::write_fmt(out, format_args!("${len}\r\n"));
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// The first reply and its length; `None` if it is not whole yet.
fn parse(bytes: &[u8]) -> Result<Option<(Answer, usize)>> {
    let Some(line) = bytes.windows(2).position(|pair| pair == b"\r\n") else { return Ok(None) };
    let text = || String::from_utf8_lossy(&bytes[1..line]).into_owned();
    let answer = match bytes[0] {
        b'+' => Answer::Written,
        b'-' => Answer::Refused(text().split(' ').take(REFUSAL_WORDS).collect::<Vec<_>>().join(" ")),
        b'$' if &bytes[1..line] == b"-1" => Answer::Value(None),
        b'$' => {
            let len: usize =
                text().parse().map_err(|_| Error::internal(format!("not a length: {:?}", text())))?;
            let end = line + 2 + len + 2;
            return Ok((bytes.len() >= end).then_some((Answer::Value(Some(len)), end)));
        }
        other => return Err(Error::internal(format!("not a reply to GET or SET: {:?}", char::from(other)))),
    };
    Ok(Some((answer, line + 2)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_their_bytes() {
        let mut out = Vec::new();
        encode(&Operation::Get { number: 7, exists: true }, &mut out);
        assert_eq!(out, b"*2\r\n$3\r\nGET\r\n$16\r\nkey:000000000007\r\n");
        out.clear();
        encode(&Operation::Set { number: 7 }, &mut out);
        assert!(out.starts_with(b"*3\r\n$3\r\nSET\r\n$16\r\nkey:000000000007\r\n$100\r\n"));
        assert_eq!(out.len(), 13 + 5 + 16 + 2 + 6 + 100 + 2);
    }

    #[test]
    fn replies_are_taken_one_by_one_and_only_whole() {
        let replies = b"+OK\r\n$3\r\nabc\r\n$-1\r\n-TRYAGAIN later\r\n$5\r\nab";
        let (mut at, mut answers) = (0, Vec::new());
        while let Some((answer, bytes)) = parse(&replies[at..]).unwrap() {
            answers.push(answer);
            at += bytes;
        }
        let refused = Answer::Refused("TRYAGAIN".to_owned());
        assert_eq!(answers, [Answer::Written, Answer::Value(Some(3)), Answer::Value(None), refused]);
        assert_eq!(&replies[at..], b"$5\r\nab");
        assert!(parse(b"%1\r\n").is_err() && parse(b"$x\r\n").is_err());
        assert!(parse(b"").unwrap().is_none());
    }
}
