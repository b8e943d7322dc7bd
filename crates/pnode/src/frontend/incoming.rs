//! Calls as they come in: who makes one is known by its head before anything else of it is read, what is long has room first, and what
//! does not come all at once has room and little time.
//!
//! Owns: when the bytes of a call are read, the room of messages, and how long their clients may take to send them. Whether a user
//! may do what it asks for is judged when the message is decoded; what its answer holds is [freight](sextant_environment::freight).
//!
//! Invariant: nothing is read of a call whose caller is not known, or has no place, where that is asked; beyond [`LARGE_BYTES`] and a
//! frame nothing of a message without room, which is held until the call is answered; and beyond a frame nothing of a shorter one whose
//! rest is waited for. Nobody waits without reading: the calls of a connection share its window, so those that hold room would not get
//! on.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http_body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;
use sextant_common::limits::LARGE_BYTES;
use sextant_common::{Error, ErrorKind, Result};
use sextant_environment::env::{Caller, Hangup, status_of};
use sextant_environment::room::{Room, Share};
use sextant_proto::MESSAGE_BYTES_MAX;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Sleep;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::server::NamedService;
use tower::Service;

use super::fields::{self, Fields};
use super::gate::{Entered, Gate};

/// How long it may take until the first message of a call begins: it may wait for other calls of its connection.
const BEGINS_WITHIN: Duration = Duration::from_secs(60);
/// How long a client may take to send a message that has begun: this, and a second for so many bytes. (As over RESP.)
const UPLOAD_GRACE: Duration = Duration::from_secs(10);
const UPLOAD_BYTES_PER_S: usize = 256 * 1024;
/// How much longer either may take, as long as the connection brings so many bytes a second, of whatever: clients send their calls in
/// turn, each has a part of it. (Enough for as many bytes as parts of messages have room.)
const SHARING_MAX: Duration = Duration::from_secs(5 * 60);
/// Of short messages that do not come all at once.
const PARTS_BYTES_MAX: usize = 64 * 1024 * 1024;
/// They take it as they come, so much at a time: a frame. (Whoever decodes them reserves all that is announced; the rest of that is not
/// touched.)
const PART_BYTES: usize = 16 * 1024;
/// Of those of who need not say who they are.
const STRANGERS_BYTES_MAX: usize = 4 * 1024 * 1024;

/// For messages.
#[derive(Clone, Debug)]
pub(crate) struct Rooms {
    /// Of long ones of calls under way, shared with the other front end.
    pub large: Room,
    /// Of those that are read while they wait for that. What finds no room here either is refused at once.
    pub waiting: Room,
    /// Of short ones that have begun: what has come of them.
    pub parts: Room,
}

impl Rooms {
    pub fn new(large: Room, waiting_bytes_max: usize) -> Self {
        Self { large, waiting: Room::new(waiting_bytes_max), parts: Room::new(PARTS_BYTES_MAX) }
    }

    fn of(bytes_max: usize) -> Self {
        let room = Room::new(bytes_max);
        Self { large: room.clone(), waiting: room.clone(), parts: room }
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
    /// Of what its user may have in flight.
    Carried {
        _permit: OwnedSemaphorePermit,
    },
}

/// What a call holds for its message. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Luggage(Arc<Mutex<Vec<Held>>>);

impl Held {
    fn bytes(&self) -> usize {
        match self {
            Held::Room(share) | Held::Place(share) => share.bytes(),
            Held::Carried { .. } => 0,
        }
    }
}

impl Luggage {
    fn bytes(&self) -> usize {
        self.0.lock().iter().map(Held::bytes).sum()
    }

    /// Whether it has room, and no place to wait for it.
    pub fn has_room(&self) -> bool {
        let held = self.0.lock();
        held.iter().any(|held| matches!(held, Held::Room(_)))
            && !held.iter().any(|held| matches!(held, Held::Place(_)))
    }

    /// Whether its bytes are counted among those that its user has in flight.
    pub fn is_carried(&self) -> bool {
        self.0.lock().iter().any(|held| matches!(held, Held::Carried { .. }))
    }

