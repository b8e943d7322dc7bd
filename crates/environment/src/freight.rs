//! What an answer of a gRPC service holds until its bytes have left: the room that was taken for them.
//!
//! An answer is in memory for longer than its handler runs: it waits as a message until the connection asks for it, and then, encoded,
//! until the peer's window has taken it. A handler puts a [`Freight`] into the extensions of its response; [`FreightLayer`] ties
//! what was added to it to the encoded bytes.
//!
//! Invariant: what was added with a message is given back when the transport has let go of the bytes that the message was encoded
//! into, or of the whole answer; not before.

use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::http::Response;
use bytes::Bytes;
use futures::TryFutureExt;
use futures::future::MapOk;
use http_body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;
use tonic::body::Body;

type Things = Vec<Box<dyn Any + Send>>;

/// What the messages hold that were handed to the connection and are not encoded yet. Clones are the same freight.
#[derive(Clone, Default)]
pub struct Freight(Arc<Mutex<Things>>);

impl Freight {
    pub fn of(thing: impl Any + Send) -> Self {
        let freight = Self::default();
        freight.add(thing);
        freight
    }

    /// To be called right before the message is handed on.
    pub fn add(&self, thing: impl Any + Send) {
        self.0.lock().push(Box::new(thing));
    }

    fn unload(&self) -> Things {
        std::mem::take(&mut *self.0.lock())
    }
}

impl std::fmt::Debug for Freight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Freight({})", self.0.lock().len())
    }
}

/// Ties freight to the bytes of answers. Costs answers without any a look into their extensions.
#[derive(Clone, Copy, Debug, Default)]
pub struct FreightLayer;

#[derive(Clone, Debug)]
pub struct FreightService<S>(S);

impl<S> tower::Layer<S> for FreightLayer {
    type Service = FreightService<S>;

    fn layer(&self, inner: S) -> FreightService<S> {
        FreightService(inner)
    }
}

impl<S, R> tower::Service<R> for FreightService<S>
where
    S: tower::Service<R, Response = Response<Body>>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = MapOk<S::Future, fn(Response<Body>) -> Response<Body>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> Self::Future {
        self.0.call(request).map_ok(laden as fn(_) -> _)
    }
}

fn laden(mut response: Response<Body>) -> Response<Body> {
    match response.extensions_mut().remove::<Freight>() {
        Some(freight) => response.map(|body| Body::new(LadenBody { body, freight })),
        None => response,
    }
}

struct LadenBody {
    body: Body,
    freight: Freight,
}

/// Encoded messages, and what they hold.
struct Laden {
    data: Bytes,
    _things: Things,
}

impl AsRef<[u8]> for Laden {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl HttpBody for LadenBody {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        Poll::Ready(frame.map(|frame| {
            frame.map(|frame| match frame.into_data() {
                Ok(data) => {
                    let things = self.freight.unload();
                    let is_empty = things.is_empty();
                    Frame::data(if is_empty {
                        data
                    } else {
                        Bytes::from_owner(Laden { data, _things: things })
                    })
                }
                Err(trailers) => trailers,
            })
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::{BodyExt, StreamBody};
    use tower::{Layer, Service};

    use super::*;
    use crate::room::Room;

    fn answer(freight: Option<Freight>, frames: Vec<&'static str>) -> Response<Body> {
        let frames = frames.into_iter().map(|f| Ok::<_, tonic::Status>(Frame::data(Bytes::from(f))));
        let mut response = Response::new(Body::new(StreamBody::new(futures::stream::iter(frames))));
        if let Some(freight) = freight {
            response.extensions_mut().insert(freight);
        }
        response
    }

    async fn served(response: Response<Body>) -> Body {
        let mut response = Some(response);
        let handler =
            tower::service_fn(move |()| std::future::ready(Ok::<_, Infallible>(response.take().unwrap())));
        FreightLayer.layer(handler).call(()).await.unwrap().into_body()
    }

    async fn next(body: &mut Body) -> Bytes {
        body.frame().await.unwrap().unwrap().into_data().unwrap()
    }

    #[tokio::test]
    async fn room_is_given_back_when_the_bytes_have_left() {
        let room = Room::new(64 * 1024);
        let freight = Freight::of(room.take(10 * 1024).await);
        let mut body = served(answer(Some(freight.clone()), vec!["first", "second"])).await;
        let first = next(&mut body).await;
        assert_eq!((&first[..], room.held_bytes()), (&b"first"[..], 10 * 1024));
        freight.add(room.take(3 * 1024).await);
        let second = next(&mut body).await;
        assert_eq!(room.held_bytes(), 13 * 1024);
        let part = first.slice(2..);
        drop(first);
        assert_eq!(room.held_bytes(), 13 * 1024, "a part of it is on its way");
        drop(part);
        assert_eq!(room.held_bytes(), 3 * 1024);
        drop(second);
        assert_eq!(room.held_bytes(), 0);
    }

    #[tokio::test]
    async fn an_answer_that_nobody_takes_gives_back_what_it_holds() {
        let room = Room::new(64 * 1024);
        let body = served(answer(Some(Freight::of(room.take(1024).await)), vec!["x"])).await;
        assert_eq!(room.held_bytes(), 1024);
        drop(body);
        assert_eq!(room.held_bytes(), 0);
        assert_eq!(next(&mut served(answer(None, vec!["plain"])).await).await, "plain");
    }
}
