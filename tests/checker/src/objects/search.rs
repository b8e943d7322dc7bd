//! The search for a legal order of what happened to a group.
//!
//! Wing and Gong's search with Lowe's memo, as for registers: at each point what may come next are the operations called before
//! the first return of the rest. None of what is added can miss an order:
//!
//! * What only reads is placed as soon as it fits: placing it earlier harms nothing.
//! * An operation of unknown outcome that wrote what somebody has seen, and nobody else wrote, took effect before that answer.
//! * One that would change nothing is not placed.
//! * A position is hopeless if one is that differs only in having used fewer operations of unknown outcome.
//! * What expires is gone, if it is, right before the next operation that could tell.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::command::{is_pure, keys_of};
use super::history::Commands;
use super::keyspace::{During, Keyspace};
use super::{Expiry, Reply};
use crate::history::UNKNOWN;

/// What the search found for a group.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Legal,
    Illegal(DeadEnd),
    /// The steps were not enough.
    BudgetExceeded,
}

/// The longest order that was found, and what does not fit behind it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct DeadEnd {
    /// Operations placed, in order.
    pub placed: Vec<usize>,
    /// What has to come before some return, and does not fit.
    pub stuck: Vec<usize>,
}

/// `budget`: operations tried, at most.
pub(crate) fn search(ops: &[Commands], expiry: Expiry, budget: u64) -> Found {
    let returns = returns(ops);
    let pure: Vec<bool> = ops.iter().map(|op| op.commands.iter().all(|command| is_pure(command))).collect();
    Search {
        ops,
        matter: (0..ops.len()).filter(|op| returns[*op] != UNKNOWN || !pure[*op]).collect(),
        pure,
        expiry,
        steps_left: budget,
        placed: Placed(vec![0; ops.len().div_ceil(64)]),
        used: Placed(vec![0; ops.len().div_ceil(64)]),
        left: returns.iter().filter(|ret| **ret != UNKNOWN).count(),
        returns,
        order: Vec::with_capacity(ops.len()),
        hopeless: HashMap::new(),
        furthest: DeadEnd::default(),
    }
    .run()
}

/// When each operation had taken effect: also those of unknown outcome that somebody has seen.
fn returns(ops: &[Commands]) -> Vec<u64> {
    let mut writers: HashMap<&str, Option<usize>> = HashMap::new();
    for (at, op) in ops.iter().enumerate() {
        for word in op.commands.iter().flatten() {
            let writer = writers.entry(word).or_insert(Some(at));
            *writer = writer.filter(|writer| *writer == at);
        }
    }
    let mut returns: Vec<u64> = ops.iter().map(|op| op.ret).collect();
    for seen in ops.iter().filter(|op| !op.is_unknown()) {
        each_text(&seen.replies, &mut |text| {
            // (Sums are numbers, and other replies have words that are no arguments.)
            let writer = writers.get(text).copied().flatten().filter(|_| text.parse::<i64>().is_err());
            if let Some(writer) = writer.filter(|writer| ops[*writer].call <= seen.ret) {
                returns[writer] = returns[writer].min(seen.ret);
            }
        });
    }
    returns
}

fn each_text<'r>(replies: &'r [Reply], say: &mut impl FnMut(&'r str)) {
    for reply in replies {
        match reply {
            Reply::Text(text) => say(text),
            Reply::List(replies) => each_text(replies, say),
            Reply::Nil | Reply::Int(_) | Reply::Error { .. } => {}
        }
    }
}

/// A set of operations.
#[derive(Clone, Hash)]
struct Placed(Vec<u64>);

impl Placed {
    fn has(&self, op: usize) -> bool {
        self.0[op / 64] & 1 << (op % 64) != 0
    }

    fn is_within(&self, other: &Placed) -> bool {
        self.0.iter().zip(&other.0).all(|(ours, theirs)| ours & !theirs == 0)
    }

    fn toggle(&mut self, op: usize) {
        self.0[op / 64] ^= 1 << (op % 64);
    }
}

struct Search<'h> {
    ops: &'h [Commands],
    /// When each had taken effect, if it had; [`UNKNOWN`]: perhaps never.
    returns: Vec<u64>,
    /// Which of them only read.
    pure: Vec<bool>,
    /// All but reads that nobody was told of.
    matter: Vec<usize>,
    expiry: Expiry,
    steps_left: u64,
    /// Of known outcome.
    placed: Placed,
    /// Of unknown outcome.
    used: Placed,
    /// Operations that took effect for certain and are not placed.
    left: usize,
    order: Vec<usize>,
    /// Positions from which nothing leads on: by what is placed and the state, what was used.
    hopeless: HashMap<u128, Vec<Placed>>,
    furthest: DeadEnd,
}