    /// Places to wait, to be given back when there is room.
    pub fn places(&self) -> Vec<Share> {
        let mut held = self.0.lock();
        let (carried, shares) =
            std::mem::take(&mut *held).into_iter().partition(|held| matches!(held, Held::Carried { .. }));
        *held = carried;
        let share = |held| match held {
            Held::Room(share) | Held::Place(share) => Some(share),
            Held::Carried { .. } => None,
        };
        Vec::into_iter(shares).filter_map(share).collect()
    }
}

/// Who may make calls of a service.
#[derive(Clone)]
enum Who {
    /// Anybody.
    Strangers,
    /// Whom the gate knows.
    Users(Gate),
    /// Those of them who may administrate, whom no limit keeps away.
    Operators(Gate),
}

/// A service whose calls are read only so far.
#[derive(Clone)]
pub(crate) struct Incoming<S> {
    inner: S,
    who: Who,
    /// None: they may send as much as they like, and message after message.
    rooms: Option<Rooms>,
}

impl<S> Incoming<S> {
    /// For whoever the gate knows.
    pub fn of_users(inner: S, gate: &Gate, rooms: &Rooms) -> Self {
        Self { inner, who: Who::Users(gate.clone()), rooms: Some(rooms.clone()) }
    }

    pub fn of_operators(inner: S, gate: &Gate) -> Self {
        Self { inner, who: Who::Operators(gate.clone()), rooms: None }
    }

    pub fn of_strangers(inner: S) -> Self {
        Self { inner, who: Who::Strangers, rooms: Some(Rooms::of(STRANGERS_BYTES_MAX)) }
    }
}

impl Who {
    /// Lets a call in, whose head is here.
    async fn admit(&self, request: &mut Request<Body>) -> Result<Option<Arc<Entered>>> {
        let gate = match self {
            Who::Strangers => return Ok(None),
            Who::Users(gate) | Who::Operators(gate) => gate,
        };
        let known = gate.know(request.headers(), request.extensions()).await?;
        let entered = match self {
            Who::Operators(_) => {
                gate.is_operator(known.as_ref())?;
                None
            }
            _ => gate.enter(known.as_ref())?,
        };
        if let Some(known) = known {
            request.extensions_mut().insert(known);
        }
        if let Some(entered) = &entered {
            request.extensions_mut().insert(entered.clone());
        }
        Ok(entered)
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
        let (who, rooms) = (self.who.clone(), self.rooms.clone());
        let hangup = request.extensions().get::<Caller>().and_then(|caller| caller.hangup.clone());
        if let Some(hangup) = &hangup {
            hangup.called();
        }
        Box::pin(async move {
            let entered = match who.admit(&mut request).await {
                Ok(entered) => entered,
                Err(error) => return Ok(status_of(error).into_http()),
            };
            let luggage = Luggage::default();
            request.extensions_mut().insert(luggage.clone());
            let held = luggage.clone();
            let body = |body| Body::new(IncomingBody::new(body, rooms, luggage, entered, hangup));
            let answer = inner.call(request.map(body)).await;
            drop(held);
            answer
        })
    }
}

/// The body of a call: with room, of one with one message.
struct IncomingBody {
    body: Body,
    fields: Fields,
    rooms: Option<Rooms>,
    luggage: Luggage,
    entered: Option<Arc<Entered>>,
    /// Of its connection.
    hangup: Option<Hangup>,
    /// Of a short message whose rest is waited for, or its end.
    parts: Vec<Share>,
    /// None: nothing was waited for.
    due: Option<Due>,
}

/// When a message is to be here.
struct Due {
    sleep: Pin<Box<Sleep>>,
    /// Which one, and how many seconds it was given for its length.
    message: usize,
    seconds: usize,
    /// How long until then, from the last look; and what its connection had received at that look.
    period: Duration,
    received: u64,
    /// How much longer it may be waited for because its connection gets on.
    more: Duration,
}

impl Due {
    /// Whether it is over; if not, the task is woken when it may be. `received`: by its connection, until now.
    fn is_over(&mut self, received: u64, cx: &mut Context<'_>) -> bool {
        while self.sleep.as_mut().poll(cx).is_ready() {
            let gets_on = received - self.received >= self.period.as_secs() * UPLOAD_BYTES_PER_S as u64;
            if !gets_on || self.more.is_zero() {
                return true;
            }
            (self.period, self.received) = (self.period.min(self.more), received);
            self.more -= self.period;
            // (From now on: this process may have stood still.)
            self.sleep.set(tokio::time::sleep(self.period));
        }
        false
    }
}

impl IncomingBody {
    fn new(
        body: Body,
        rooms: Option<Rooms>,
        luggage: Luggage,
        entered: Option<Arc<Entered>>,
        hangup: Option<Hangup>,
    ) -> Self {
        let (fields, parts) = (Fields::default(), Vec::new());
        Self { body, fields, rooms, luggage, entered, hangup, parts, due: None }
    }

