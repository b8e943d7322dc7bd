//! A connection that speaks the Redis protocol: requests out, replies in.

use std::io;

use bytes::{Buf, BytesMut};
use sextant_checker::{Command, Reply};
use sextant_environment::Env;
use sextant_environment::env::{Connection, Whom};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub(crate) struct Wire {
    io: Connection,
    read: BytesMut,
}

impl Wire {
    pub async fn connect(env: &Env, addr: &str) -> io::Result<Self> {
        let io = env.net.connect(addr.to_owned(), Whom::Host).await?;
        Ok(Self { io, read: BytesMut::new() })
    }

    /// Sends commands at once; their replies. Errors are whole texts.
    pub async fn exchange(&mut self, commands: &[Command]) -> io::Result<Vec<Reply>> {
        let mut request = Vec::new();
        for command in commands {
            request.extend_from_slice(format!("*{}\r\n", command.len()).as_bytes());
            for word in command {
                request.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
            }
        }
        self.io.write_all(&request).await?;
        self.io.flush().await?;
        let mut replies = Vec::with_capacity(commands.len());
        while replies.len() < commands.len() {
            let mut at = 0;
            match parse(&self.read, &mut at)? {
                Some(reply) => {
                    self.read.advance(at);
                    replies.push(reply);
                }
                None if self.io.read_buf(&mut self.read).await? == 0 => {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                None => {}
            }
        }
        Ok(replies)
    }
}

fn wrong() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "no reply of the Redis protocol")
}

/// The reply that begins `at` some place, which then is that behind it. None: there is more to come.
fn parse(bytes: &[u8], at: &mut usize) -> io::Result<Option<Reply>> {
    let rest = bytes.get(*at..).unwrap_or_default();
    let Some(end) = rest.windows(2).position(|two| two == b"\r\n") else { return Ok(None) };
    let line = std::str::from_utf8(&rest[..end]).map_err(|_| wrong())?;
    *at += end + 2;
    let (sign, text) = line.split_at_checked(1).ok_or_else(wrong)?;
    let number = || text.parse::<i64>().map_err(|_| wrong());
    Ok(Some(match sign {
        "+" => Reply::text(text),
        "-" => Reply::error(text),
        ":" => Reply::Int(number()?),
        "$" | "*" if number()? < 0 => Reply::Nil,
        "$" => {
            let end = *at + number()? as usize;
            let Some(text) = bytes.get(*at..end).filter(|_| bytes.len() >= end + 2) else { return Ok(None) };
            *at = end + 2;
            Reply::text(std::str::from_utf8(text).map_err(|_| wrong())?)
        }
        "*" => {
            let mut replies = Vec::new();
            for _ in 0..number()? {
                let Some(reply) = parse(bytes, at)? else { return Ok(None) };
                replies.push(reply);
            }
            Reply::List(replies)
        }
        _ => return Err(wrong()),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_read_once_it_is_whole() {
        let bytes = b"*5\r\n+OK\r\n:-7\r\n$3\r\na\r\n\r\n*-1\r\n-ERR no\r\n:1\r\n";
        for end in 0..bytes.len() - 4 {
            assert_eq!(parse(&bytes[..end], &mut 0).unwrap(), None, "{end}");
        }
        let mut at = 0;
        let reply = parse(bytes, &mut at).unwrap().unwrap();
        let parts =
            [Reply::text("OK"), Reply::Int(-7), Reply::text("a\r\n"), Reply::Nil, Reply::error("ERR no")];
        assert_eq!(reply, Reply::List(parts.into()));
        assert_eq!(parse(bytes, &mut at).unwrap(), Some(Reply::Int(1)));
        for wrong in [&b"?x\r\n"[..], b":x\r\n", b"\r\n", b"$x\r\n"] {
            parse(wrong, &mut 0).unwrap_err();
        }
    }
}
