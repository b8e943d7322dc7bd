//! The coalescer against a server that the test plays.

use std::sync::atomic::{AtomicUsize, Ordering};

use sextant_environment::clock::SystemClock;
use sextant_simulated::ManualClock;

use futures::StreamExt;

use super::driver::RENEWED_AFTER;
use super::*;

type Numbered = Vec<(u64, u32)>;
/// A stream as the server sees it.
type Accepted = (ReceiverStream<Numbered>, mpsc::UnboundedSender<Result<Numbered, Status>>);
type Messages = mpsc::UnboundedReceiver<Accepted>;

/// Requests and replies are numbers; the test plays the server.
struct Numbers {
    streams: mpsc::UnboundedSender<Accepted>,
    whole: bool,
    refuse: Arc<AtomicUsize>,
}

impl Call for Numbers {
    const KIND: MessageKind = MessageKind::Read;
    type Request = u32;
    type Reply = u32;
    type Batch = Vec<(u64, u32)>;
    type BatchReply = Vec<(u64, u32)>;

    fn request_bytes(request: &u32) -> usize {
        *request as usize
    }
    fn reply_bytes(_: &u32) -> usize {
        4
    }
    fn batch(&self, first_id: u64, requests: Vec<u32>) -> Self::Batch {
        (first_id..).zip(requests).collect()
    }
    /// Of the large ones; their tens alone look alike.
    fn alike(request: &u32) -> Option<u64> {
        (*request >= 1000).then_some(u64::from(request / 10))
    }
    fn join(earlier: &mut u32, later: &u32) -> bool {
        earlier == later
    }
    fn open(
        &self,
        messages: ReceiverStream<Self::Batch>,
    ) -> BoxFuture<'_, Result<Inbound<Self::BatchReply>, Status>> {
        if self.refuse.load(Ordering::SeqCst) > 0 {
            self.refuse.fetch_sub(1, Ordering::SeqCst);
            return Box::pin(async { Err(Status::unavailable("refused")) });
        }
        let (tx, rx) = mpsc::unbounded_channel();
        let _ = self.streams.send((messages, tx));
        let inbound = tokio_stream::wrappers::UnboundedReceiverStream::new(rx);
        Box::pin(async { Ok(inbound.boxed()) })
    }
    fn unary(&self, batch: Self::Batch) -> BoxFuture<'_, Result<Self::BatchReply, Status>> {
        Box::pin(async { Ok(batch.into_iter().map(|(id, n)| (id, n + 1)).collect()) })
    }
    fn replies(&self, reply: Self::BatchReply, each: &mut dyn FnMut(u64, u32)) -> Option<u64> {
        let first = reply.first().map(|(id, _)| *id);
        reply.into_iter().for_each(|(id, n)| each(id, n));
        if self.whole { first } else { None }
    }
}

fn start(
    limits: Limits,
    clock: Arc<dyn Clock>,
) -> (Arc<Coalescer<Numbers>>, Messages, Arc<AtomicUsize>, Arc<PNodeMetrics>) {
    let (streams, accepted) = mpsc::unbounded_channel();
    let refuse = Arc::new(AtomicUsize::new(0));
    let metrics = Arc::new(PNodeMetrics::default());
    let call = Numbers { streams, whole: true, refuse: refuse.clone() };
    (Arc::new(Coalescer::start(call, limits, clock, metrics.clone())), accepted, refuse, metrics)
}

fn asks(
    c: &Arc<Coalescer<Numbers>>,
    numbers: impl IntoIterator<Item = u32>,
) -> Vec<tokio::task::JoinHandle<Result<u32>>> {
    numbers
        .into_iter()
        .map(|n| {
            let c = c.clone();
            tokio::spawn(async move { c.ask(n).await })
        })
        .collect()
}

fn answer(batch: Vec<(u64, u32)>) -> Vec<(u64, u32)> {
    batch.into_iter().map(|(id, n)| (id, n + 1)).collect()
}

