//! Lines, numbers and sessions.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use sextant_simulated::ManualClock;

use super::*;
use crate::write::window::FIRST;

const P: PartitionId = PartitionId(0);

fn numbers() -> Numbers {
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::default());
    Numbers::new(1, &clock)
}

const SMALL: Size = Size { is_large: false, span: 1 };

async fn begin_in(numbers: &Numbers, lane: Lane) -> Ticket {
    begin_sized(numbers, SMALL, lane).await
}

async fn begin_sized(numbers: &Numbers, size: Size, lane: Lane) -> Ticket {
    static NEXT: AtomicU64 = AtomicU64::new(100);
    loop {
        match numbers.begin(P, size, lane).await {
            Begun::InSession(mut line) => {
                if let Ok(ticket) = line.one().await {
                    return ticket;
                }
            }
            Begun::Opening(turn) => turn.opened(NEXT.fetch_add(1, Ordering::SeqCst)),
        }
    }
}

async fn begin(numbers: &Numbers) -> Ticket {
    begin_in(numbers, Lane::Single).await
}

async fn begin_many(numbers: &Numbers, count: usize) -> Vec<Ticket> {
    let mut tickets = Vec::new();
    for _ in 0..count {
        tickets.push(begin(numbers).await);
    }
    tickets
}

#[tokio::test]
async fn acked_below_is_the_smallest_outstanding_number() {
    let numbers = numbers();
    let (a, b, c) = (begin(&numbers).await, begin(&numbers).await, begin(&numbers).await);
    assert_eq!((a.number, b.number, c.number), (1, 2, 3));
    assert_eq!(c.acked_below(), 1);
    drop(b);
    assert_eq!(c.acked_below(), 1);
    drop(a);
    assert_eq!(c.acked_below(), 3);
}

#[tokio::test]
async fn outstanding_numbers_span_no_more_than_the_server_keeps() {
    let numbers = numbers();
    let first = begin(&numbers).await;
    for _ in 1..PNODE_SPAN {
        drop(begin(&numbers).await);
    }
    // One is under way, and it holds up all others.
    let mut waiting = pin!(begin(&numbers));
    assert!(futures::poll!(waiting.as_mut()).is_pending());
    drop(first);
    let next = waiting.await;
    assert_eq!(next.number, PNODE_SPAN + 1);
    assert_eq!(next.acked_below(), PNODE_SPAN + 1);
}

#[tokio::test]
async fn no_more_are_under_way_than_the_leader_can_make_use_of() {
    let numbers = numbers();
    let mut tickets = begin_many(&numbers, FIRST).await;
    let mut waiting = pin!(begin(&numbers));
    assert!(futures::poll!(waiting.as_mut()).is_pending());
    drop(tickets.pop());
    assert_eq!(waiting.await.number, FIRST as u64 + 1);
}

#[tokio::test]
async fn those_who_left_the_line_lose_nobody_their_turn() {
    let numbers = numbers();
    let tickets = begin_many(&numbers, FIRST).await;
    let mut waiting: Vec<_> = (0..10).map(|_| Box::pin(begin(&numbers))).collect();
    for waiter in &mut waiting {
        assert!(futures::poll!(waiter.as_mut()).is_pending());
    }
    drop(waiting.remove(4));
    drop(tickets);
    // It was given a number, and leaves without having looked.
    drop(waiting.remove(0));
    let tickets = futures::future::join_all(waiting).await;
    assert_eq!(tickets.len(), 8);
    let mut lowest: Vec<_> = tickets.iter().map(Ticket::acked_below).collect();
    lowest.dedup();
    assert_eq!(lowest, [tickets[0].number], "what was given back is not outstanding");
}

