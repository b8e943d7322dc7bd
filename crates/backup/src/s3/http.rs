//! HTTP/1.1 for the store's client: over the environment's network, in TLS where the URL says so, with a bound on every wait.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use std::{fmt, io};

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{Stream, unfold};
use http_body_util::{BodyExt, StreamBody};
use hyper::Uri;
use hyper::body::{Frame, Incoming};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection as Pooled};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse,
    HttpResponseBody, HttpService,
};
use object_store::{ClientConfigKey, ClientOptions};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use sextant_environment::env::{Connection, Network, Whom};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::bucket::is_yes;
use super::refusal::Failure;

/// Name, TCP and TLS: four round trips, and a packet that is sent again.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// What an instance of a cloud asks for its credentials is beside it, or nowhere.
const METADATA_TIMEOUT: Duration = Duration::from_secs(1);
/// From a request to the head of its answer. A part goes out meanwhile: at 150 kB/s it takes a minute.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Between two pieces of an answer.
const SILENCE_MAX: Duration = Duration::from_secs(20);
/// Connections that nobody uses: below the 20 s after which S3 closes them.
const IDLE_MAX: Duration = Duration::from_secs(15);

/// Makes clients.
pub struct Connector {
    pub net: Arc<dyn Network>,
    pub tls: Arc<ClientConfig>,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let dialer = Dialer { net: self.net.clone(), tls: self.tls.clone() };
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_MAX)
            .build(dialer);
        let is_plain_allowed =
            options.get_config_value(&ClientConfigKey::AllowHttp).is_some_and(|said| is_yes(&said));
        Ok(HttpClient::new(Requests { client, is_plain_allowed }))
    }
}

struct Requests {
    client: Client<Dialer, HttpRequestBody>,
    is_plain_allowed: bool,
}

#[async_trait]
impl HttpService for Requests {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let host = request.uri().authority().map_or("?".to_owned(), ToString::to_string);
        if request.uri().scheme_str() != Some("https") && !self.is_plain_allowed {
            return Err(http_error(Failure::plain(&host)));
        }
        match timeout(ANSWER_TIMEOUT, self.client.request(request)).await {
            Ok(Ok(answer)) => {
                let (head, body) = answer.into_parts();
                let body = HttpResponseBody::new(StreamBody::new(frames(body, host)));
                Ok(HttpResponse::from_parts(head, body))
            }
            Ok(Err(e)) => Err(http_error(Failure::of(&host, &e))),
            Err(_) => Err(http_error(Failure::lost(&host, "no answer came in time"))),
        }
    }
}

/// An answer's body, which is an error as soon as it stops coming.
fn frames(body: Incoming, host: String) -> impl Stream<Item = Result<Frame<Bytes>, HttpError>> {
    unfold(Some((body, host)), |reading| async {
        let (mut body, host) = reading?;
        let failure = match timeout(SILENCE_MAX, body.frame()).await {
            Ok(None) => return None,
            Ok(Some(Ok(frame))) => return Some((Ok(frame), Some((body, host)))),
            Ok(Some(Err(e))) => Failure::of(&host, &e),
            Err(_) => Failure::lost(&host, "its answer stopped half way"),
        };
        Some((Err(http_error(failure)), None))
    })
}

/// Everything but a final refusal may be tried again, also what may have had its effect: nothing of ours does harm twice.
fn http_error(failure: Failure) -> HttpError {
    let kind = if failure.is_final { HttpErrorKind::Unknown } else { HttpErrorKind::Request };
    HttpError::new(kind, failure)
}

/// Makes connections.
#[derive(Clone)]
struct Dialer {
    net: Arc<dyn Network>,
    tls: Arc<ClientConfig>,
}

impl Dialer {
    async fn dial(self, uri: Uri) -> Result<Wire, Failure> {
        let host = uri.host().unwrap_or_default().to_owned();
        let is_tls = uri.scheme_str() == Some("https");
        let addr = format!("{host}:{}", uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 }));
        let bare = host.trim_matches(['[', ']']).to_owned();
        let is_metadata = matches!(bare.parse(), Ok(IpAddr::V4(ip)) if ip.is_link_local());
        let patience = if is_metadata { METADATA_TIMEOUT } else { CONNECT_TIMEOUT };
        let connecting = async {
            let connected = self.net.connect(addr.clone(), Whom::Host).await;
            let connection = connected.map_err(|e| Failure::unreachable(&addr, &e))?;
            if is_tls { encrypted(self.tls, connection, bare, &addr).await } else { Ok(connection) }
        };
        let late = || Failure::lost(&addr, "no connection was made in time");
        let dialed = timeout(patience, connecting).await.unwrap_or_else(|_| Err(late()));
        match dialed {
            Ok(connection) => Ok(Wire(TokioIo::new(connection))),
            Err(_) if is_metadata => Err(Failure::no_credentials()),
            Err(failure) => Err(failure),
        }
    }
}

async fn encrypted(
    tls: Arc<ClientConfig>,
    connection: Connection,
    host: String,
    addr: &str,
) -> Result<Connection, Failure> {
    let name = ServerName::try_from(host).map_err(|e| Failure::untrusted(addr, &e))?;
    let peer = connection.peer;
    let stream = TlsConnector::from(tls).connect(name, connection).await;
    let stream = stream.map_err(|e| match e.get_ref().and_then(|cause| cause.downcast_ref()) {
        Some(rustls::Error::InvalidMessage(_)) => Failure::untrusted(addr, &"it speaks no TLS"),
        Some(cause @ rustls::Error::InvalidCertificate(_)) => Failure::untrusted(addr, cause),
        _ => Failure::unreachable(addr, &e),
    })?;
    Ok(Connection::new(stream, peer))
}

impl tower::Service<Uri> for Dialer {
    type Response = Wire;
    type Error = Failure;
    type Future = BoxFuture<'static, Result<Wire, Failure>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(self.clone().dial(uri))
    }
}

/// A connection as hyper's pool takes it.
struct Wire(TokioIo<Connection>);

impl Pooled for Wire {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl Write for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connector")
    }
}

impl fmt::Debug for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Requests")
    }
}
