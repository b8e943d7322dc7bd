//! What an answer of a gRPC service holds until its bytes have left: the room that was taken for them.
//!
//! An answer is in memory for longer than its handler runs: it waits as a message until the connection asks for it, and then, encoded,
//! until the peer's window has taken it. A handler puts a [`Freight`] into the extensions of its response; [`FreightLayer`] ties
//! what was added to it to the encoded bytes.
//!
//! A peer that takes nothing keeps that for as long as it likes, while it answers pings; no transport ends it. So a freight may be
//! [`within`](Freight::within) a patience, after which the peer's connection is ended; unless the connection gets on with other answers
//! and this one waits behind them. It has its turn among them, so that is no excuse for ever: it is handed on in pieces, and has to get
//! rid of one now and then.
//!
//! Invariant: what was added with a message is given back when the transport has let go of the bytes that the message was encoded
//! into, or of the whole answer; not before.

use std::any::Any;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::Response;
use bytes::Bytes;
use futures::TryFutureExt;
use futures::future::MapOk;
use http_body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;
use sextant_common::limits::LARGE_BYTES;
use tokio::task::AbortHandle;
use tonic::body::Body;

use crate::env::Hangup;

/// How long a peer may take nothing of what is there for it: this, and a second for so many bytes of all that its connection has to send.
const UNTAKEN_MAX: Duration = Duration::from_secs(30);
const TAKEN_BYTES_PER_S: usize = 256 * 1024;
/// What has to be taken is handed on in pieces. (Any other answer has no more bytes than one.)
const PIECE_BYTES: usize = LARGE_BYTES;
/// A connection sends its answers in turn: before a piece has left, so much at most. (Twice a piece of each of a thousand calls.)
const BEFORE_A_PIECE_BYTES_MAX: u64 = 2 * 1024 * PIECE_BYTES as u64;

type Things = Vec<Box<dyn Any + Send>>;

/// What the messages hold that were handed to the connection and are not encoded yet. Clones are the same freight.
#[derive(Clone, Default)]
pub struct Freight(Arc<Hold>);

#[derive(Default)]
struct Hold {
    things: Mutex<Things>,
    patience: OnceLock<Arc<Patience>>,
}

/// Which connection ends if nothing of the answer is taken, and whether that matters when it is so.
struct Patience {
    hangup: Hangup,
    matters: Box<dyn Fn() -> bool + Send + Sync>,
}

impl Freight {
    pub fn of(thing: impl Any + Send) -> Self {
        let freight = Self::default();
        freight.add(thing);
        freight
    }

    /// To be called right before the message is handed on.
    pub fn add(&self, thing: impl Any + Send) {
        self.0.things.lock().push(Box::new(thing));
    }

    /// Whoever takes nothing of the answer for half a minute, nor enough of others that come before it, loses the connection, if it
    /// matters then. Said once, before the answer.
    pub fn within(self, hangup: Hangup, matters: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        let _ = self.0.patience.set(Arc::new(Patience { hangup, matters: Box::new(matters) }));
        self
    }

    fn unload(&self) -> Things {
        std::mem::take(&mut *self.0.things.lock())
    }
}

impl std::fmt::Debug for Freight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Freight({})", self.0.things.lock().len())
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
        Some(freight) => response.map(|body| {
            let watch = freight.0.patience.get().map(|patience| Watch::of(patience.clone()));
            Body::new(LadenBody { body, freight, watch, rest: Bytes::new() })
        }),
        None => response,
    }
}

struct LadenBody {
    body: Body,
    freight: Freight,
    watch: Option<Arc<Watch>>,
    /// Of encoded messages, what is not handed on yet.
    rest: Bytes,
}

/// What the transport has taken of an answer.
#[derive(Debug, Default)]
struct Taken {
    /// How often it took something, or let go of it.
    times: AtomicU64,
    /// Pieces of messages that it has let go of.
    pieces: AtomicU64,
    /// Messages that it has and has not sent.
    unsent: AtomicUsize,
    /// It has asked for more than there is.
    waits: AtomicBool,
}

/// Looks whether an answer is taken, for as long as anything of it is there: the transport lets go of the answer when it has all of it,
/// sent or not.
struct Watch {
    taken: Arc<Taken>,
    hangup: Hangup,
    looks: AbortHandle,
}

impl Watch {
    fn of(patience: Arc<Patience>) -> Arc<Self> {
        let (taken, hangup) = (Arc::<Taken>::default(), patience.hangup.clone());
        let looks = tokio::spawn(end_untaken(patience, taken.clone())).abort_handle();
        Arc::new(Self { taken, hangup, looks })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.looks.abort();
    }
}

