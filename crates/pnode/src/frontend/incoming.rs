//! Calls as they come in: who makes one is known by its head before anything else of it is read, and what is long has room first.
//!
//! Owns: when the bytes of a call are read, the room of long messages, and how long their clients may take to send them. Whether a user
//! may do what it asks for is judged when the message is decoded; what its answer holds is [freight](sextant_environment::freight).
//!
//! Invariant: nothing is read of a call whose caller is not known, where that is asked; beyond [`LARGE_BYTES`] and a frame nothing of a
//! message without room, which is held until the call is answered. Nobody waits without reading: the calls of a connection share its
//! window, so those that hold room would not get on.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http_body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;
use sextant_common::limits::LARGE_BYTES;
use sextant_common::{Error, ErrorKind, Result};
use sextant_environment::env::status_of;
use sextant_environment::room::{Room, Share};
use sextant_proto::MESSAGE_BYTES_MAX;
use tokio::time::Sleep;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::server::NamedService;
use tower::Service;

use super::fields::{self, Fields};
use super::gate::Gate;

/// How long a client may take to send a message that holds room: this, and a second for so many bytes. (As over RESP.)
const UPLOAD_GRACE: Duration = Duration::from_secs(10);
const UPLOAD_BYTES_PER_S: usize = 256 * 1024;

/// For long messages.
#[derive(Clone, Debug)]
pub(crate) struct Rooms {
    /// Of calls under way, shared with the other front end.
    pub large: Room,
    /// Of those that are read while they wait for that. What finds no room here either is refused at once.
    pub waiting: Room,
}

impl Rooms {
    pub fn new(large: Room, waiting_bytes_max: usize) -> Self {
        Self { large, waiting: Room::new(waiting_bytes_max) }
    }

    /// Err: there is none, neither to be carried out nor to wait.
    fn take(&self, bytes: usize) -> Result<Held> {
        let held = self.large.try_take(bytes).map(Held::Room);
        held.or_else(|| self.waiting.try_take(bytes).map(Held::Place)).ok_or_else(no_room)
    }
}

pub(super) fn no_room() -> Error {
    Error::new(ErrorKind::Overloaded, "the call was not executed: the p-node has no room for its bytes")
}

#[derive(Debug)]
enum Held {
    Room(Share),
    /// To wait for room.
    Place(Share),
}

/// What a call holds for its message. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Luggage(Arc<Mutex<Vec<Held>>>);

impl Luggage {
    fn bytes(&self) -> usize {
        let bytes = |held: &Held| match held {
            Held::Room(share) | Held::Place(share) => share.bytes(),
        };
        self.0.lock().iter().map(bytes).sum()
    }

    /// Whether it has room, and no place to wait for it.
    pub fn has_room(&self) -> bool {
        let held = self.0.lock();
        !held.is_empty() && held.iter().all(|held| matches!(held, Held::Room(_)))
    }

    /// Places to wait, to be given back when there is room.
    pub fn places(&self) -> Vec<Share> {
        let held = std::mem::take(&mut *self.0.lock());
        let shares = held.into_iter().map(|held| match held {
            Held::Room(share) | Held::Place(share) => share,
        });
        shares.collect()
    }
}

/// A service whose calls are read only so far.
#[derive(Clone)]
pub(crate) struct Incoming<S> {
    inner: S,
    gate: Gate,
    /// None: long messages need none.
    rooms: Option<Rooms>,
}

impl<S> Incoming<S> {
    /// For whoever the gate knows.
    pub fn known(inner: S, gate: &Gate) -> Self {
        Self { inner, gate: gate.clone(), rooms: None }
    }

    /// And with room for what is long.
    pub fn with_room(inner: S, gate: &Gate, rooms: &Rooms) -> Self {
        Self { rooms: Some(rooms.clone()), ..Self::known(inner, gate) }
    }
}

impl<S: NamedService> NamedService for Incoming<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<Body>> for Incoming<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, std::result::Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<std::result::Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        // The one that is ready stays here for this call, its copy is for the next.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        let (gate, rooms) = (self.gate.clone(), self.rooms.clone());
        Box::pin(async move {
            match gate.know(request.headers(), request.extensions()).await {
                Ok(None) => {}
                Ok(Some(known)) => drop(request.extensions_mut().insert(known)),
                Err(error) => return Ok(status_of(error).into_http()),
            }
            let luggage = Luggage::default();
            request.extensions_mut().insert(luggage.clone());
            let fields = Fields::default();
            let held = luggage.clone();
            let body = |body| Body::new(IncomingBody { body, fields, rooms, luggage, due: None });
            let answer = inner.call(request.map(body)).await;
            drop(held);
            answer
        })
    }
}

