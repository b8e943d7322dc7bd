//! Through p-nodes over RESP: GET, SET, SET NX on plain strings. Each thread has a connection of its own.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo, RedisError};
use sextant_client::Credentials;
use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::operation::ReadMode;
use sextant_environment::config::host_port;
use sextant_environment::env::Names;

use super::{Target, Thread, no_scans};

pub struct Resp {
    addrs: Vec<String>,
    deadline: Duration,
    credentials: Option<Credentials>,
}

impl Resp {
    /// `credentials`: who each connection says that it is.
    pub fn new(addrs: &[String], deadline: Duration, credentials: Option<Credentials>) -> Result<Self> {
        for addr in addrs {
            let bad = || Error::invalid(format!("bad address {addr:?}: not host:port"));
            host_port(addr).ok_or_else(bad)?;
        }
        Ok(Self { addrs: addrs.to_vec(), deadline, credentials })
    }
}

impl Target for Resp {
    type Thread = RespThread;

    async fn thread(&self, index: usize, _mode: ReadMode) -> Result<RespThread> {
        let addr = self.addrs[index % self.addrs.len()].clone();
        let credentials = self.credentials.clone();
        let connection = connect(&addr, self.deadline, credentials.as_ref()).await?;
        Ok(RespThread { addr, deadline: self.deadline, credentials, connection: Some(connection) })
    }

    fn p_nodes(&self) -> usize {
        self.addrs.len()
    }
}

/// To the first of its addresses that takes the connection: names are resolved as servers do it.
async fn connect(
    addr: &str,
    deadline: Duration,
    credentials: Option<&Credentials>,
) -> Result<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(deadline))
        .set_response_timeout(Some(deadline));
    let unavailable = |e: std::io::Error| Error::unavailable(e.to_string());
    let mut failed = None;
    for address in Names::default().resolve(addr).await.map_err(unavailable)? {
        let client = redis::Client::open(connection_info(address, credentials)?).map_err(error)?;
        match client.get_multiplexed_async_connection_with_config(&config).await {
            Ok(connection) => return Ok(connection),
            Err(e) => failed = Some(error(e)),
        }
    }
    Err(failed.unwrap_or_else(|| Error::unavailable(format!("{addr} has no address"))))
}

/// With the password beside the URL, not in it: it may have any characters.
fn connection_info(address: SocketAddr, credentials: Option<&Credentials>) -> Result<ConnectionInfo> {
    let info = format!("redis://{address}/").into_connection_info().map_err(error)?;
    Ok(match credentials {
        None => info,
        Some(Credentials { user, password }) => {
            info.set_redis_settings(RedisConnectionInfo::default().set_username(user).set_password(password))
        }
    })
}

pub struct RespThread {
    addr: String,
    deadline: Duration,
    credentials: Option<Credentials>,
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
            None => {
                let connected = connect(&self.addr, self.deadline, self.credentials.as_ref()).await?;
                self.connection.insert(connected)
            }
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
    fn a_user_says_name_and_password_whatever_their_characters() {
        let address = "[::1]:6380".parse().unwrap();
        let said = |credentials: Option<&Credentials>| {
            let info = connection_info(address, credentials).unwrap();
            let text = |text: Option<&str>| text.map(str::to_owned);
            (text(info.redis_settings().username()), text(info.redis_settings().password()))
        };
        let credentials = Credentials { user: "app".into(), password: "p@ss/w:rd %41".into() };
        assert_eq!(said(Some(&credentials)), (Some("app".into()), Some("p@ss/w:rd %41".into())));
        assert_eq!(said(None), (None, None));
    }

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
