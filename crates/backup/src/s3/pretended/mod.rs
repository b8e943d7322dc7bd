//! A store for tests that speaks as S3 does, as far as a repository listens: one bucket in memory, whole seconds, short pages. It
//! checks [signatures](signature), and [fails](Fault) as it is told.

mod objects;
mod signature;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::iter;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::CONTENT_LENGTH;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use object_store::ObjectStore;
use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sextant_environment::Env;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use self::objects::Bucket;
use crate::Repository;
use crate::s3::bucket::{Access, open};

pub const BUCKET: &str = "backups";
pub const KEY: &str = "AKIAPRETENDED";
pub const SECRET: &str = "sesame-open-9f3";

type Body = BoxBody<Bytes, std::io::Error>;

/// What goes wrong, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// 503, and nothing is done.
    Busy,
    /// It is done, and the connection ends without an answer.
    AnswerLost,
    /// The connection ends after half of the answer's body.
    CutHalfWay,
}

pub struct Pretended {
    pub addr: SocketAddr,
    scheme: &'static str,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    bucket: Mutex<Bucket>,
    /// Of requests with this method whose target has this in it.
    faults: Mutex<Vec<(Method, &'static str, Fault)>>,
    /// Methods and targets.
    seen: Mutex<Vec<String>>,
}

impl Pretended {
    pub async fn plain() -> Self {
        Self::start(None).await
    }

    /// With a certificate and its key, PEM.
    pub async fn encrypted(cert: &str, key: &str) -> Self {
        let chain = vec![CertificateDer::from_pem_slice(cert.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        Self::start(Some(TlsAcceptor::from(Arc::new(config)))).await
    }

    async fn start(tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (addr, shared) = (listener.local_addr().unwrap(), Arc::<Shared>::default());
        let scheme = if tls.is_some() { "https" } else { "http" };
        let serving = shared.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (shared, tls) = (serving.clone(), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => serve(stream, shared).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                serve(stream, shared).await;
                            }
                        }
                    }
                });
            }
        });
        Self { addr, scheme, shared }
    }

    pub fn fail(&self, method: Method, target: &'static str, fault: Fault) {
        self.shared.faults.lock().push((method, target, fault));
    }

    /// Whether each was met.
    pub fn has_failed(&self) -> bool {
        self.shared.faults.lock().is_empty()
    }

    /// Methods and targets of all requests so far.
    pub fn seen(&self) -> Vec<String> {
        self.shared.seen.lock().clone()
    }

    /// Uploads that were begun and neither completed nor taken back.
    pub fn uploads(&self) -> usize {
        self.shared.bucket.lock().uploads()
    }

    pub fn variables(&self) -> Vec<(String, String)> {
        let addr = self.addr;
        let endpoint = format!("{}://localhost:{}", self.scheme, addr.port());
        [
            ("AWS_ACCESS_KEY_ID", KEY),
            ("AWS_SECRET_ACCESS_KEY", SECRET),
            ("AWS_ENDPOINT_URL", &endpoint),
            ("AWS_ALLOW_HTTP", "true"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec()
    }

    pub fn store(&self, location: &str) -> Arc<dyn ObjectStore> {
        open(&Env::real(), location, &Access { variables: self.variables(), ca: None, retries: 3 }).unwrap()
    }

    pub fn repository(&self) -> Repository {
        Repository::over(&Env::real(), self.store("backups/of/main"))
    }
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin + 'static, shared: Arc<Shared>) {
    let service = service_fn(|request| answer(&shared, request));
    // Clients may end as they like.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(shared: &Shared, request: Request<Incoming>) -> std::io::Result<Response<Body>> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
    let (method, target) = (head.method.clone(), head.uri.to_string());
    shared.seen.lock().push(format!("{method} {target}"));
    let fault = {
        let mut faults = shared.faults.lock();
        let met = faults.iter().position(|(of, part, _)| *of == method && target.contains(part));
        met.map(|at| faults.remove(at).2)
    };
    if fault == Some(Fault::Busy) {
        return Ok(whole(objects::refusal(503, "SlowDown", "Please reduce your request rate.")));
    }
    let answer = match signature::check(&head, &body) {
        Ok(()) => shared.bucket.lock().answer(&head, body),
        Err(code) => objects::refusal(403, code, "You are not\n  who you say."),
    };
    match fault {
        Some(Fault::AnswerLost) => Err(std::io::ErrorKind::ConnectionReset.into()),
        Some(Fault::CutHalfWay) => Ok(cut(answer)),
        _ => Ok(whole(answer)),
    }
}

fn whole(answer: Response<Bytes>) -> Response<Body> {
    answer.map(|bytes| Full::new(bytes).map_err(|never: Infallible| match never {}).boxed())
}

fn cut(answer: Response<Bytes>) -> Response<Body> {
    let (mut head, bytes) = answer.into_parts();
    head.headers.insert(CONTENT_LENGTH, bytes.len().into());
    let half = Frame::data(bytes.slice(..bytes.len() / 2));
    let frames = [Ok(half), Err(std::io::ErrorKind::ConnectionReset.into())];
    Response::from_parts(head, BodyExt::boxed(StreamBody::new(iter(frames))))
}
