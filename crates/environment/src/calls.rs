//! Calls of gRPC services: how long until they were answered, and with what.
//!
//! Owns the layer that measures them. A call is over when its answer begins (of a stream: when it is accepted). Only methods that are
//! known have labels of their own, so that nobody can fill the memory with names.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::http::{HeaderMap, Request, Response};
use pin_project_lite::pin_project;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tokio::task::futures::TaskLocalFuture;
use tonic::Code;

use crate::clock::Clock;
use crate::env::{CalledPath, Caller};
use crate::latency::Latencies;
use crate::slow_log::{self, Done, SlowLog, Trace};

/// What a caller may call its request, for the slow log: a header, of so many bytes.
const REQUEST_ID: &str = "x-request-id";
const REQUEST_ID_BYTES_MAX: usize = 64;
/// Of what no method is.
const UNKNOWN: (&str, &str) = ("unknown", "unknown");

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MethodLabels {
    service: &'static str,
    method: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FailureLabels {
    service: &'static str,
    method: &'static str,
    code: &'static str,
}

#[derive(Debug)]
struct Method {
    labels: MethodLabels,
    took: Latencies,
}

/// What all listeners of a server share.
pub struct Calls {
    clock: Arc<dyn Clock>,
    /// The first is for all that is unknown.
    methods: Vec<Method>,
    by_path: HashMap<&'static str, usize>,
    failed: Family<FailureLabels, Counter>,
    slow: SlowLog,
}

impl Calls {
    /// `methods`: path, service, and method of all that may be called; `served`: the services that this server has.
    pub fn register(
        clock: Arc<dyn Clock>,
        methods: &[(&'static str, &'static str, &'static str)],
        served: &[&str],
        slow: SlowLog,
        registry: &mut Registry,
    ) -> Arc<Self> {
        let took = Family::<MethodLabels, Latencies>::default();
        let help = "Time until a gRPC call was answered (a stream: accepted), by service and method";
        registry.register("sextant_grpc_call_seconds", help, took.clone());
        let failed = Family::<FailureLabels, Counter>::default();
        let help = "gRPC calls that were answered with an error, by service, method and status";
        registry.register("sextant_grpc_calls_failed", help, failed.clone());
        // So that its labels are seen before anything fails.
        let (service, method) = UNKNOWN;
        let first = FailureLabels { service, method, code: name(Code::Unimplemented) };
        let _: Counter = failed.get_or_create_owned(&first);
        let method = |(service, method)| {
            let labels = MethodLabels { service, method };
            let took = took.get_or_create_owned(&labels);
            Method { labels, took }
        };
        let served: Vec<_> = methods.iter().filter(|(_, service, _)| served.contains(service)).collect();
        let by_path = served.iter().zip(1..).map(|((path, ..), at)| (*path, at)).collect();
        let known = served.iter().map(|(_, service, name)| (*service, *name));
        let methods = [UNKNOWN].into_iter().chain(known).map(method).collect();
        Arc::new(Self { clock, methods, by_path, failed, slow })
    }

    fn answered(&self, call: &Call, code: Code, trace: Option<&Trace>) {
        let took_ns = self.clock.holder_ns().saturating_sub(call.began_ns);
        let method = &self.methods[call.method];
        method.took.observe_ns(took_ns);
        if code != Code::Ok {
            let MethodLabels { service, method } = method.labels;
            self.failed.get_or_create(&FailureLabels { service, method, code: name(code) }).inc();
        }
        if self.slow.is_slow(took_ns) {
            let MethodLabels { service, method } = method.labels;
            let client = call.caller.as_ref().and_then(|caller| caller.addr);
            let client = client.map_or_else(|| "unknown".to_owned(), |addr| addr.to_string());
            let request = call.request.clone();
            let operation = &format!("{service}.{method}");
            self.slow.note(Done { operation, client, request, key: None, took_ns }, trace);
        }
    }
}

impl std::fmt::Debug for Calls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Calls({} methods)", self.methods.len())
    }
}

/// As the gRPC documentation calls them.
fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// One call, while it is under way.
struct Call {
    began_ns: u64,
    /// Its place among the methods.
    method: usize,
    caller: Option<Caller>,
    request: Option<String>,
}

/// Measures what it is laid around: as the outermost layer, refusals of the others too.
#[derive(Clone, Debug)]
pub struct CallsLayer(pub Arc<Calls>);

#[derive(Clone, Debug)]
pub struct CallsService<S> {
    calls: Arc<Calls>,
    inner: S,
}

impl<S> tower::Layer<S> for CallsLayer {
    type Service = CallsService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        CallsService { calls: self.0.clone(), inner }
    }
}

