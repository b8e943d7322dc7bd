//! Calls as they come in: who makes one is known by its head before anything else of it is read, what is long has room first, and what
//! does not come all at once has room and little time.
//!
//! Owns: when the bytes of a call are read, the room of messages, and how long their clients may take to send them ([`due`]). Whether a
//! user may do what it asks for is judged when the message is decoded; what its answer holds is
//! [freight](sextant_environment::freight).
//!
//! Invariant: nothing is read of a call whose caller is not known, or has no place, where that is asked; beyond [`LARGE_BYTES`] and a
//! frame nothing of a message without room, which is held until the call is answered; and beyond a frame nothing of a shorter one whose
//! rest is waited for. Nobody waits without reading: the calls of a connection share its window, so those that hold room would not get
//! on.

mod due;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

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
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::server::NamedService;
use tower::Service;

use super::fields::{self, Fields};
use super::gate::{Entered, Gate};
use due::Due;

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
        let length = self.fields.announced().min(MESSAGE_BYTES_MAX);
        let received = self.hangup.as_ref().map_or(0, Hangup::received_bytes);
        let due = Due::of(self.due.take(), message, length, received);
        if self.due.insert(due).is_over(received, cx) {
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
mod tests;
