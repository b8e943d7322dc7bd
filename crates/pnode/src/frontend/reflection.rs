//! What a p-node can be asked, told over gRPC itself (`grpc.reflection`): so that `grpcurl` and its like need no files.

use std::convert::Infallible;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http_body_util::BodyExt;
use sextant_access::Class;
use sextant_common::{Error, Result};
use sextant_environment::env::{Caller, status_of};
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::metadata::MetadataMap;
use tonic::server::NamedService;
use tonic_reflection::server::Builder;
use tower::Service;

use super::gate::{Gate, Who};

/// A question is a name.
const QUESTION_BYTES_MAX: usize = 4 * 1024;
/// The name that clients know it by since it is stable, and the one before.
const SELF: [&str; 2] = ["grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"];

/// The two versions of the service, for who may read. `services`: those that a listener has.
pub(crate) fn reflection(
    gate: &Gate,
    services: &[&str],
) -> Result<(Gated<impl Reflects>, Gated<impl Reflects>)> {
    let builder = || {
        let described = Builder::configure()
            .register_encoded_file_descriptor_set(sextant_proto::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET);
        let all = services.iter().chain(&SELF);
        all.fold(described, |builder, name| builder.with_service_name(*name))
    };
    let bad = |e: tonic_reflection::server::Error| Error::internal(format!("the services' description: {e}"));
    let v1 = builder().build_v1().map_err(bad)?.max_decoding_message_size(QUESTION_BYTES_MAX);
    let before = builder().build_v1alpha().map_err(bad)?.max_decoding_message_size(QUESTION_BYTES_MAX);
    Ok((Gated { inner: v1, gate: gate.clone() }, Gated { inner: before, gate: gate.clone() }))
}

/// A service of tonic's.
pub(crate) trait Reflects:
    Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send>
    + NamedService
    + Clone
    + Send
    + Sync
    + 'static
{
}
impl<S> Reflects for S where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send>
        + NamedService
        + Clone
        + Send
        + Sync
        + 'static
{
}

/// A service that is not ours, behind our gate.
#[derive(Clone)]
pub(crate) struct Gated<S> {
    inner: S,
    gate: Gate,
}

impl<S: NamedService> NamedService for Gated<S> {
    const NAME: &'static str = S::NAME;
}

impl<S: Reflects> Service<Request<Body>> for Gated<S> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, std::result::Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<std::result::Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        // The one that is ready stays here for this call, its copy is for the next.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        if let Some(hangup) = request.extensions().get::<Caller>().and_then(|caller| caller.hangup.as_ref()) {
            hangup.called();
        }
        let gate = self.gate.clone();
        let metadata = MetadataMap::from_headers(request.headers().clone());
        let said = tonic::Request::from_parts(metadata, request.extensions().clone(), ());
        Box::pin(async move {
            match admit(&gate, said).await {
                Ok(who) => Ok(inner.call(request).await?.map(|body| held_by(who, body))),
                Err(error) => Ok(status_of(error).into_http()),
            }
        })
    }
}

async fn admit(gate: &Gate, said: tonic::Request<()>) -> Result<Who> {
    let who = gate.who(&said).await?;
    who.may(Class::Read, "to describe services")?;
    Ok(who)
}

/// The call is its user's until the stream of answers ends.
fn held_by(who: Who, body: Body) -> Body {
    Body::new(body.map_frame(move |frame| {
        let _ = &who;
        frame
    }))
}