impl<S, A, B> tower::Service<Request<A>> for CallsService<S>
where
    S: tower::Service<Request<A>, Response = Response<B>>,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = Answer<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<A>) -> Self::Future {
        if let Some(path) = request.uri().path_and_query().cloned() {
            request.extensions_mut().insert(CalledPath(path));
        }
        let call = Call {
            began_ns: self.calls.clock.holder_ns(),
            method: self.calls.by_path.get(request.uri().path()).copied().unwrap_or(0),
            caller: request.extensions().get::<Caller>().cloned(),
            request: request_id(request.headers()),
        };
        let inner = slow_log::traced(self.inner.call(request));
        Answer { inner, call: Some(call), calls: self.calls.clone() }
    }
}

fn request_id(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(REQUEST_ID)?.to_str().ok()?;
    (text.len() <= REQUEST_ID_BYTES_MAX).then(|| text.to_owned())
}

pin_project! {
    /// The answer to a call.
    pub struct Answer<F> {
        #[pin]
        inner: TaskLocalFuture<Trace, F>,
        // None: it is answered.
        call: Option<Call>,
        calls: Arc<Calls>,
    }

    impl<F> PinnedDrop for Answer<F> {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            // Its caller has given up.
            if let Some(call) = this.call.take() {
                let trace = this.inner.as_mut().take_value();
                this.calls.answered(&call, Code::Cancelled, trace.as_ref());
            }
        }
    }
}

impl<F, B, E> Future for Answer<F>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let answer = ready!(this.inner.as_mut().poll(cx));
        let trace = this.inner.take_value();
        let code = answer.as_ref().map_or(Code::Internal, |answer| code(answer.headers()));
        if let Some(call) = this.call.take() {
            this.calls.answered(&call, code, trace.as_ref());
        }
        Poll::Ready(answer)
    }
}

/// An error is said in the head of an answer; what has none there has begun well.
fn code(headers: &HeaderMap) -> Code {
    headers.get("grpc-status").map_or(Code::Ok, |status| Code::from_bytes(status.as_bytes()))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use tower::{Layer, Service};

    use super::*;
    use crate::Env;

    const METHODS: [(&str, &str, &str); 2] =
        [("/p.Kv/Get", "Kv", "Get"), ("/p.Admin/Status", "Admin", "Status")];

    async fn answer(request: Request<()>) -> Result<Response<()>, Infallible> {
        let mut response = Response::new(());
        if let Some(status) = request.headers().get("answer") {
            response.headers_mut().insert("grpc-status", status.clone());
        }
        Ok(response)
    }

    fn call(path: &str, headers: &[(&'static str, &str)]) -> Request<()> {
        let mut request = Request::builder().uri(path).body(()).unwrap();
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        request
    }

    fn text(registry: &Registry) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
        text
    }

    #[tokio::test]
    async fn calls_are_counted_by_what_is_known_of_them() {
        let (mut registry, clock) = (Registry::default(), Env::real().clock);
        let calls = Calls::register(clock.clone(), &METHODS, &["Kv"], SlowLog::off(clock), &mut registry);
        let mut service = CallsLayer(calls).layer(tower::service_fn(answer));
        service.call(call("/p.Kv/Get", &[])).await.unwrap();
        service.call(call("/p.Kv/Get", &[("answer", "14")])).await.unwrap();
        for path in ["/p.Admin/Status", "/p.Kv/Get/more", "/"] {
            service.call(call(path, &[("answer", "12")])).await.unwrap();
        }
        let text = text(&registry);
        for line in [
            "sextant_grpc_call_seconds_count{service=\"Kv\",method=\"Get\"} 2",
            "sextant_grpc_call_seconds_count{service=\"unknown\",method=\"unknown\"} 3",
            "sextant_grpc_calls_failed_total{service=\"Kv\",method=\"Get\",code=\"UNAVAILABLE\"} 1",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(!text.contains("Admin"), "{text}");
    }

    #[tokio::test]
    async fn what_is_slow_is_told_with_what_it_waited_for() {
        let (mut registry, clock) = (Registry::default(), Env::real().clock);
        let slow = SlowLog::new(clock.clone(), 1, &mut registry);
        let calls = Calls::register(clock.clone(), &METHODS, &["Kv"], slow.clone(), &mut registry);
        let handler = tower::service_fn(move |request: Request<()>| {
            let clock = clock.clone();
            async move {
                slow_log::about(&bytes::Bytes::from_static(b"k\n1"));
                let wait = tokio::time::sleep(Duration::from_millis(2));
                slow_log::asking(slow_log::Tier::Memtables, &*clock, wait).await;
                answer(request).await
            }
        });
        let mut service = CallsLayer(calls).layer(handler);
        service.call(call("/p.Kv/Get", &[("x-request-id", "r-7")])).await.unwrap();
        service.call(call("/p.Kv/Get", &[("x-request-id", &"r".repeat(65))])).await.unwrap();
        let [second, first] = slow.latest(10).try_into().unwrap();
        let line = first.to_string();
        assert!(line.starts_with("Kv.Get took ") && line.contains(": memtables "), "{line}");
        assert!(line.ends_with("client unknown, request \"r-7\", key \"k\\n1\""), "{line}");
        assert_eq!((second.id, second.request), (1, None));
        assert!(text(&registry).contains("sextant_slow_operations_total 2"));
    }
}