    /// Of a message that has begun. (One that is longer than any is refused where it is decoded, and not read either.)
    fn take_room(&mut self) -> Result<()> {
        let announced = self.fields.announced();
        let Some(rooms) = &self.rooms else {
            return Ok(());
        };
        if announced <= LARGE_BYTES || announced > MESSAGE_BYTES_MAX {
            return Ok(());
        }
        let held = self.luggage.bytes();
        if announced > held {
            // What its user may take comes first: who has too much takes nothing from others.
            let carried =
                self.entered.as_ref().map_or(Ok(None), |entered| entered.carry(announced - held))?;
            let room = rooms.take(announced - held)?;
            let mut luggage = self.luggage.0.lock();
            luggage.extend(carried.map(|permit| Held::Carried { _permit: permit }));
            luggage.push(room);
        }
        Ok(())
    }

    /// Of a short message that has begun, for what has come, and what comes next.
    fn take_room_for_a_part(&mut self) -> Result<()> {
        let announced = self.fields.announced();
        let Some(rooms) = &self.rooms else {
            return Ok(());
        };
        if announced > LARGE_BYTES {
            return Ok(());
        }
        let wants = (self.fields.come() + 1).next_multiple_of(PART_BYTES).min(announced);
        let has: usize = self.parts.iter().map(Share::bytes).sum();
        if wants > has {
            self.parts.push(rooms.parts.try_take(wants - has).ok_or_else(no_room)?);
        }
        Ok(())
    }