async fn end_untaken(patience: Arc<Patience>, taken: Arc<Taken>) {
    let Patience { hangup, matters } = &*patience;
    // The pieces that have left, and what had been sent by then.
    let (mut pieces, mut sent_by_then) = (0, hangup.sent_bytes());
    loop {
        let (before, sent_before) = (taken.times.load(Ordering::Relaxed), hangup.sent_bytes());
        // Its turn comes when the connection has sent what came before.
        let seconds = hangup.unsent_bytes() / TAKEN_BYTES_PER_S;
        let within = UNTAKEN_MAX + Duration::from_secs(seconds as u64);
        tokio::time::sleep(within).await;
        let is_our_turn = taken.waits.load(Ordering::Relaxed) && taken.unsent.load(Ordering::Relaxed) == 0;
        let is_taken = taken.times.load(Ordering::Relaxed) != before;
        let (sent, left) = (hangup.sent_bytes(), taken.pieces.load(Ordering::Relaxed));
        if is_taken || left != pieces {
            (pieces, sent_by_then) = (left, sent);
        }
        let gets_on = sent - sent_before >= within.as_secs() * TAKEN_BYTES_PER_S as u64;
        let waits_behind_others = gets_on && sent - sent_by_then < BEFORE_A_PIECE_BYTES_MAX;
        if !is_taken && !is_our_turn && !waits_behind_others && matters() {
            tracing::info!("a connection is ended whose client takes nothing of an answer");
            hangup.hang_up();
            return;
        }
    }
}

/// Encoded messages, and what they hold.
struct Laden {
    data: Bytes,
    _things: Things,
    watch: Option<Arc<Watch>>,
}

impl Laden {
    fn new(data: Bytes, things: Things, watch: Option<Arc<Watch>>) -> Self {
        if let Some(watch) = &watch {
            watch.taken.unsent.fetch_add(1, Ordering::Relaxed);
            watch.hangup.has_more_to_send(data.len());
        }
        Self { data, _things: things, watch }
    }
}

impl Drop for Laden {
    fn drop(&mut self) {
        if let Some(watch) = &self.watch {
            watch.taken.unsent.fetch_sub(1, Ordering::Relaxed);
            watch.taken.times.fetch_add(1, Ordering::Relaxed);
            watch.hangup.has_sent(self.data.len());
        }
    }
}

impl AsRef<[u8]> for Laden {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

/// Of encoded messages, what is handed on at a time.
struct Piece {
    data: Bytes,
    watch: Arc<Watch>,
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.watch.taken.pieces.fetch_add(1, Ordering::Relaxed);
    }
}

