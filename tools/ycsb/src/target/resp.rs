//! Through p-nodes over RESP: GET, SET, SET NX on plain strings. Each thread has a connection of its own.

use std::time::Duration;

use bytes::Bytes;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisError};
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::operation::ReadMode;
use sextant_environment::config::host_port;
use sextant_environment::env::Names;

use super::{Target, Thread, no_scans};

pub struct Resp {
    addrs: Vec<String>,
    deadline: Duration,
}

impl Resp {
    pub fn new(addrs: &[String], deadline: Duration) -> Result<Self> {
        for addr in addrs {
            let bad = || Error::invalid(format!("bad address {addr:?}: not host:port"));
            host_port(addr).ok_or_else(bad)?;
        }
        Ok(Self { addrs: addrs.to_vec(), deadline })
    }
}

impl Target for Resp {
    type Thread = RespThread;

    async fn thread(&self, index: usize, _mode: ReadMode) -> Result<RespThread> {
        let addr = self.addrs[index % self.addrs.len()].clone();
        let connection = connect(&addr, self.deadline).await?;
        Ok(RespThread { addr, deadline: self.deadline, connection: Some(connection) })
    }

    fn p_nodes(&self) -> usize {
        self.addrs.len()
    }
}

/// To the first of its addresses that takes the connection: names are resolved as servers do it.
async fn connect(addr: &str, deadline: Duration) -> Result<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(deadline))
        .set_response_timeout(Some(deadline));
    let unavailable = |e: std::io::Error| Error::unavailable(e.to_string());
    let mut failed = None;
    for address in Names::default().resolve(addr).await.map_err(unavailable)? {
        let client = redis::Client::open(format!("redis://{address}/")).map_err(error)?;
        match client.get_multiplexed_async_connection_with_config(&config).await {
            Ok(connection) => return Ok(connection),
            Err(e) => failed = Some(error(e)),
        }
    }
    Err(failed.unwrap_or_else(|| Error::unavailable(format!("{addr} has no address"))))
}

pub struct RespThread {
    addr: String,
    deadline: Duration,
    /// None: it was lost; the next operation connects again.
    connection: Option<MultiplexedConnection>,
}

impl RespThread {
    pub(super) async fn query<T: redis::FromRedisValue>(
        &mut self,
        command: &redis::Cmd,
        writes: bool,
    ) -> Result<T> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            None => self.connection.insert(connect(&self.addr, self.deadline).await?),
        };
        command.query_async(connection).await.map_err(|e| {
            let refused = e.code().is_some() || matches!(e.kind(), redis::ErrorKind::Server(_));
            let error = error(e);
            if !refused {
                // Only a new connection is known to be in step again.
                self.connection = None;
                if writes {
                    return Error::new(ErrorKind::OutcomeUnknown, error.message);
                }
            }
            error
        })
    }
}

impl Thread for RespThread {
    async fn read(&mut self, key: Bytes) -> Result<Option<Bytes>> {
        self.query(redis::cmd("GET").arg(&key[..]), false).await
    }

    async fn put(&mut self, key: Bytes, value: Bytes) -> Result<()> {
        self.query(redis::cmd("SET").arg(&key[..]).arg(&value[..]), true).await
    }

    async fn insert(&mut self, key: Bytes, value: Bytes) -> Result<bool> {
        let reply: Option<String> =
            self.query(redis::cmd("SET").arg(&key[..]).arg(&value[..]).arg("NX"), true).await?;
        Ok(reply.is_some())
    }

    async fn scan(&mut self, _start: Bytes, _count: u32) -> Result<Vec<(Bytes, Bytes)>> {
        Err(no_scans())
    }
}

/// An error reply names its kind by its code; anything else is a connection that is not there.
fn error(e: RedisError) -> Error {
    let kind = match (e.code(), e.kind()) {
        (Some("TRYAGAIN"), _) => ErrorKind::Retry,
        (Some("CLUSTERDOWN"), _) => ErrorKind::Unavailable,
        (Some("OUTCOMEUNKNOWN"), _) => ErrorKind::OutcomeUnknown,
        (Some(_), _) | (None, redis::ErrorKind::Server(_)) => ErrorKind::Internal,
        (None, redis::ErrorKind::InvalidClientConfig) => ErrorKind::Invalid,
        (None, _) => ErrorKind::Unavailable,
    };
    Error::new(kind, e.to_string())
}

#[cfg(test)]
mod tests {
    use redis::{ErrorKind as Redis, ServerErrorKind};

    use super::*;

    #[test]
    fn codes_of_the_server_keep_their_meaning() {
        let kind = |e: RedisError| error(e).kind;
        assert_eq!(kind((Redis::Server(ServerErrorKind::TryAgain), "x").into()), ErrorKind::Retry);
        assert_eq!(kind((Redis::Server(ServerErrorKind::ClusterDown), "x").into()), ErrorKind::Unavailable);
        assert_eq!(kind((Redis::Server(ServerErrorKind::ResponseError), "x").into()), ErrorKind::Internal);
        let unknown = redis::make_extension_error("OUTCOMEUNKNOWN".into(), Some("x".into()));
        assert_eq!(kind(unknown), ErrorKind::OutcomeUnknown);
        assert_eq!(kind((Redis::Io, "broken pipe").into()), ErrorKind::Unavailable);
    }
}
