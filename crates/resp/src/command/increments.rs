//! Increments of one number that stand directly behind each other: one change of it, by their sum.
//!
//! What each of them left follows from what all of them have left, if all go the same way: then none can have gone too far without
//! the sum.

use sextant_common::Result;
use sextant_common::operation::{Effect, Lane, Operation, Update};

use super::execution::change_reply;
use super::request::{ChangeReply, Request};
use crate::frame::Reply;
use crate::store::Store;

pub(super) struct Increments {
    sum: Operation,
    by: Vec<i64>,
}

impl Increments {
    /// Of commands on one key. None: some of them are something else, or there is no such sum.
    pub fn of(requests: &[Request]) -> Option<Self> {
        let by = requests.iter().map(|request| increment(request).map(|(_, by)| by));
        let by = by.collect::<Option<Vec<i64>>>()?;
        let (first, _) = increment(requests.first()?)?;
        let is_one_way = by.iter().all(|by| *by >= 0) || by.iter().all(|by| *by <= 0);
        if !is_one_way || by.len() < 2 {
            return None;
        }
        let sum = by.iter().try_fold(0i64, |sum, by| sum.checked_add(*by))?;
        let by_sum =
            |op: &Operation| Operation { effect: Effect::Update(Update::Increment(sum)), ..op.clone() };
        let sum = by_sum(first);
        let is_alike = |(op, _): (&Operation, i64)| by_sum(op) == sum;
        let all_alike = requests.iter().filter_map(increment).all(is_alike);
        all_alike.then_some(Self { sum, by })
    }

    /// Their replies. None: not all of them go with what is there, and none took effect.
    pub async fn run<S: Store>(self, store: &S, lane: Lane) -> Result<Option<Vec<Reply>>> {
        let outcome = store.execute(vec![self.sum], lane).await?;
        if !outcome.applied {
            return Ok(None);
        }
        let Reply::Integer(mut left) = change_reply(outcome, ChangeReply::Number, false)? else {
            return Ok(None);
        };
        let mut replies = Vec::with_capacity(self.by.len());
        for by in self.by.iter().rev() {
            replies.push(Reply::Integer(left));
            left = left.wrapping_sub(*by);
        }
        replies.reverse();
        Ok(Some(replies))
    }
}

fn increment(request: &Request) -> Option<(&Operation, i64)> {
    match request {
        Request::Change { ops, reply: ChangeReply::Number } => match &ops[..] {
            [op] => match op.effect {
                Effect::Update(Update::Increment(by)) => Some((op, by)),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    }
}