struct IncomingBody {
    body: Body,
    fields: Fields,
    rooms: Option<Rooms>,
    luggage: Luggage,
    /// When the message that holds room is to be here.
    due: Option<Pin<Box<Sleep>>>,
}

impl IncomingBody {
    /// Of a message that has begun. (One that is longer than any is refused where it is decoded, and not read either.)
    fn take_room(&mut self) -> std::result::Result<(), Status> {
        let Some(rooms) = &self.rooms else { return Ok(()) };
        let announced = self.fields.announced();
        if self.fields.is_whole() {
            self.due = None;
        }
        if announced <= LARGE_BYTES || announced > MESSAGE_BYTES_MAX {
            return Ok(());
        }
        let held = self.luggage.bytes();
        if announced > held {
            self.luggage.0.lock().push(rooms.take(announced - held).map_err(status_of)?);
        }
        if self.due.is_none() && !self.fields.is_whole() {
            let seconds = announced.div_ceil(UPLOAD_BYTES_PER_S) as u64;
            self.due = Some(Box::pin(tokio::time::sleep(UPLOAD_GRACE + Duration::from_secs(seconds))));
        }
        Ok(())
    }

    /// If not, the task is woken when it is.
    fn is_overdue(&mut self, cx: &mut Context<'_>) -> bool {
        self.due.as_mut().is_some_and(|due| due.as_mut().poll(cx).is_ready())
    }
}

impl HttpBody for IncomingBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, Status>>> {
        if self.is_overdue(cx) {
            let why = "the call was not executed: its bytes come too slowly for the room that they take";
            return Poll::Ready(Some(Err(status_of(Error::new(ErrorKind::Overloaded, why)))));
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            if !self.fields.pass(data) {
                return Poll::Ready(Some(Err(fields::too_many())));
            }
            if let Err(status) = self.take_room() {
                return Poll::Ready(Some(Err(status)));
            }
        }
        Poll::Ready(frame)
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
    use std::collections::VecDeque;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use base64::Engine;
    use base64::prelude::BASE64_STANDARD;
    use http_body_util::BodyExt;
    use prometheus_client::registry::Registry;
    use sextant_access::{Allowances, Desk, Keeper, LimitsConfig, Outcomes, Stored};
    use sextant_environment::Env;

    use super::*;

    const FRAME_BYTES: usize = 16 * 1024;

    struct NobodyElse;

    impl Keeper for NobodyElse {
        fn load(&self) -> BoxFuture<'_, Result<Option<Stored>>> {
            Box::pin(std::future::ready(Ok(None)))
        }