#[tokio::test]
async fn what_queues_up_while_two_messages_are_in_flight_travels_in_one() {
    let (c, mut accepted, _, metrics) = start(Limits::READS, Arc::new(ManualClock::default()));
    let first = asks(&c, [1]);
    let (mut inbound, replies) = accepted.recv().await.unwrap();
    let m1 = inbound.next().await.unwrap();
    let second = asks(&c, [2]);
    let m2 = inbound.next().await.unwrap();
    // The clock stands still: neither message ever becomes slow, so these wait.
    let rest = asks(&c, 3..=50);
    tokio::task::yield_now().await;
    replies.send(Ok(answer(m1))).unwrap();
    let m3 = inbound.next().await.unwrap();
    assert_eq!(m3.len(), 48);
    replies.send(Ok(answer(m2))).unwrap();
    replies.send(Ok(answer(m3))).unwrap();
    for (task, n) in first.into_iter().chain(second).chain(rest).zip(1..) {
        assert_eq!(task.await.unwrap().unwrap(), n + 1);
    }
    assert_eq!(metrics.messages(MessageKind::Read), (3, 50));
}

#[tokio::test]
async fn who_asks_for_the_same_before_it_leaves_is_answered_with_it() {
    let (c, mut accepted, _, metrics) = start(Limits::READS, Arc::new(ManualClock::default()));
    let first = asks(&c, [1001]);
    let (mut inbound, replies) = accepted.recv().await.unwrap();
    let m1 = inbound.next().await.unwrap();
    let second = asks(&c, [1001]);
    let m2 = inbound.next().await.unwrap();
    assert_eq!(m2.len(), 1, "what has left already may be answered too early for it");
    let rest = asks(&c, [1001, 1002, 7, 1001, 7, 1002, 1001]);
    let gone = asks(&c, [1002]);
    tokio::task::yield_now().await;
    gone.into_iter().for_each(|task| task.abort());
    replies.send(Ok(answer(m1))).unwrap();
    let m3 = inbound.next().await.unwrap();
    assert_eq!(
        m3.iter().map(|(_, n)| *n).collect::<Vec<_>>(),
        [1001, 1002, 7, 7, 1002],
        "one of those with one hash"
    );
    replies.send(Ok(answer(m2))).unwrap();
    replies.send(Ok(answer(m3))).unwrap();
    let answers = futures::future::join_all(first.into_iter().chain(second).chain(rest)).await;
    let answers: Vec<u32> = answers.into_iter().map(|answer| answer.unwrap().unwrap()).collect();
    assert_eq!(answers, [1002, 1002, 1002, 1003, 8, 1002, 8, 1003, 1002]);
    assert_eq!(metrics.messages(MessageKind::Read), (3, 7));
    assert_eq!(metrics.shared(MessageKind::Read), 2);
}

#[tokio::test]
async fn whoever_shares_a_request_shares_its_failure() {
    let (c, mut accepted, _, _) = start(Limits::READS, Arc::new(ManualClock::default()));
    let tasks = asks(&c, [1001, 1001, 1002]);
    let (mut inbound, replies) = accepted.recv().await.unwrap();
    let m = inbound.next().await.unwrap();
    assert_eq!(m.len(), 2);
    replies.send(Ok(vec![(m[1].0, 5), (m[0].0 + 7, 6)])).unwrap();
    replies.send(Err(Status::unavailable("gone"))).unwrap();
    let answers = futures::future::join_all(tasks).await.into_iter().map(Result::unwrap);
    assert_eq!(answers.map(Result::ok).collect::<Vec<_>>(), [None, None, Some(5)]);
}

#[tokio::test]
async fn a_broken_stream_fails_what_is_in_flight_and_the_next_request_opens_another() {
    let (c, mut accepted, _, _) = start(Limits::READS, Arc::new(ManualClock::default()));
    let tasks = asks(&c, [1, 2]);
    let (mut inbound, replies) = accepted.recv().await.unwrap();
    inbound.next().await.unwrap();
    replies.send(Err(Status::unavailable("gone"))).unwrap();
    for task in tasks {
        assert!(task.await.unwrap().is_err());
    }
    let again = asks(&c, [7]);
    let (mut inbound, replies) = accepted.recv().await.unwrap();
    let m = inbound.next().await.unwrap();
    replies.send(Ok(answer(m))).unwrap();
    for task in again {
        assert_eq!(task.await.unwrap().unwrap(), 8);
    }
}

#[tokio::test]
async fn a_server_that_refuses_streams_fails_requests_at_once() {
    let (c, _accepted, refuse, _) = start(Limits::READS, Arc::new(ManualClock::default()));
    refuse.store(1, Ordering::SeqCst);
    assert!(c.ask(1).await.is_err());
}

