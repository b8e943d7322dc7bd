//! The HTTP side of every server: metrics, health, status.
//!
//! | path | answer |
//! |---|---|
//! | `/metrics` | the registry in the OpenMetrics text format, which Prometheus reads |
//! | `/health/live` | 200 for as long as the process answers at all |
//! | `/health/ready` | 200, or 503 with the reason as text |
//! | `/status` | JSON for people and tools |
//!
//! Owns connections and their limits; does not own what is measured or what "ready" means: [`HttpState`] brings that.
//! HTTP/1.1 only, over [`crate::env::Network`]. No request has a body. Everything a client can hold open has a bound: the
//! number of connections, the time for a request's head, the time for an answer, the life of a connection. And whoever is
//! connected and asks for nothing keeps nobody out who does: probes are answered whatever others hold open.

mod places;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::StreamExt;
use futures::future::BoxFuture;
use hyper::body::Incoming;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;

use self::places::{Answering, Place, Places};
use crate::env::{Connection, Door, Env, Listener, accepted, cannot_listen, established};
use crate::shutdown::Shutdown;
use sextant_common::error::Result;

/// Far more than scrapers, probes and curious people have. When all are taken, the one that has asked for nothing for the longest time
/// is closed for the next: also while a thousand come in a second, whoever asks at once is answered.
const CONNECTIONS_MAX: usize = 256;
/// Time for the head of a request to arrive, and how long an idle connection is kept. Longer than the usual scrape interval
/// of 15 s, so that a scraper keeps its connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(20);
/// A status answer that takes longer helps no probe.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Frees the place of a client that reads slowly or never. Clients reconnect.
const CONNECTION_LIFE_MAX: Duration = Duration::from_secs(300);
/// After the end of a connection's life, or of the server's, an answer in flight may still be finished.
const GRACE: Duration = Duration::from_secs(2);
/// A request's head: a path and a scraper's headers.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Whether the server can do its work now; if not, the reason in one line.
pub type ReadyCheck = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;
/// Makes the JSON text of `/status`.
pub type StatusReport = Arc<dyn Fn() -> BoxFuture<'static, String> + Send + Sync>;

/// What a server shows.
#[derive(Clone)]
pub struct HttpState {
    pub registry: Arc<Mutex<Registry>>,
    /// Called for each probe; must not block.
    pub ready: ReadyCheck,
    pub status: StatusReport,
}

impl std::fmt::Debug for HttpState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HttpState")
    }
}

/// Listens on `addr` (`host:port`; port 0: any free one) and serves in the background until `shutdown`. Returns the address
/// as soon as it is bound; fails as [`cannot_listen`] says if it cannot be.
pub fn serve<'a>(
    env: &'a Env,
    addr: &'a str,
    state: HttpState,
    shutdown: Shutdown,
) -> BoxFuture<'a, Result<SocketAddr>> {
    Box::pin(async move {
        let cannot = |e: std::io::Error| cannot_listen("http", &e);
        let listener = env.net.bind(addr.to_owned(), Door::Http).await.map_err(cannot)?;
        let bound = listener.local_addr().map_err(cannot)?;
        env.net.register(&mut state.registry.lock());
        tokio::spawn(accept_all(listener, router(state), shutdown));
        Ok(bound)
    })
}

fn router(state: HttpState) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/health/live", get(|| async { "alive\n" }))
        .route("/health/ready", get(ready))
        .route("/status", get(status))
        .fallback(|| async {
            (StatusCode::NOT_FOUND, "try /metrics, /health/live, /health/ready or /status\n")
        })
        .with_state(state)
}