        fn store(&self, _: String, _: u64) -> BoxFuture<'_, Result<bool>> {
            Box::pin(std::future::ready(Ok(false)))
        }
    }

    fn gate(with_users: bool) -> Gate {
        let env = Env::real();
        let mut registry = Registry::default();
        let desk = with_users.then(|| {
            let hash = sextant_access::hash(b"secret", &*env.rng).unwrap();
            let access = serde_json::json!({ "superusers": { "root": hash } });
            let access = serde_json::from_value(access).unwrap();
            let outcomes = Outcomes::register(&mut registry);
            Desk::new(env.clone(), &access, Arc::new(NobodyElse), outcomes).unwrap()
        });
        let allowances = Allowances::new(env.clock.clone(), LimitsConfig::default(), &mut registry);
        Gate { desk, allowances }
    }

    /// Reads all that there is, and says how many bytes; what the call holds then.
    #[derive(Clone, Default)]
    struct Reader(Arc<Mutex<Option<Luggage>>>);

    impl Service<Request<Body>> for Reader {
        type Response = Response<Body>;
        type Error = Infallible;
        type Future = BoxFuture<'static, std::result::Result<Response<Body>, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::result::Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: Request<Body>) -> Self::Future {
            let luggage = request.extensions().get::<Luggage>().cloned();
            let kept = self.0.clone();
            Box::pin(async move {
                let read = request.into_body().collect().await;
                *kept.lock() = luggage;
                Ok(match read {
                    Ok(_) => Response::new(Body::empty()),
                    Err(status) => status.into_http(),
                })
            })
        }
    }

    /// Frames of a message; how many were taken. `ends`: or nothing more comes.
    struct Sent {
        frames: VecDeque<Bytes>,
        taken: Arc<AtomicUsize>,
        ends: bool,
    }

    impl HttpBody for Sent {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<std::result::Result<Frame<Bytes>, Status>>> {
            match self.frames.pop_front() {
                Some(frame) => {
                    self.taken.fetch_add(1, Ordering::SeqCst);
                    Poll::Ready(Some(Ok(Frame::data(frame))))
                }
                None if self.ends => Poll::Ready(None),
                None => Poll::Pending,
            }
        }
    }

    /// A message of so many bytes, in one field, of which so many come.
    fn sent(length: usize, come: usize, taken: &Arc<AtomicUsize>) -> Request<Body> {
        let mut bytes = vec![0x0a, 0xff, 0xff, 0xff, 0x7f];
        bytes.resize(length, 0);
        let mut framed = [&[0][..], &(length as u32).to_be_bytes(), &bytes].concat();
        framed.truncate(come);
        let frames = framed.chunks(FRAME_BYTES).map(Bytes::copy_from_slice).collect();
        let body = Sent { frames, taken: taken.clone(), ends: come > length };
        Request::new(Body::new(body))
    }

    fn code(answer: &Response<Body>) -> Option<&str> {
        answer.headers().get("grpc-status").map(|code| code.to_str().unwrap())
    }

    fn signed(mut request: Request<Body>, said: &str) -> Request<Body> {
        let said = format!("Basic {}", BASE64_STANDARD.encode(said));
        request.headers_mut().insert("authorization", said.parse().unwrap());
        request
    }

    #[tokio::test]
    async fn nothing_is_read_of_a_call_whose_caller_is_not_known() {
        const LENGTH: usize = 1 << 20;
        let taken = Arc::<AtomicUsize>::default();
        let gate = gate(true);
        gate.desk.as_ref().unwrap().refresh().await.unwrap();
        let mut service = Incoming::known(Reader::default(), &gate);
        let call = || sent(LENGTH, usize::MAX, &taken);
        let unauthenticated = (tonic::Code::Unauthenticated as i32).to_string();
        for refused in [call(), signed(call(), "root:wrong"), signed(call(), "eve:secret")] {
            let answer = service.call(refused).await.unwrap();
            assert_eq!(code(&answer), Some(&*unauthenticated));
            assert_eq!(taken.load(Ordering::SeqCst), 0);
        }
        let answer = service.call(signed(call(), "root:secret")).await.unwrap();
        assert_eq!((code(&answer), taken.load(Ordering::SeqCst)), (None, LENGTH / FRAME_BYTES + 1));
    }

    #[tokio::test]
    async fn a_long_message_is_read_only_with_room_or_a_place_to_wait_for_it() {
        const LENGTH: usize = 1 << 20;
        let taken = Arc::<AtomicUsize>::default();
        let rooms = Rooms::new(Room::new(LENGTH), LENGTH);
        let reader = Reader::default();
        let mut service = Incoming::with_room(reader.clone(), &gate(false), &rooms);
        let mut read = async |length| {
            taken.store(0, Ordering::SeqCst);
            let answer = service.call(sent(length, usize::MAX, &taken)).await.unwrap();
            (code(&answer).map(str::to_owned), taken.load(Ordering::SeqCst))
        };
        let all = (None, LENGTH / FRAME_BYTES + 1);
        assert_eq!(read(LENGTH).await, all);
        assert!(reader.0.lock().take().unwrap().has_room());
        let room = rooms.large.try_take(LENGTH).unwrap();
        assert_eq!(read(LENGTH).await, all);
        assert!(!reader.0.lock().take().unwrap().has_room(), "it has to wait");
        let place = rooms.waiting.try_take(LENGTH).unwrap();
        assert_eq!(read(LENGTH).await.1, 1);
        assert_eq!(read(LARGE_BYTES).await.0, None, "short ones need none");
        drop((room, place));
        *reader.0.lock() = None;
        assert_eq!((rooms.large.held_bytes(), rooms.waiting.held_bytes()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn who_sends_nothing_more_does_not_keep_the_room() {
        let taken = Arc::<AtomicUsize>::default();
        let rooms = Rooms::new(Room::new(1 << 20), 1);
        let mut service = Incoming::with_room(Reader::default(), &gate(false), &rooms);
        let answer = service.call(sent(1 << 20, 3 * FRAME_BYTES, &taken)).await.unwrap();
        assert!(code(&answer).is_some());
        assert_eq!(taken.load(Ordering::SeqCst), 3);
    }
}