impl AsRef<[u8]> for Piece {
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
        if !self.rest.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(self.piece()))));
        }
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let Some(Watch { taken, .. }) = self.watch.as_deref() {
            taken.waits.store(polled.is_pending(), Ordering::Relaxed);
            taken.times.fetch_add(u64::from(polled.is_ready()), Ordering::Relaxed);
        }
        polled.map(|frame| frame.map(|frame| frame.map(|frame| self.laden(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint() + SizeHint::with_exact(self.rest.len() as u64)
    }
}

impl LadenBody {
    fn laden(&mut self, frame: Frame<Bytes>) -> Frame<Bytes> {
        match frame.into_data() {
            Ok(data) => {
                let things = self.freight.unload();
                match things.is_empty() && self.watch.is_none() {
                    true => Frame::data(data),
                    false => {
                        self.rest = Bytes::from_owner(Laden::new(data, things, self.watch.clone()));
                        Frame::data(self.piece())
                    }
                }
            }
            Err(trailers) => trailers,
        }
    }

    /// What is handed on next. Where nobody looks whether it is taken, all.
    fn piece(&mut self) -> Bytes {
        match &self.watch {
            None => std::mem::take(&mut self.rest),
            Some(watch) => {
                let data = self.rest.split_to(self.rest.len().min(PIECE_BYTES));
                Bytes::from_owner(Piece { data, watch: watch.clone() })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::{BodyExt, Full, StreamBody};
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

    fn answer_of(freight: Freight, message: Bytes) -> Response<Body> {
        let mut response = Response::new(Body::new(Full::new(message)));
        response.extensions_mut().insert(freight);
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

    #[tokio::test]
    async fn a_message_that_leaves_in_pieces_keeps_its_room_until_all_of_them_have() {
        let (room, hangup) = (Room::new(64 * 1024), Hangup::default());
        let freight = Freight::of(room.take(1024).await).within(hangup.clone(), || true);
        let long: Bytes = (0..2 * PIECE_BYTES + 1).map(|i| (i / 1000) as u8).collect();
        let mut body = served(answer_of(freight, long.clone())).await;
        let mut pieces = Vec::new();
        for expected in long.chunks(PIECE_BYTES) {
            assert!(!body.is_end_stream());
            let piece = next(&mut body).await;
            assert!(piece == expected);
            pieces.push(piece);
        }
        assert!(pieces.len() == 3 && body.is_end_stream() && body.frame().await.is_none());
        pieces.truncate(1);
        assert_eq!((room.held_bytes(), hangup.unsent_bytes()), (1024, long.len()), "a piece is on its way");
        drop(pieces);
        assert_eq!((room.held_bytes(), hangup.unsent_bytes()), (0, 0));
    }

    fn is_over(hangup: &Hangup) -> bool {
        hangup.poll_over(&Context::from_waker(std::task::Waker::noop()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_loses_its_connection() {
        let (hangup, matters) = (Hangup::default(), Arc::new(AtomicBool::new(false)));
        let looked = matters.clone();
        let freight = Freight::of(()).within(hangup.clone(), move || looked.load(Ordering::Relaxed));
        let mut body = served(answer(Some(freight), vec!["first", "second"])).await;
        tokio::time::sleep(2 * UNTAKEN_MAX).await;
        assert!(!is_over(&hangup), "nobody minds");
        matters.store(true, Ordering::Relaxed);
        let first = next(&mut body).await;
        tokio::time::sleep(UNTAKEN_MAX / 2).await;
        drop(first);
        tokio::time::sleep(UNTAKEN_MAX * 2 / 3).await;
        assert!(!is_over(&hangup), "a part of it has left");
        tokio::time::sleep(2 * UNTAKEN_MAX).await;
        assert!(is_over(&hangup));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_for_which_there_is_nothing_keeps_its_connection() {
        let hangup = Hangup::default();
        let nothing = futures::stream::pending::<Result<Frame<Bytes>, tonic::Status>>();
        let mut response = Response::new(Body::new(StreamBody::new(nothing)));
        response.extensions_mut().insert(Freight::default().within(hangup.clone(), || true));
        let mut body = served(response).await;
        assert!(futures::poll!(body.frame()).is_pending());
        tokio::time::sleep(10 * UNTAKEN_MAX).await;
        assert!(!is_over(&hangup));
        drop(body);
        // The transport has all of it, and keeps it.
        let mut whole =
            served(answer(Some(Freight::default().within(hangup.clone(), || true)), vec!["x"])).await;
        let unsent = next(&mut whole).await;
        assert!(whole.frame().await.is_none());
        drop(whole);
        assert_eq!(hangup.unsent_bytes(), 1);
        tokio::time::sleep(UNTAKEN_MAX / 2).await;
        assert!(!is_over(&hangup));
        drop(unsent);
        assert_eq!(hangup.unsent_bytes(), 0);
        let ended = served(answer(Some(Freight::default().within(hangup.clone(), || true)), vec![])).await;
        drop(ended);
        tokio::time::sleep(10 * UNTAKEN_MAX).await;
        assert!(!is_over(&hangup), "the answer has left");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_waits_behind_others_of_its_connection_is_not_stalled() {
        let hangup = Hangup::default();
        let _untaken =
            served(answer(Some(Freight::default().within(hangup.clone(), || true)), vec!["x"])).await;
        for _ in 0..4 {
            tokio::time::sleep(UNTAKEN_MAX / 2).await;
            hangup.wrote(UNTAKEN_MAX.as_secs() as usize * TAKEN_BYTES_PER_S);
            tokio::time::sleep(UNTAKEN_MAX / 2).await;
            assert!(!is_over(&hangup));
        }
        tokio::time::sleep(UNTAKEN_MAX / 2).await;
        hangup.wrote(UNTAKEN_MAX.as_secs() as usize * TAKEN_BYTES_PER_S - 1);
        tokio::time::sleep(UNTAKEN_MAX).await;
        assert!(is_over(&hangup), "others hardly get on either");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stalled_answer_ends_a_connection_that_gets_on_for_ever_with_others() {
        let hangup = Hangup::default();
        let _untaken =
            served(answer(Some(Freight::default().within(hangup.clone(), || true)), vec!["x"])).await;
        tokio::time::sleep(UNTAKEN_MAX / 2).await;
        for is_ended in [false, false, true] {
            hangup.wrote(BEFORE_A_PIECE_BYTES_MAX as usize * 2 / 5);
            tokio::time::sleep(UNTAKEN_MAX).await;
            assert_eq!(is_over(&hangup), is_ended);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_leaves_piece_by_piece_between_others_is_not_stalled() {
        let hangup = Hangup::default();
        let long = Bytes::from(vec![b'x'; 3 * PIECE_BYTES]);
        let mut body = served(answer_of(Freight::default().within(hangup.clone(), || true), long)).await;
        let mut unsent = next(&mut body).await;
        tokio::time::sleep(UNTAKEN_MAX / 2).await;
        for (has_left, is_ended) in [(true, false), (true, false), (false, false), (false, true)] {
            if has_left {
                unsent = next(&mut body).await;
            }
            hangup.wrote(BEFORE_A_PIECE_BYTES_MAX as usize * 3 / 4);
            tokio::time::sleep(UNTAKEN_MAX).await;
            assert_eq!(is_over(&hangup), is_ended);
        }
        drop(unsent);
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_transport_has_and_does_not_get_rid_of_is_not_taken() {
        let hangup = Hangup::default();
        let mut body =
            served(answer(Some(Freight::default().within(hangup.clone(), || true)), vec!["x"])).await;
        let unsent = next(&mut body).await;
        assert!(body.frame().await.is_none());
        drop(body);
        tokio::time::sleep(3 * UNTAKEN_MAX).await;
        assert!(is_over(&hangup));
        drop(unsent);
    }
}