#[tokio::test]
async fn the_place_of_one_who_left_may_be_another_s_in_the_other_line() {
    let numbers = numbers();
    let mut tickets = begin_many(&numbers, FIRST).await;
    let mut singles: Vec<_> = (0..3).map(|_| Box::pin(begin(&numbers))).collect();
    for waiter in &mut singles {
        assert!(futures::poll!(waiter.as_mut()).is_pending());
    }
    drop(singles.remove(0));
    let mut pipelined = pin!(begin_in(&numbers, Lane::Pipelined));
    assert!(futures::poll!(pipelined.as_mut()).is_pending());
    drop(tickets.pop());
    assert!(futures::poll!(pipelined.as_mut()).is_pending(), "it is not the first of the single ones");
    let _first = singles.remove(0).await;
    tickets.truncate(FIRST - 3);
    let _second = singles.remove(0).await;
    assert_eq!(pipelined.await.number, FIRST as u64 + 3);
}

#[tokio::test]
async fn whoever_wants_many_waits_once_and_gives_back_what_it_does_not_take() {
    let numbers = numbers();
    let mut tickets = begin_many(&numbers, FIRST - 2).await;
    let mut line = numbers.line(P, Lane::Single, 5).unwrap();
    let mut taken = Vec::new();
    let cx = &Context::from_waker(Waker::noop());
    assert!(line.poll(&mut |ticket| taken.push(ticket), cx).is_ready());
    assert_eq!((taken.len(), line.wants()), (2, 3));
    assert!(line.poll(&mut |ticket| taken.push(ticket), cx).is_pending());
    let mut behind = pin!(begin(&numbers));
    assert!(futures::poll!(behind.as_mut()).is_pending());
    // Two are on their way to it when it leaves.
    tickets.truncate(FIRST - 4);
    assert!(futures::poll!(behind.as_mut()).is_pending());
    drop(line);
    assert_eq!(behind.await.number, FIRST as u64 + 3);
}

#[tokio::test]
async fn whoever_has_nothing_under_way_does_not_wait_behind_pipelines() {
    let numbers = numbers();
    let mut tickets = begin_many(&numbers, FIRST).await;
    let mut pipelined: Vec<_> = (0..3).map(|_| Box::pin(begin_in(&numbers, Lane::Pipelined))).collect();
    let mut singles: Vec<_> = (0..8).map(|_| Box::pin(begin_in(&numbers, Lane::Single))).collect();
    for waiter in pipelined.iter_mut().chain(&mut singles) {
        assert!(futures::poll!(waiter.as_mut()).is_pending());
    }
    for _ in 0..4 {
        drop(tickets.pop());
    }
    let mut served = Vec::new();
    for single in &mut singles[..3] {
        served.push(single.await);
    }
    assert!(futures::poll!(singles[3].as_mut()).is_pending());
    // Those with pipelines are not left to wait for ever.
    served.push(pipelined.remove(0).await);
    assert!(futures::poll!(pipelined[0].as_mut()).is_pending());
}

#[tokio::test]
async fn a_large_write_that_takes_long_does_not_hold_up_small_ones() {
    let numbers = numbers();
    let large = Size { is_large: true, span: 1 };
    let Begun::Opening(turn) = numbers.begin(P, large, Lane::Single).await else {
        panic!("there is no session yet")
    };
    turn.opened(7);
    let large = begin_sized(&numbers, large, Lane::Single).await;
    for _ in 0..2 * PNODE_SPAN {
        assert_ne!(begin(&numbers).await.session, large.session);
    }
}

#[tokio::test]
async fn what_is_outstanding_fits_into_what_is_remembered_of_a_session() {
    let numbers = numbers();
    let batch = |span| begin_sized(&numbers, Size { is_large: false, span }, Lane::Single);
    let small = begin(&numbers).await;
    let half = batch(PNODE_SPAN / 2).await;
    assert_eq!((small.number, half.number), (1, 2));
    let mut whole = Box::pin(batch(PNODE_SPAN));
    assert!(futures::poll!(whole.as_mut()).is_pending());
    let mut behind = pin!(begin(&numbers));
    assert!(futures::poll!(behind.as_mut()).is_pending(), "it would hold up the batch");
    drop(whole);
    assert_eq!(behind.await.number, 2 + PNODE_SPAN / 2, "who gives up holds up nobody");
    let mut whole = pin!(batch(PNODE_SPAN));
    drop(small);
    assert!(futures::poll!(whole.as_mut()).is_pending());
    drop(half);
    assert_eq!(whole.await.number, 3 + PNODE_SPAN / 2, "alone, the largest has room");
}