/// A point at which there was a choice.
struct Choice {
    /// Operations placed before it.
    placed: usize,
    /// What may come next, and what it leaves; the last one is next.
    candidates: Vec<(usize, Keyspace)>,
}

impl Search<'_> {
    fn run(mut self) -> Found {
        let mut choices: Vec<Choice> = self.choice(Keyspace::default()).into_iter().collect();
        while self.left > 0 {
            let Some(choice) = choices.last_mut() else { return Found::Illegal(self.furthest) };
            let placed = choice.placed;
            let Some((op, state)) = choice.candidates.pop() else {
                choices.pop();
                continue;
            };
            if self.steps_left == 0 {
                return Found::BudgetExceeded;
            }
            while self.order.len() > placed
                && let Some(op) = self.order.pop()
            {
                self.toggle(op);
            }
            self.place(op);
            let choice = self.choice(state);
            choices.extend(choice);
        }
        Found::Legal
    }

    fn is_unknown(&self, op: usize) -> bool {
        self.returns[op] == UNKNOWN
    }

    fn place(&mut self, op: usize) {
        self.toggle(op);
        self.order.push(op);
    }

    fn toggle(&mut self, op: usize) {
        if self.is_unknown(op) {
            self.used.toggle(op);
            return;
        }
        self.placed.toggle(op);
        if self.placed.has(op) {
            self.left -= 1;
        } else {
            self.left += 1;
        }
    }

    /// Places what only reads and fits, and collects what may come next. None: nothing leads on from here.
    fn choice(&mut self, state: Keyspace) -> Option<Choice> {
        'settling: loop {
            let is_left = |op: &&usize| !self.placed.has(**op) && !self.used.has(**op);
            let due =
                self.matter.iter().filter(is_left).map(|op| self.returns[*op]).min().unwrap_or(u64::MAX);
            let is_open = |op: &&usize| is_left(op) && self.ops[**op].call <= due;
            let mut open: Vec<usize> = self.matter.iter().filter(is_open).copied().collect();
            open.sort_by_key(|op| (self.returns[*op], self.ops[*op].call));
            let (mut candidates, mut stuck) = (Vec::new(), Vec::new());
            for op in open {
                let after = self.after(op, &state);
                let is_unknown = self.is_unknown(op);
                if after.is_empty() && !is_unknown {
                    stuck.push(op);
                }
                for after in after {
                    match after == state {
                        true if is_unknown => {}
                        // (What might change something elsewhere may be needed there.)
                        true if self.pure[op] => {
                            self.place(op);
                            continue 'settling;
                        }
                        _ => candidates.push((op, after)),
                    }
                }
            }
            if !stuck.is_empty() && self.order.len() >= self.furthest.placed.len() {
                self.furthest = DeadEnd { placed: self.order.clone(), stuck };
            }
            candidates.reverse();
            let known = self.hopeless.entry(self.position(&state)).or_default();
            if known.iter().any(|used| used.is_within(&self.used)) {
                return None;
            }
            known.push(self.used.clone());
            return Some(Choice { placed: self.order.len(), candidates });
        }
    }

    /// What an operation may leave: by what has expired right before it. Nothing: its replies do not fit.
    fn after(&mut self, op: usize, state: &Keyspace) -> Vec<Keyspace> {
        let (op, ret_ns) = (&self.ops[op], self.returns[op]);
        let during = During { call_ns: op.call, ret_ns };
        let keys = || op.commands.iter().flat_map(|command| keys_of(command));
        let mortal = state.mortal(keys(), during);
        // (Few keys: a group has no more.)
        let ways = 1 << mortal.len().min(8);
        let mut after = Vec::new();
        for gone in 0..ways {
            self.steps_left = self.steps_left.saturating_sub(1);
            let mut state = state.clone();
            let expired = mortal.iter().enumerate().filter(|(at, _)| gone & 1 << at != 0);
            expired.for_each(|(_, key)| state.expire(key));
            if !state.has_outlived(keys(), during) && self.fits(op, &mut state, during) {
                after.push(state);
            }
        }
        after
    }

    fn fits(&self, op: &Commands, state: &mut Keyspace, during: During) -> bool {
        op.commands.iter().enumerate().all(|(at, command)| {
            let reply = state.execute(command, during, self.expiry);
            let Ok(reply) = reply else { return false };
            let is_it = |said: &Reply| *said == reply;
            op.replies.get(at).is_none_or(is_it)
        })
    }

    fn position(&self, state: &Keyspace) -> u128 {
        let half = |salt: u64| {
            let mut hasher = DefaultHasher::new();
            (salt, &self.placed, state).hash(&mut hasher);
            u128::from(hasher.finish())
        };
        half(0) << 64 | half(1)
    }
}