#[tokio::test]
async fn a_renewed_stream_answers_what_is_in_flight_and_sends_no_more() {
    let clock = Arc::new(ManualClock::default());
    let (c, mut accepted, _, _) = start(Limits::READS, clock.clone());
    let first = asks(&c, [1]);
    let (mut old_inbound, old_replies) = accepted.recv().await.unwrap();
    let m1 = old_inbound.next().await.unwrap();
    c.renew();
    tokio::task::yield_now().await;
    let second = asks(&c, [2]);
    let m2 = old_inbound.next().await.unwrap();
    assert_eq!(m2.len(), 1, "a young stream is not renewed");
    clock.advance(RENEWED_AFTER);
    // The driver looks at the clock with the next event.
    old_replies.send(Ok(answer(m2))).unwrap();
    for task in second {
        task.await.unwrap().unwrap();
    }
    c.renew();
    tokio::task::yield_now().await;
    let third = asks(&c, [3]);
    tokio::task::yield_now().await;
    old_replies.send(Ok(answer(m1))).unwrap();
    for task in first {
        assert_eq!(task.await.unwrap().unwrap(), 2);
    }
    let (mut new_inbound, new_replies) = accepted.recv().await.unwrap();
    assert!(old_inbound.next().await.is_none(), "the third request did not travel on the old stream");
    let m3 = new_inbound.next().await.unwrap();
    new_replies.send(Ok(answer(m3))).unwrap();
    for task in third {
        assert_eq!(task.await.unwrap().unwrap(), 4);
    }
}

#[tokio::test]
async fn slow_messages_do_not_hold_up_others_and_a_stall_ends_the_stream() {
    let clock = Arc::new(ManualClock::default());
    let (c, mut accepted, _, _) = start(Limits::READS, clock.clone());
    let stuck = asks(&c, [1]);
    let (mut inbound, replies) = accepted.recv().await.unwrap();
    inbound.next().await.unwrap();
    let stuck2 = asks(&c, [2]);
    inbound.next().await.unwrap();
    let third = asks(&c, [3]);
    clock.advance(Limits::READS.slow_after);
    let m3 = inbound.next().await.unwrap();
    replies.send(Ok(answer(m3))).unwrap();
    for task in third {
        assert_eq!(task.await.unwrap().unwrap(), 4);
    }
    clock.advance(Limits::READS.stalled_after);
    // Any event makes the driver look at the clock; a request is one.
    let late = asks(&c, [4]);
    for task in stuck.into_iter().chain(stuck2) {
        assert!(task.await.unwrap().is_err());
    }
    drop(late);
}