    /// Nothing more is here. Whether it should be; if not, the task is woken when it is to.
    fn waits(&mut self, cx: &mut Context<'_>) -> Result<()> {
        let begun = self.fields.begun();
        if self.rooms.is_none() && begun > 0 && self.fields.is_whole() {
            // The next one takes its time.
            return Ok(());
        }
        self.take_room_for_a_part()?;
        // (Who has room sends one.)
        let message = if self.rooms.is_some() { begun.min(1) } else { begun };
        let seconds = self.fields.announced().min(MESSAGE_BYTES_MAX) / UPLOAD_BYTES_PER_S;
        let period = match begun {
            0 => BEGINS_WITHIN,
            _ => UPLOAD_GRACE + Duration::from_secs(seconds as u64),
        };
        let received = self.hangup.as_ref().map_or(0, Hangup::received_bytes);
        if self.due.as_ref().is_none_or(|due| due.message != message || due.seconds < seconds) {
            let before = self.due.take().filter(|due| due.message == message);
            let more = before.map_or(SHARING_MAX, |due| due.more);
            let sleep = Box::pin(tokio::time::sleep(period));
            self.due = Some(Due { sleep, message, seconds, period, received, more });
        }
        if self.due.as_mut().is_some_and(|due| due.is_over(received, cx)) {
            let why = "the call was not executed: its bytes come too slowly for the room that they take";
            return Err(Error::new(ErrorKind::Overloaded, why));
        }
        Ok(())
    }
}

impl HttpBody for IncomingBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, Status>>> {
        let fails = |error| Poll::Ready(Some(Err(status_of(error))));
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else {
            return self.waits(cx).map_or_else(fails, |()| Poll::Pending);
        };
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            if !self.fields.pass(data) {
                return Poll::Ready(Some(Err(fields::too_many())));
            }
            if let Err(error) = self.take_room() {
                return fails(error);
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
    use futures::StreamExt;
    use http_body_util::{BodyExt, StreamBody};
    use prometheus_client::registry::Registry;
    use sextant_access::{Allowances, Desk, Keeper, LimitsConfig, Outcomes, Stored};
    use sextant_environment::Env;
    use tokio::sync::mpsc;
    use tokio_stream::wrappers::ReceiverStream;

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

    /// A message of so many bytes, in one field, as it is sent.
    fn framed(length: usize) -> Vec<u8> {
        let mut bytes = vec![0x0a, 0xff, 0xff, 0xff, 0x7f];
        bytes.resize(length, 0);
        [&[0][..], &(length as u32).to_be_bytes(), &bytes].concat()
    }

    /// A message of which so many bytes come.
    fn sent(length: usize, come: usize, taken: &Arc<AtomicUsize>) -> Request<Body> {
        let mut framed = framed(length);
        framed.truncate(come);
        let frames = framed.chunks(FRAME_BYTES).map(Bytes::copy_from_slice).collect();
        let body = Sent { frames, taken: taken.clone(), ends: come > length };
        Request::new(Body::new(body))
    }

    /// All of a message, and then nothing more, nor an end.
    fn sent_and_open(length: usize, taken: &Arc<AtomicUsize>) -> Request<Body> {
        let framed = [&[0][..], &(length as u32).to_be_bytes(), &vec![0; length]].concat();
        let body = Sent { frames: [Bytes::from(framed)].into(), taken: taken.clone(), ends: false };
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
        let mut service = Incoming::of_users(Reader::default(), &gate, &Rooms::new(Room::new(1 << 24), 1));
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
        let mut service = Incoming::of_users(reader.clone(), &gate(false), &rooms);
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
        let mut service = Incoming::of_users(Reader::default(), &gate(false), &rooms);
        // Of a long message a part, of a short one, and nothing.
        for (length, come, frames) in
            [(1 << 20, 3 * FRAME_BYTES, 3), (LARGE_BYTES, FRAME_BYTES, 1), (9, 0, 0)]
        {
            taken.store(0, Ordering::SeqCst);
            let answer = service.call(sent(length, come, &taken)).await.unwrap();
            assert!(code(&answer).is_some());
            assert_eq!(taken.load(Ordering::SeqCst), frames);
        }
        assert_eq!((rooms.large.held_bytes(), rooms.parts.held_bytes()), (0, 0));
    }

    #[tokio::test]
    async fn short_messages_that_come_in_parts_have_room_together() {
        let taken = Arc::<AtomicUsize>::default();
        let rooms = Rooms { parts: Room::new(LARGE_BYTES), ..Rooms::new(Room::new(1 << 20), 1) };
        let mut service = Incoming::of_users(Reader::default(), &gate(false), &rooms);
        // For what has come, and not for what is announced.
        let mut waiting = Vec::new();
        for held in 1..=LARGE_BYTES / FRAME_BYTES {
            let mut waits = service.call(sent(LARGE_BYTES, FRAME_BYTES, &taken));
            assert!(futures::poll!(&mut waits).is_pending());
            assert_eq!(rooms.parts.held_bytes(), held * FRAME_BYTES);
            waiting.push(waits);
        }
        assert!(
            code(&service.call(sent(LARGE_BYTES, FRAME_BYTES, &taken)).await.unwrap()).is_some(),
            "no room"
        );
        let answer = service.call(sent(LARGE_BYTES, usize::MAX, &taken)).await.unwrap();
        assert_eq!(code(&answer), None, "all at once needs none");
        drop(waiting);
        assert_eq!(rooms.parts.held_bytes(), 0);
    }

    #[tokio::test]
    async fn a_short_message_takes_room_as_it_comes_and_is_refused_where_there_is_no_more() {
        let rooms = Rooms { parts: Room::new(LARGE_BYTES), ..Rooms::new(Room::new(1 << 20), 1) };
        let mut service = Incoming::of_users(Reader::default(), &gate(false), &rooms);
        let exhausted = (tonic::Code::ResourceExhausted as i32).to_string();
        for others in [None, Some(2 * FRAME_BYTES)] {
            let others = others.map(|bytes| rooms.parts.try_take(bytes).unwrap());
            let before = rooms.parts.held_bytes();
            let (send, frames) = mpsc::channel(1);
            let frames = ReceiverStream::new(frames).map(|data| Ok::<_, Status>(Frame::data(data)));
            let mut call = service.call(Request::new(Body::new(StreamBody::new(frames))));
            let mut answer = None;
            for (at, frame) in framed(LARGE_BYTES).chunks(FRAME_BYTES).enumerate() {
                send.try_send(Bytes::copy_from_slice(frame)).unwrap();
                if let Poll::Ready(refused) = futures::poll!(&mut call) {
                    assert_eq!((at, before), (2, 2 * FRAME_BYTES), "two frames have room");
                    answer = Some(refused.unwrap());
                    break;
                }
                let room = (at + 1) * FRAME_BYTES;
                assert_eq!(rooms.parts.held_bytes(), before + room.min(LARGE_BYTES));
            }
            drop(send);
            let answer = match answer {
                Some(answer) => answer,
                None => call.await.unwrap(),
            };
            assert_eq!(code(&answer), others.is_some().then_some(&*exhausted));
            drop(others);
            assert_eq!(rooms.parts.held_bytes(), 0);
        }
    }

    /// Two frames of a message: when the first one comes, and how much later the second.
    fn late(begins: Duration, goes_on: Duration) -> Request<Body> {
        let bytes = Bytes::from(framed(2 * FRAME_BYTES));
        let frames = [(begins, bytes.slice(..FRAME_BYTES)), (goes_on, bytes.slice(FRAME_BYTES..))];
        let frames = futures::stream::iter(frames).then(|(after, data)| async move {
            tokio::time::sleep(after).await;
            Ok::<_, Status>(Frame::data(data))
        });
        Request::new(Body::new(StreamBody::new(frames)))
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_not_begun_may_wait_for_others_of_its_connection() {
        let rooms = Rooms::new(Room::new(1 << 20), 1);
        let mut service = Incoming::of_users(Reader::default(), &gate(false), &rooms);
        let second = Duration::from_secs(1);
        // When its first frame comes, and how much later its second one.
        for (begins, goes_on, is_in_time) in [
            (BEGINS_WITHIN - second, UPLOAD_GRACE - second, true),
            (BEGINS_WITHIN + second, Duration::ZERO, false),
            (Duration::ZERO, UPLOAD_GRACE + second, false),
        ] {
            let answer = service.call(late(begins, goes_on)).await.unwrap();
            assert_eq!(code(&answer).is_none(), is_in_time, "{begins:?}, {goes_on:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_shares_a_connection_that_gets_on_has_more_time_but_not_for_ever() {
        let rooms = Rooms::new(Room::new(1 << 20), 1);
        let mut service = Incoming::of_users(Reader::default(), &gate(false), &rooms);
        let (second, enough) = (Duration::from_secs(1), UPLOAD_BYTES_PER_S);
        // What its connection receives a second.
        for (bytes_per_s, begins, goes_on, is_in_time) in [
            (enough, Duration::ZERO, UPLOAD_GRACE + second, true),
            (enough, Duration::ZERO, UPLOAD_GRACE + SHARING_MAX - second, true),
            (enough, Duration::ZERO, UPLOAD_GRACE + SHARING_MAX + second, false),
            (enough - 1, Duration::ZERO, UPLOAD_GRACE + second, false),
            (0, Duration::ZERO, UPLOAD_GRACE + second, false),
            (enough, BEGINS_WITHIN + SHARING_MAX - second, UPLOAD_GRACE + second, true),
            (enough, BEGINS_WITHIN + SHARING_MAX + second, Duration::ZERO, false),
        ] {
            let hangup = Hangup::default();
            let mut request = late(begins, goes_on);
            request.extensions_mut().insert(Caller { hangup: Some(hangup.clone()), ..Caller::default() });
            let receives = async {
                tokio::time::sleep(second / 2).await;
                while !hangup.is_over() {
                    hangup.read(bytes_per_s);
                    tokio::time::sleep(second).await;
                }
            };
            let answer = tokio::select! {
                answer = service.call(request) => answer.unwrap(),
                () = receives => unreachable!("nobody ends it"),
            };
            assert_eq!(code(&answer).is_none(), is_in_time, "{bytes_per_s}, {begins:?}, {goes_on:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_operator_may_take_its_time_between_messages_but_not_within_one() {
        let taken = Arc::<AtomicUsize>::default();
        let mut service = Incoming::of_operators(Reader::default(), &gate(false));
        let mut waits = service.call(sent_and_open(20, &taken));
        assert!(tokio::time::timeout(10 * UPLOAD_GRACE, &mut waits).await.is_err(), "it waits for the next");
        let answer = service.call(sent(1 << 20, FRAME_BYTES, &taken)).await.unwrap();
        assert!(code(&answer).is_some());
    }

    #[tokio::test]
    async fn what_operators_do_is_asked_of_no_others() {
        let taken = Arc::<AtomicUsize>::default();
        let gate = gate(true);
        let desk = gate.desk.clone().unwrap();
        desk.refresh().await.unwrap();
        let mut service = Incoming::of_operators(Reader::default(), &gate);
        let answer = service.call(signed(sent(20, usize::MAX, &taken), "root:secret")).await.unwrap();
        assert_eq!(code(&answer), None);
        let answer = service.call(sent(20, usize::MAX, &taken)).await.unwrap();
        assert_eq!(code(&answer), Some(&*(tonic::Code::Unauthenticated as i32).to_string()));
    }
}
