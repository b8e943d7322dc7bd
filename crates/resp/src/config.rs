//! Settings of the front end.

use std::path::PathBuf;
use std::time::Duration;

use crate::command::READ_BYTES_MAX;
use serde::{Deserialize, Serialize};
use sextant_common::{Error, Result};
use sextant_environment::config::{FileMode, UnixListen, check_listens};

/// Least `max_request_bytes`: the longest inline request must fit.
const REQUEST_BYTES_MIN: usize = 64 * 1024;
/// Most `max_request_bytes`: offsets in a request are 32-bit.
const REQUEST_BYTES_MAX: usize = 1024 * 1024 * 1024;
/// Most threads: beyond that somebody mistook the unit.
const THREADS_MAX: usize = 256;

/// Redis' figure.
pub const TCP_KEEPALIVE_S_DEFAULT: u64 = 300;
/// Most that the kernel takes.
const TCP_KEEPALIVE_S_MAX: u64 = 32_767;

/// In which order the commands of a pipeline take effect. Replies come in theirs, whatever this is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Those that touch the same key, one of them writing, in theirs; others side by side.
    #[default]
    Keys,
    /// Each after those before it, as in Redis. A pipeline takes as long then as its commands one by one.
    Pipeline,
}

/// How long commands wait for others at most. For tests, which wait for conditions and not for time: whatever the machine, they need
/// longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// So long after a key was marked others let pass who [repeats](crate::repeats) on it: less than those in a line wait, and far
    /// longer than a batch takes that nobody comes between.
    pub let_pass: Duration,
    /// For a turn to take something, when the time of a command that waits is over: it does not look again.
    pub last_turn: Duration,
    /// In the line of a key. Whoever has waited longer when the next ones go is refused: those before it have met nobody who answers.
    pub in_line: Duration,
    /// For others, who come between again and again: no attempt begins later.
    pub attempts: Duration,
    /// For room for a long reply, while others' clients take theirs.
    pub reply: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            let_pass: Duration::from_secs(2),
            last_turn: Duration::from_secs(2),
            in_line: Duration::from_secs(5),
            attempts: Duration::from_secs(10),
            reply: Duration::from_secs(5),
        }
    }
}

/// Plain data; every field has a default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RespConfig {
    /// `host:port` to listen on; port 0 takes any free one. Empty: only on a Unix socket.
    pub listen: String,
    /// Path of a Unix socket to listen on as well.
    pub unix: Option<PathBuf>,
    /// Permissions of its file.
    pub unix_mode: FileMode,
    /// Connections beyond this are told `ERR max number of clients reached` and closed.
    pub max_connections: usize,
    /// Commands of one connection that may be started and not yet answered. The rest waits in the socket. Together with
    /// the size of values this bounds the memory of a connection.
    pub max_pipeline: usize,
    /// Commands of all connections that may be started and not yet answered. The rest waits in the sockets, and connections
    /// take turns, so that one with a deep pipeline does not keep the others from being served. As many again are for
    /// connections that have nothing under way: these do not wait behind pipelines (whoever sends several commands at once, not for
    /// more than 50 ms).
    pub max_commands: usize,
    /// Bytes of long requests (those of more than 64 KiB) that may be in memory, of all connections. The room is taken before such a
    /// one is read, and given back when it is answered. As many again are for commands that wait for `EXEC`, and as many for keys that
    /// commands wait for.
    pub max_large_bytes: usize,
    /// How long such a one waits for room, in milliseconds: then it is answered `OOM`, and not received.
    pub large_patience_ms: u64,
    /// Bytes of long replies (more than 64 KiB) that may wait for their clients, of all connections. What finds no room is
    /// answered `TRYAGAIN`.
    pub max_reply_bytes: usize,
    /// Bytes of replies to reads of objects that are remembered while their objects do not change. 0: none is.
    pub max_remembered_bytes: usize,
    /// Bytes that commands on objects, and transactions, may have read and made, of all connections. By default as much as one alone
    /// may read, what that takes beside, and its reply.
    pub max_gathered_bytes: usize,
    /// Longest request (one command with all its arguments), in bytes.
    pub max_request_bytes: usize,
    /// A connection without traffic and without a command under way is closed after one to one and a half times this long.
    /// 0: never.
    pub idle_timeout_ms: u64,
    /// A client that has sent nothing for so many seconds is asked by the kernel whether it is still there, and after as long again its
    /// connection fails: one that waits for ever does not outlive its host. 0: it is not asked. (Redis' `tcp-keepalive`.)
    pub tcp_keepalive_s: u64,
    /// Of the commands of a pipeline, until a connection asks for another (`CLIENT ORDER`).
    pub order: Order,
    /// Threads that serve connections, each with its own single-threaded runtime: the fastest way to serve small commands.
    /// 0: connections are served on the runtime that started the server.
    pub threads: usize,
    /// In no file.
    #[serde(skip)]
    pub patience: Patience,
}