#[tokio::test]
async fn messages_are_bounded_in_requests_and_bytes() {
    let limits = Limits { requests_per_message: 10, bytes_per_message: 100, ..Limits::READS };
    let (c, mut accepted, _, _) = start(limits, Arc::new(ManualClock::default()));
    let tasks = asks(&c, std::iter::repeat_n(60, 3).chain(std::iter::repeat_n(1, 25)));
    let (mut inbound, replies) = accepted.recv().await.unwrap();
    let mut sizes = Vec::new();
    let mut left = 28;
    while left > 0 {
        let m = inbound.next().await.unwrap();
        sizes.push(m.len());
        left -= m.len();
        let bytes: u32 = m.iter().map(|(_, n)| *n).sum();
        assert!(m.len() <= 10 && bytes <= 100, "{sizes:?}");
        replies.send(Ok(answer(m))).unwrap();
    }
    for task in tasks {
        task.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_missing_reply_is_an_error_and_callers_who_left_are_not_sent() {
    let (c, mut accepted, _, _) = start(Limits::READS, Arc::new(ManualClock::default()));
    let tasks = asks(&c, [1, 2]);
    let (mut inbound, replies) = accepted.recv().await.unwrap();
    let mut m = answer(inbound.next().await.unwrap());
    m.truncate(1);
    replies.send(Ok(m)).unwrap();
    let results: Vec<_> = futures::future::join_all(tasks).await.into_iter().map(Result::unwrap).collect();
    assert!(results[0].is_ok() && results[1].is_err());
    let _a = asks(&c, [1]);
    inbound.next().await.unwrap();
    let _b = asks(&c, [2]);
    inbound.next().await.unwrap();
    let gone = asks(&c, [3]);
    tokio::task::yield_now().await;
    gone.into_iter().for_each(|task| task.abort());
    let _kept = asks(&c, [4]);
    tokio::task::yield_now().await;
    replies.send(Ok(vec![(3, 9)])).unwrap();
    assert_eq!(inbound.next().await.unwrap().into_iter().map(|(_, n)| n).collect::<Vec<_>>(), [4]);
}

#[tokio::test]
async fn alone_means_without_the_stream() {
    let (c, mut accepted, _, _) = start(Limits::READS, Arc::new(SystemClock::default()));
    assert_eq!(c.ask_alone(4).await.unwrap(), 5);
    assert!(accepted.try_recv().is_err());
}

/// Until the deadline of the clock is reached by somebody who moves it.
fn patience(clock: &ManualClock) -> Patience {
    use sextant_environment::Clock;
    Patience { leave_by_ns: clock.holder_ns() + 50_000_000, answer: Duration::from_millis(50) }
}

fn asks_within(
    c: &Arc<Coalescer<Numbers>>,
    number: u32,
    clock: &ManualClock,
) -> (Arc<Answers<u32>>, tokio::task::JoinHandle<Result<u32>>) {
    let (answers, patience, c) = (Arc::new(Answers::to(1)), patience(clock), c.clone());
    let its = answers.clone();
    (answers, tokio::spawn(async move { c.ask_within(number, false, &its, patience).await }))
}

#[tokio::test]
async fn what_is_too_much_in_bytes_waits_and_is_withdrawn_at_its_deadline() {
    let clock = Arc::new(ManualClock::default());
    let limits = Limits { bytes_in_flight: 100, messages: 100, bytes_per_message: 60, ..Limits::READS };
    let (c, mut accepted, _, _) = start(limits, clock.clone());
    let first = asks(&c, [60, 60]);
    let (mut inbound, replies) = accepted.recv().await.unwrap();
    let (m1, m2) = (inbound.next().await.unwrap(), inbound.next().await.unwrap());
    assert_eq!(m1.len() + m2.len(), 2, "below the limit one more leaves");
    let (waits, late) = asks_within(&c, 60, &clock);
    let (also, patient) = asks_within(&c, 1, &clock);
    clock.advance(Duration::from_millis(49));
    assert!(futures::poll!(inbound.next()).is_pending());
    assert_eq!((waits.slip(0).sent_ns(), also.slip(0).sent_ns()), (None, None));
    clock.advance(Duration::from_millis(1));
    for refused in [late, patient] {
        let error = refused.await.unwrap().unwrap_err();
        assert_eq!(error.kind, ErrorKind::Overloaded, "{error}");
    }
    assert!(waits.slip(0).withdraw() && also.slip(0).withdraw(), "they were certainly not sent");
    replies.send(Ok(answer(m1))).unwrap();
    replies.send(Ok(answer(m2))).unwrap();
    for task in first {
        task.await.unwrap().unwrap();
    }
    let next = asks(&c, [7]);
    let m3 = inbound.next().await.unwrap();
    assert_eq!(m3.iter().map(|(_, n)| *n).collect::<Vec<_>>(), [7], "nor are they sent later");
    replies.send(Ok(answer(m3))).unwrap();
    for task in next {
        task.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn what_was_sent_cannot_be_withdrawn_and_its_answer_has_a_time_of_its_own() {
    let clock = Arc::new(ManualClock::default());
    let (c, mut accepted, _, _) = start(Limits::READS, clock.clone());
    let (slip, asked) = asks_within(&c, 5, &clock);
    let (mut inbound, _replies) = accepted.recv().await.unwrap();
    inbound.next().await.unwrap();
    clock.advance(Duration::from_millis(50));
    let error = asked.await.unwrap().unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
    assert!(!slip.slip(0).withdraw());
}

#[tokio::test]
async fn a_stream_that_breaks_leaves_what_waited_behind_it_unsent() {
    let clock = Arc::new(ManualClock::default());
    let limits = Limits { bytes_in_flight: 10, ..Limits::READS };
    let (c, mut accepted, _, _) = start(limits, clock.clone());
    let (sent, first) = asks_within(&c, 20, &clock);
    let (mut inbound, replies) = accepted.recv().await.unwrap();
    inbound.next().await.unwrap();
    let (waits, second) = asks_within(&c, 20, &clock);
    tokio::task::yield_now().await;
    replies.send(Err(Status::unavailable("gone"))).unwrap();
    assert!(first.await.unwrap().is_err() && !sent.slip(0).withdraw());
    tokio::task::yield_now().await;
    // It is either told so, or sent on the next stream: its slip says which, and the two never contradict each other.
    assert_eq!(waits.slip(0).withdraw(), waits.slip(0).sent_ns().is_none());
    drop(second);
}