#[tokio::test]
async fn a_forgotten_session_is_replaced_once_and_its_tickets_touch_nothing() {
    let numbers = numbers();
    let old = begin(&numbers).await;
    numbers.forget(P, old.session);
    let new = begin(&numbers).await;
    assert_ne!(new.session, old.session);
    assert_eq!(new.number, 1);
    numbers.forget(P, old.session);
    drop(old);
    let next = begin(&numbers).await;
    assert_eq!((next.session, next.number, next.acked_below()), (new.session, 2, 1));
}

#[tokio::test]
async fn those_who_wait_in_a_forgotten_session_go_on_in_the_next() {
    let numbers = numbers();
    let tickets = begin_many(&numbers, FIRST).await;
    let mut waiting = pin!(begin(&numbers));
    assert!(futures::poll!(waiting.as_mut()).is_pending());
    numbers.forget(P, tickets[0].session);
    assert_ne!(waiting.await.session, tickets[0].session);
}

#[tokio::test]
async fn a_failed_opening_is_tried_by_the_next() {
    let numbers = numbers();
    let Begun::Opening(turn) = numbers.begin(P, SMALL, Lane::Single).await else {
        panic!("there is no session yet")
    };
    drop(turn);
    assert_eq!(begin(&numbers).await.number, 1);
}

proptest! {
    /// Whoever comes, goes or leaves the line: numbers are used once, bounds hold, and nobody waits while there is room.
    #[test]
    fn lines_move_as_long_as_there_is_room(
        steps in prop::collection::vec(
            (0u8..4, any::<bool>(), any::<prop::sample::Index>(), prop_oneof![20 => Just(1), 1 => 2u64..=PNODE_SPAN]),
            0..1_500,
        ),
    ) {
        let numbers = numbers();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        // Else a waiter who was served may seem to wait: tokio lets a task go on only so long.
        runtime.block_on(tokio::task::unconstrained(async {
            drop(begin(&numbers).await);
            let mut tickets: Vec<Ticket> = Vec::new();
            let mut waiting = Vec::new();
            let mut used = BTreeSet::new();
            for (step, pipelined, which, span) in steps {
                match step {
                    0 | 1 => {
                        let lane = if pipelined { Lane::Pipelined } else { Lane::Single };
                        waiting.push(Box::pin(begin_sized(&numbers, Size { is_large: false, span }, lane)));
                    }
                    2 if !tickets.is_empty() => drop(tickets.swap_remove(which.index(tickets.len()))),
                    3 if !waiting.is_empty() => drop(waiting.swap_remove(which.index(waiting.len()))),
                    _ => {}
                }
                let mut still = Vec::new();
                for mut waiter in waiting {
                    match futures::poll!(waiter.as_mut()) {
                        std::task::Poll::Ready(ticket) => {
                            assert!(used.insert(ticket.number), "{} twice", ticket.number);
                            tickets.push(ticket);
                        }
                        std::task::Poll::Pending => still.push(waiter),
                    }
                }
                waiting = still;
                let mut state = numbers.slots[0][0].state.lock();
                assert_eq!(state.outstanding.len(), tickets.len());
                let first = state.next_lane().and_then(|lane| {
                    let (queue, waiters) = state.queue(lane);
                    queue.next(waiters).map(|at| waiters[at].span)
                });
                assert_eq!(waiting.is_empty(), first.is_none());
                assert!(first.is_none_or(|span| !state.has_room(span)));
            }
        }));
    }
}