impl Default for RespConfig {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:6379".into(),
            unix: None,
            unix_mode: FileMode::default(),
            max_connections: 10_000,
            max_pipeline: 1024,
            max_commands: 1024,
            max_large_bytes: 64 * 1024 * 1024,
            large_patience_ms: 10_000,
            max_reply_bytes: 64 * 1024 * 1024,
            max_remembered_bytes: 16 * 1024 * 1024,
            max_gathered_bytes: 3 * READ_BYTES_MAX,
            max_request_bytes: 64 * 1024 * 1024,
            idle_timeout_ms: 0,
            tcp_keepalive_s: TCP_KEEPALIVE_S_DEFAULT,
            order: Order::Keys,
            threads: 1,
            patience: Patience::default(),
        }
    }
}

impl RespConfig {
    pub fn validate(&self) -> Result<()> {
        let bad = |what: String| Err(Error::invalid(what));
        if !self.listen.is_empty() || self.unix.is_none() {
            check_listens("resp.listen", &self.listen)?;
        }
        if let Some(unix) = self.unix_listen() {
            unix.check("resp.unix")?;
        }
        if self.max_connections == 0 {
            return bad("resp.max_connections must be at least 1".into());
        }
        if self.max_pipeline == 0 {
            return bad("resp.max_pipeline must be at least 1".into());
        }
        if self.max_commands == 0 {
            return bad("resp.max_commands must be at least 1".into());
        }
        if self.max_large_bytes == 0 || self.max_reply_bytes == 0 {
            return bad("resp.max_large_bytes and max_reply_bytes must be at least 1".into());
        }
        if !(REQUEST_BYTES_MIN..=REQUEST_BYTES_MAX).contains(&self.max_request_bytes) {
            return bad(format!(
                "resp.max_request_bytes is {}: {REQUEST_BYTES_MIN} to {REQUEST_BYTES_MAX}",
                self.max_request_bytes
            ));
        }
        if self.threads > THREADS_MAX {
            return bad(format!("resp.threads is {}: at most {THREADS_MAX}", self.threads));
        }
        if self.tcp_keepalive_s > TCP_KEEPALIVE_S_MAX {
            let seconds = self.tcp_keepalive_s;
            return bad(format!("tcp_keepalive_s is {seconds}: at most {TCP_KEEPALIVE_S_MAX}"));
        }
        Ok(())
    }

    pub(crate) fn tcp_keepalive(&self) -> Option<Duration> {
        (self.tcp_keepalive_s > 0).then(|| Duration::from_secs(self.tcp_keepalive_s))
    }

    pub(crate) fn unix_listen(&self) -> Option<UnixListen> {
        let path = self.unix.clone()?;
        Some(UnixListen { path, mode: self.unix_mode })
    }

    pub(crate) fn idle_timeout(&self) -> Option<Duration> {
        (self.idle_timeout_ms > 0).then(|| Duration::from_millis(self.idle_timeout_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_unknown_fields_are_reported() {
        RespConfig::default().validate().unwrap();
        let parsed: RespConfig = toml::from_str("listen = '0.0.0.0:7000'\nthreads = 2").unwrap();
        assert_eq!(parsed.threads, 2);
        assert_eq!(parsed.max_pipeline, RespConfig::default().max_pipeline);
        assert!(toml::from_str::<RespConfig>("max_pipelines = 1").is_err());
    }

    #[test]
    fn nonsense_is_refused() {
        for change in [
            |c: &mut RespConfig| c.listen = "6379".into(),
            |c: &mut RespConfig| c.listen = String::new(),
            |c: &mut RespConfig| c.unix = Some("/run/".into()),
            |c: &mut RespConfig| c.max_connections = 0,
            |c: &mut RespConfig| c.max_pipeline = 0,
            |c: &mut RespConfig| c.max_commands = 0,
            |c: &mut RespConfig| c.max_large_bytes = 0,
            |c: &mut RespConfig| c.max_reply_bytes = 0,
            |c: &mut RespConfig| c.max_request_bytes = 1024,
            |c: &mut RespConfig| c.max_request_bytes = usize::MAX,
            |c: &mut RespConfig| c.threads = 100_000,
            |c: &mut RespConfig| c.tcp_keepalive_s = 100_000,
        ] {
            let mut config = RespConfig::default();
            change(&mut config);
            assert!(config.validate().is_err(), "{config:?}");
        }
    }
}