async fn metrics(State(state): State<HttpState>) -> Response {
    let mut text = String::new();
    let encoded = prometheus_client::encoding::text::encode(&mut text, &state.registry.lock());
    match encoded {
        Ok(()) => {
            // The end marker has to stay last.
            let end = text.rfind("# EOF").unwrap_or(text.len());
            text.insert_str(end, &crate::process::metrics());
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(e) => (StatusCode::INTERNAL_SERVER_ERROR, format!("metrics: {e}\n")).into_response(),
    }
}

async fn ready(State(state): State<HttpState>) -> Response {
    match (state.ready)() {
        Ok(()) => "ready\n".into_response(),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}

async fn status(State(state): State<HttpState>) -> Response {
    match tokio::time::timeout(ANSWER_TIMEOUT, (state.status)()).await {
        Ok(json) => ([(header::CONTENT_TYPE, "application/json")], json).into_response(),
        Err(_) => (StatusCode::GATEWAY_TIMEOUT, "status took too long\n").into_response(),
    }
}

async fn accept_all(listener: Box<dyn Listener>, router: Router, shutdown: Shutdown) {
    let places = Arc::new(Places::new(CONNECTIONS_MAX));
    let mut stop = shutdown.clone();
    // Whoever has not shown yet that it may come in has no place.
    let incoming = established(accepted(listener), move |connection: Connection| {
        let places = places.clone();
        Box::pin(async move {
            let connection = connection.established().await?;
            Ok((connection, places.take().await))
        })
    });
    let mut incoming = std::pin::pin!(incoming);
    let serving = async {
        while let Some(established) = incoming.next().await {
            if let Ok((connection, place)) = established {
                tokio::spawn(serve_connection(connection, place, router.clone(), shutdown.clone()));
            }
        }
    };
    tokio::select! {
        () = serving => {}
        () = stop.wait() => {}
    }
}

async fn serve_connection(connection: Connection, place: Arc<Place>, router: Router, mut shutdown: Shutdown) {
    let (router, asking) = (TowerToHyperService::new(router), place.clone());
    let service = service_fn(move |request: Request<Incoming>| {
        let (answering, answer) = (Answering::begin(asking.clone()), router.call(request));
        async move {
            let answer = answer.await;
            drop(answering);
            answer
        }
    });
    let serving = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        // The date would come from a clock that nobody injected.
        .auto_date_header(false)
        .serve_connection(TokioIo::new(connection), service);
    tokio::pin!(serving);
    let end = tokio::select! {
        end = &mut serving => Some(end),
        () = place.lost() => return,
        () = shutdown.wait() => None,
        () = tokio::time::sleep(CONNECTION_LIFE_MAX) => None,
    };
    let end = match end {
        Some(end) => end,
        None => {
            serving.as_mut().graceful_shutdown();
            finish(serving).await
        }
    };
    if let Err(e) = end {
        tracing::debug!("http: connection ended: {e}");
    }
}

/// Lets an answer in flight be finished, for a while.
async fn finish(serving: impl Future<Output = hyper::Result<()>>) -> hyper::Result<()> {
    tokio::time::timeout(GRACE, serving).await.unwrap_or(Ok(()))
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::atomic::{AtomicBool, Ordering};

    use prometheus_client::metrics::counter::Counter;
    use sextant_common::error::ErrorKind;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::mpsc;

    use super::*;
    use crate::env::{Network, Whom};
    use crate::shutdown::{self, ShutdownTrigger};

    fn state(is_ready: Arc<AtomicBool>) -> HttpState {
        let mut registry = Registry::default();
        let gets = Counter::<u64>::default();
        gets.inc_by(7);
        registry.register("gets", "Point reads", gets);
        HttpState {
            registry: Arc::new(Mutex::new(registry)),
            ready: Arc::new(move || {
                is_ready
                    .load(Ordering::SeqCst)
                    .then_some(())
                    .ok_or_else(|| "partition 3 has no leader".to_owned())
            }),
            status: Arc::new(|| Box::pin(async { r#"{"partitions":4}"#.to_owned() })),
        }
    }

    /// Connections through memory, so that tests need no ports and may stop the clock.
    struct Memory {
        incoming: Mutex<Option<mpsc::Receiver<tokio::io::DuplexStream>>>,
    }

    struct MemoryListener(mpsc::Receiver<tokio::io::DuplexStream>);

    impl Listener for MemoryListener {
        fn local_addr(&self) -> io::Result<SocketAddr> {
            Ok(([127, 0, 0, 1], 80).into())
        }

        fn accept(&mut self) -> BoxFuture<'_, io::Result<Connection>> {
            Box::pin(async {
                match self.0.recv().await {
                    Some(stream) => Ok(Connection::new(stream, None)),
                    None => std::future::pending().await,
                }
            })
        }
    }

    impl Network for Memory {
        fn bind(&self, addr: String, _: Door) -> BoxFuture<'static, io::Result<Box<dyn Listener>>> {
            let receiver = self.incoming.lock().take();
            Box::pin(async move {
                match receiver {
                    Some(receiver) => Ok(Box::new(MemoryListener(receiver)) as Box<dyn Listener>),
                    None => Err(io::Error::new(io::ErrorKind::AddrInUse, addr)),
                }
            })
        }

        fn connect(&self, _addr: String, _: Whom) -> BoxFuture<'static, io::Result<Connection>> {
            Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
        }
    }

    struct Server {
        connect: mpsc::Sender<tokio::io::DuplexStream>,
        trigger: ShutdownTrigger,
        env: Env,
        is_ready: Arc<AtomicBool>,
    }

    async fn start() -> Server {
        let (connect, incoming) = mpsc::channel(CONNECTIONS_MAX * 2);
        let env = Env { net: Arc::new(Memory { incoming: Mutex::new(Some(incoming)) }), ..Env::real() };
        let (trigger, shutdown) = shutdown::channel();
        let is_ready = Arc::new(AtomicBool::new(true));
        serve(&env, "here:80", state(is_ready.clone()), shutdown).await.unwrap();
        Server { connect, trigger, env, is_ready }
    }

    impl Server {
        async fn open(&self) -> tokio::io::DuplexStream {
            let (near, far) = tokio::io::duplex(16 * 1024);
            self.connect.send(far).await.unwrap();
            near
        }

        /// The whole answer to one request.
        async fn get(&self, path: &str) -> String {
            let mut stream = self.open().await;
            let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer
        }
    }

    #[tokio::test]
    async fn every_path_answers() {
        let server = start().await;
        let metrics = server.get("/metrics").await;
        assert!(metrics.starts_with("HTTP/1.1 200"), "{metrics}");
        assert!(metrics.contains("application/openmetrics-text"), "{metrics}");
        assert!(metrics.contains("gets_total 7") && metrics.ends_with("# EOF\n"), "{metrics}");
        let status = server.get("/status").await;
        assert!(status.contains("application/json") && status.ends_with(r#"{"partitions":4}"#), "{status}");
        assert!(server.get("/nowhere").await.starts_with("HTTP/1.1 404"));
    }

    #[tokio::test]
    async fn readiness_names_the_reason_and_liveness_stays() {
        let server = start().await;
        assert!(server.get("/health/ready").await.starts_with("HTTP/1.1 200"));
        server.is_ready.store(false, Ordering::SeqCst);
        let answer = server.get("/health/ready").await;
        assert!(
            answer.starts_with("HTTP/1.1 503") && answer.ends_with("partition 3 has no leader\n"),
            "{answer}"
        );
        assert!(server.get("/health/live").await.starts_with("HTTP/1.1 200"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_never_finishes_its_head_is_cut_off() {
        let server = start().await;
        let mut stream = server.open().await;
        stream.write_all(b"GET /metrics HTTP/1.1\r\n").await.unwrap();
        let mut answer = String::new();
        // Returns only because the server closes: no other end is in sight.
        let _ = stream.read_to_string(&mut answer).await;
        assert!(!answer.contains("200"), "{answer}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_thousand_silent_clients_keep_nobody_out() {
        let server = start().await;
        let mut silent = Vec::new();
        for at in 0..1000 {
            let mut stream = server.open().await;
            if at % 2 == 0 {
                stream.write_all(b"GET /metrics HTTP/1.1\r\n").await.unwrap();
            }
            silent.push(stream);
        }
        // (Time goes on only when nobody has anything to do.)
        let asked = async {
            for path in ["/health/live", "/health/ready", "/metrics", "/status"] {
                assert!(server.get(path).await.starts_with("HTTP/1.1 200"));
            }
        };
        tokio::time::timeout(Duration::from_secs(1), asked).await.expect("nobody waits");
        // Those that came first had to go; the last one may still speak.
        assert!(silent[0].read(&mut [0]).await.is_ok_and(|read| read == 0));
        let last = silent.last_mut().unwrap();
        last.write_all(b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut first = [0; 12];
        last.read_exact(&mut first).await.unwrap();
        assert_eq!(first, *b"HTTP/1.1 200");
    }

    #[tokio::test]
    async fn shutdown_ends_idle_connections_and_the_listener() {
        let server = start().await;
        let mut stream = server.open().await;
        stream.write_all(b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut first = [0; 12];
        stream.read_exact(&mut first).await.unwrap();
        server.trigger.trigger();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        server.connect.closed().await;
    }

    #[tokio::test]
    async fn an_address_in_use_may_be_had_later_and_is_named() {
        let server = start().await;
        let (_trigger, shutdown) = shutdown::channel();
        let error =
            serve(&server.env, "here:80", state(server.is_ready.clone()), shutdown).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unavailable);
        assert!(error.message.contains("here:80"), "{error}");
    }

    #[tokio::test]
    async fn it_serves_over_tcp() {
        let (_trigger, shutdown) = shutdown::channel();
        let state = state(Arc::new(AtomicBool::new(true)));
        let addr = serve(&Env::real(), "127.0.0.1:0", state, shutdown).await.unwrap();
        let mut stream = tokio::net::TcpStream::connect(addr).await.unwrap();
        stream.write_all(b"GET /health/live HTTP/1.0\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("alive\n"), "{answer}");
    }
}
