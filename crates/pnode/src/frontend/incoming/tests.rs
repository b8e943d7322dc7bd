//! Calls that are read, or not.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use futures::StreamExt;
use http_body_util::{BodyExt, StreamBody};
use sextant_environment::Env;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::due::{BEGINS_WITHIN, SHARING_MAX, UPLOAD_BYTES_PER_S, UPLOAD_GRACE};
use super::*;
use crate::frontend::gate::gate_of;

const FRAME_BYTES: usize = 16 * 1024;

fn gate(with_users: bool) -> Gate {
    let hash = sextant_access::hash(b"secret", &*Env::real().rng).unwrap();
    let (gate, _) = gate_of(&hash);
    if with_users { gate } else { Gate { desk: None, ..gate } }
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
    for (length, come, frames) in [(1 << 20, 3 * FRAME_BYTES, 3), (LARGE_BYTES, FRAME_BYTES, 1), (9, 0, 0)] {
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
    assert!(code(&service.call(sent(LARGE_BYTES, FRAME_BYTES, &taken)).await.unwrap()).is_some(), "no room");
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
