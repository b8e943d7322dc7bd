//! The commands of one connection that were received and not yet answered.
//!
//! Owns the order: replies leave in the order of arrival, whatever finishes first; and a command starts only when every
//! earlier one that it conflicts with is finished, unless it is [taken along](Pipeline::take_follower) by the one before it.
//! Two commands conflict if they name the same key and at least one of them writes. A command of all keys conflicts with every other if at least one of the two writes. Does not own execution. Pure.
//!
//! Keys are compared by a 64-bit hash: a collision costs a needless wait, never an order.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;

use sextant_common::hashed::AlreadyHashed;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::command::Request;
use crate::command_table::Access;
use crate::config::Order;

/// Position of a command in its connection: rises by one with each.
pub(crate) type Ticket = u64;

/// What stands for a key that all commands touch.
const OF_ALL: u64 = 0;

/// The keys that a command touches, as hashes.
#[derive(Debug)]
pub(crate) enum Keys {
    One(u64),
    Many(Vec<u64>),
    /// Of a command that touches whatever there is: it starts after all earlier ones. If it reads, later ones that write wait for
    /// it; if it writes, all later ones do.
    All,
}

impl Keys {
    /// `seed`: so that clients cannot aim at collisions. In the pipeline's order all commands have one in common.
    pub(super) fn of(request: &Request, seed: u64, order: Order) -> Self {
        if let Request::Scan(_) | Request::Whole(_) = request {
            return Keys::All;
        }
        if order == Order::Pipeline {
            let mut hashes = vec![OF_ALL];
            request.for_each_key(&mut |key| hashes.push(xxh3_64_with_seed(key, seed)));
            return Keys::Many(hashes);
        }
        if let Some(key) = request.single_key() {
            return Keys::One(xxh3_64_with_seed(key, seed));
        }
        let mut hashes = Vec::new();
        request.for_each_key(&mut |key| hashes.push(xxh3_64_with_seed(key, seed)));
        Keys::Many(hashes)
    }
}

/// Whether an admitted command may run now.
#[derive(Debug, PartialEq)]
pub(crate) enum Admitted<W> {
    /// Run it, then [`Pipeline::finish`] it.
    Start(Ticket, W),
    /// Some earlier command's `finish` will hand it out.
    Waits,
}

/// `W`: what to run; `R`: a reply.
#[derive(Debug)]
pub(crate) struct Pipeline<W, R> {
    /// Ticket of the first slot.
    first: Ticket,
    slots: VecDeque<Slot<W, R>>,
    /// Keys of unfinished commands.
    keys: HashMap<u64, Users, BuildHasherDefault<AlreadyHashed>>,
    unfinished: usize,
    /// Commands that wait for others.
    waits: usize,
    /// The newest of [`Keys::All`], if it is not finished; it waits for those before it.
    of_all: Option<Ticket>,
    /// The newest of them that writes, if it is not finished.
    writer_of_all: Option<Ticket>,
}

#[derive(Debug)]
struct Slot<W, R> {
    reply: Option<R>,
    claim: Option<(Keys, Access)>,
    /// What to run once nothing blocks it.
    waiting: Option<W>,
    /// Number of conflicts (counted once for each key) with unfinished earlier commands.
    blockers: u32,
    /// Later commands that this one blocks, once for each conflict.
    blocked: Vec<Ticket>,
}

/// Unfinished commands that touch a key, as far as a later command must wait for them itself.
#[derive(Debug, Default)]
struct Users {
    /// The newest writer.
    writer: Option<Ticket>,
    /// Readers that came after it.
    readers: Vec<Ticket>,
}

impl<W, R> Default for Pipeline<W, R> {
    fn default() -> Self {
        Self {
            first: 0,
            slots: VecDeque::new(),
            keys: HashMap::default(),
            unfinished: 0,
            waits: 0,
            of_all: None,
            writer_of_all: None,
        }
    }
}

impl<W, R> Pipeline<W, R> {
    /// Nothing is unfinished or unanswered.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Commands that are not answered yet.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// The ticket of the command that came last.
    pub fn newest(&self) -> Ticket {
        self.first + self.slots.len() as u64 - 1
    }

    /// Commands that are not finished yet.
    pub fn unfinished(&self) -> usize {
        self.unfinished
    }

    /// Whether a command that reads these keys conflicts with an unfinished one.
    pub fn blocks_read(&self, keys: &Keys) -> bool {
        let written = |hash: &u64| self.keys.get(hash).is_some_and(|users| users.writer.is_some());
        match keys {
            Keys::All => self.unfinished > 0,
            _ if self.writer_of_all.is_some() => true,
            Keys::One(hash) => written(hash),
            Keys::Many(hashes) => hashes.iter().any(written),
        }
    }

    /// The same of one that writes them: also with one that only reads them.
    pub fn blocks_write(&self, keys: &Keys) -> bool {
        let touched = |hash: &u64| self.keys.contains_key(hash);
        match keys {
            Keys::All => self.unfinished > 0,
            _ if self.of_all.is_some() => true,
            Keys::One(hash) => touched(hash),
            Keys::Many(hashes) => hashes.iter().any(touched),
        }
    }

    /// A command that is finished already.
    pub fn push_finished(&mut self, reply: R) {
        self.slots.push_back(Slot {
            reply: Some(reply),
            claim: None,
            waiting: None,
            blockers: 0,
            blocked: Vec::new(),
        });
    }

    pub fn admit(&mut self, keys: Keys, access: Access, work: W) -> Admitted<W> {
        let ticket = self.first + self.slots.len() as u64;
        let mut blockers = 0;
        {
            let Self { first, slots, keys: users, of_all, writer_of_all, .. } = self;
            if let Keys::All = keys {
                for slot in slots.iter_mut().filter(|slot| slot.reply.is_none()) {
                    slot.blocked.push(ticket);
                    blockers += 1;
                }
            }
            let mut blocked_by = |earlier: Ticket| {
                slots[(earlier - *first) as usize].blocked.push(ticket);
                blockers += 1;
            };
            match (&keys, access) {
                (Keys::All, Access::Read) => *of_all = Some(ticket),
                (Keys::All, Access::Write) => (*of_all, *writer_of_all) = (Some(ticket), Some(ticket)),
                (_, Access::Read) => writer_of_all.iter().copied().for_each(&mut blocked_by),
                (_, Access::Write) => of_all.iter().copied().for_each(&mut blocked_by),
            }
            let mut claim = |hash: &u64| {
                let users = users.entry(*hash).or_default();
                match access {
                    Access::Read => {
                        if users.readers.last() != Some(&ticket) {
                            users.writer.into_iter().for_each(&mut blocked_by);
                            users.readers.push(ticket);
                        }
                    }
                    Access::Write => {
                        // The readers wait for the writer before them: whoever waits for them waits for it too.
                        if users.readers.is_empty() {
                            users.writer.into_iter().filter(|w| *w != ticket).for_each(&mut blocked_by);
                        } else {
                            users.readers.drain(..).for_each(&mut blocked_by);
                        }
                        users.writer = Some(ticket);
                    }
                }
            };
            match &keys {
                Keys::One(hash) => claim(hash),
                Keys::Many(hashes) => hashes.iter().for_each(claim),
                Keys::All => {}
            }
        }
        let mut slot =
            Slot { reply: None, claim: Some((keys, access)), waiting: None, blockers, blocked: Vec::new() };
        self.unfinished += 1;
        if blockers == 0 {
            self.slots.push_back(slot);
            return Admitted::Start(ticket, work);
        }
        slot.waiting = Some(work);
        self.waits += 1;
        self.slots.push_back(slot);
        Admitted::Waits
    }

    /// Whether any command waits for another one.
    pub fn has_waiting(&self) -> bool {
        self.waits > 0
    }

    /// The command that waits for a started one and nothing else, directly behind it, if both are of one key only and write it: it is
    /// started now, if it is wanted. Whoever takes it sees to it that they take effect in their order, and
    /// [finishes](Self::finish) them in it.
    pub fn take_follower(
        &mut self,
        ticket: Ticket,
        is_wanted: impl FnOnce(&W) -> bool,
    ) -> Option<(Ticket, W)> {
        let slot = &self.slots[(ticket - self.first) as usize];
        let (Some((Keys::One(hash), Access::Write)), [next]) = (&slot.claim, &slot.blocked[..]) else {
            return None;
        };
        let (hash, next) = (*hash, *next);
        let follower = &mut self.slots[(next - self.first) as usize];
        let writes_it = matches!(follower.claim, Some((Keys::One(other), Access::Write)) if other == hash);
        if !writes_it || follower.blockers != 1 || !follower.waiting.as_ref().is_some_and(is_wanted) {
            return None;
        }
        let work = follower.waiting.take()?;
        follower.blockers = 0;
        self.waits -= 1;
        self.slots[(ticket - self.first) as usize].blocked.clear();
        Some((next, work))
    }

    /// Notes the reply of a started command; what it was the last to block goes to `started`.
    pub fn finish(&mut self, ticket: Ticket, reply: R, started: &mut Vec<(Ticket, W)>) {
        let slot = &mut self.slots[(ticket - self.first) as usize];
        debug_assert!(slot.reply.is_none() && slot.blockers == 0, "finished once, after it was started");
        slot.reply = Some(reply);
        let blocked = std::mem::take(&mut slot.blocked);
        let claim = slot.claim.take();
        self.unfinished -= 1;
        match claim {
            Some((Keys::One(hash), access)) => self.release(hash, access, ticket),
            Some((Keys::Many(hashes), access)) => {
                hashes.into_iter().for_each(|hash| self.release(hash, access, ticket));
            }
            Some((Keys::All, _)) => {
                for newest in [&mut self.of_all, &mut self.writer_of_all] {
                    newest.take_if(|newest| *newest == ticket);
                }
            }
            None => {}
        }
        for later in blocked {
            let slot = &mut self.slots[(later - self.first) as usize];
            slot.blockers -= 1;
            if slot.blockers == 0
                && let Some(work) = slot.waiting.take()
            {
                self.waits -= 1;
                started.push((later, work));
            }
        }
    }

    /// The reply to the oldest command, if it is finished.
    pub fn pop(&mut self) -> Option<R> {
        let reply = self.slots.front_mut()?.reply.take()?;
        self.slots.pop_front();
        self.first += 1;
        Some(reply)
    }

    fn release(&mut self, hash: u64, access: Access, ticket: Ticket) {
        if let std::collections::hash_map::Entry::Occupied(mut entry) = self.keys.entry(hash) {
            let users = entry.get_mut();
            match access {
                Access::Write if users.writer == Some(ticket) => users.writer = None,
                Access::Write => {}
                Access::Read => users.readers.retain(|reader| *reader != ticket),
            }
            if users.writer.is_none() && users.readers.is_empty() {
                entry.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Numbers = Pipeline<u32, u32>;

    fn finish(pipeline: &mut Numbers, ticket: Ticket) -> Vec<u32> {
        let mut started = Vec::new();
        pipeline.finish(ticket, ticket as u32, &mut started);
        started.into_iter().map(|(_, work)| work).collect()
    }

    #[test]
    fn reads_and_writes_of_one_key_keep_their_order() {
        let mut p = Numbers::default();
        assert_eq!(p.admit(Keys::One(7), Access::Write, 0), Admitted::Start(0, 0));
        assert_eq!(p.admit(Keys::One(7), Access::Read, 1), Admitted::Waits);
        assert_eq!(p.admit(Keys::One(7), Access::Read, 2), Admitted::Waits);
        assert_eq!(p.admit(Keys::One(7), Access::Write, 3), Admitted::Waits);
        assert_eq!(p.admit(Keys::One(8), Access::Write, 4), Admitted::Start(4, 4));
        assert!(p.blocks_read(&Keys::One(7)));
        assert!(!p.blocks_read(&Keys::One(9)));
        assert_eq!(finish(&mut p, 4), [0; 0]);
        assert_eq!(p.pop(), None);
        assert_eq!(finish(&mut p, 0), [1, 2]);
        assert_eq!(p.pop(), Some(0));
        assert_eq!(finish(&mut p, 2), [0; 0]);
        assert_eq!(finish(&mut p, 1), [3]);
        assert_eq!(finish(&mut p, 3), [0; 0]);
        assert_eq!(std::iter::from_fn(|| p.pop()).collect::<Vec<_>>(), [1, 2, 3, 4]);
        assert!(p.is_empty() && p.keys.is_empty());
    }

    #[test]
    fn a_write_is_not_looked_up_before_reads_of_its_key() {
        let mut p = Numbers::default();
        p.admit(Keys::One(7), Access::Read, 0);
        assert!(p.blocks_write(&Keys::One(7)) && p.blocks_write(&Keys::Many(vec![8, 7])));
        assert!(!p.blocks_read(&Keys::One(7)) && !p.blocks_write(&Keys::One(8)));
        assert!(p.blocks_write(&Keys::All));
        p.admit(Keys::All, Access::Read, 1);
        assert!(p.blocks_write(&Keys::One(8)), "somebody reads all keys");
        finish(&mut p, 0);
        finish(&mut p, 1);
        assert!(!p.blocks_write(&Keys::One(7)) && !p.blocks_write(&Keys::All));
    }

    #[test]
    fn a_key_named_twice_does_not_block_itself() {
        let mut p = Numbers::default();
        assert_eq!(p.admit(Keys::Many(vec![1, 1]), Access::Write, 0), Admitted::Start(0, 0));
        assert_eq!(p.admit(Keys::Many(vec![2, 2]), Access::Read, 1), Admitted::Start(1, 1));
        assert_eq!(p.admit(Keys::Many(vec![1, 2, 1]), Access::Write, 2), Admitted::Waits);
        finish(&mut p, 0);
        assert_eq!(finish(&mut p, 1), [2]);
        finish(&mut p, 2);
        assert!(p.keys.is_empty());
    }

    #[test]
    fn reads_wait_for_a_write_of_all_keys_also_once_there_is_a_read_of_all_after_it() {
        let mut p = Numbers::default();
        assert_eq!(p.admit(Keys::All, Access::Write, 0), Admitted::Start(0, 0));
        assert!(p.blocks_read(&Keys::One(7)) && p.blocks_read(&Keys::Many(vec![8, 9])));
        assert_eq!(p.admit(Keys::All, Access::Read, 1), Admitted::Waits);
        assert_eq!(p.admit(Keys::One(7), Access::Read, 2), Admitted::Waits);
        assert_eq!(p.admit(Keys::One(7), Access::Write, 3), Admitted::Waits);
        assert_eq!(finish(&mut p, 0), [1, 2]);
        assert!(!p.blocks_read(&Keys::One(8)));
        assert_eq!(p.admit(Keys::One(8), Access::Read, 4), Admitted::Start(4, 4));
        assert_eq!(finish(&mut p, 2), [0; 0]);
        assert_eq!(finish(&mut p, 1), [3]);
    }

    #[test]
    fn a_writer_is_followed_by_one_that_waits_for_nothing_else() {
        let mut p = Numbers::default();
        for (at, (keys, access)) in [
            (Keys::One(7), Access::Write),
            (Keys::One(8), Access::Write),
            (Keys::One(7), Access::Write),
            (Keys::One(7), Access::Write),
            (Keys::Many(vec![7, 8]), Access::Write),
            (Keys::One(8), Access::Read),
            (Keys::One(8), Access::Write),
        ]
        .into_iter()
        .enumerate()
        {
            p.admit(keys, access, at as u32);
        }
        assert_eq!(p.take_follower(0, |_| false), None);
        assert_eq!(p.take_follower(0, |work| *work == 2), Some((2, 2)));
        assert_eq!(p.take_follower(0, |_| true), None, "it has none any more");
        assert_eq!(p.take_follower(2, |_| true), Some((3, 3)));
        assert_eq!(p.take_follower(3, |_| true), None, "it has another key too");
        assert_eq!(p.take_follower(1, |_| true), None);
        assert!(p.has_waiting());
        assert_eq!([finish(&mut p, 0), finish(&mut p, 2), finish(&mut p, 3)], [[0; 0], [0; 0], [0; 0]]);
        assert_eq!(finish(&mut p, 1), [4]);
        assert_eq!(finish(&mut p, 4), [5]);
        assert_eq!(p.take_follower(5, |_| true), None, "readers are not followed");
        assert_eq!(finish(&mut p, 5), [6]);
        finish(&mut p, 6);
        assert!(!p.has_waiting() && p.keys.is_empty());
    }

    proptest! {
        /// Whatever order running commands finish in, and whenever: conflicting commands never overlap and keep their order, no read is
        /// told that nothing is before it if something is, everything is started and answered in the end, and nothing is left behind.
        #[test]
        fn conflicting_commands_never_overlap(
            // Without keys: of all.
            commands in prop::collection::vec((prop::collection::vec(0u64..4, 0..4), any::<bool>()), 1..30),
            between in prop::collection::vec(any::<Option<prop::sample::Index>>(), 30),
            choices in prop::collection::vec(any::<prop::sample::Index>(), 30),
        ) {
            let access = |write: bool| if write { Access::Write } else { Access::Read };
            let of_all = |at: usize| commands[at].0.is_empty();
            let conflict = |a: usize, b: usize| {
                let share = commands[a].0.iter().any(|k| commands[b].0.contains(k));
                (commands[a].1 || commands[b].1) && (share || of_all(a) || of_all(b))
            };
            let mut p = Numbers::default();
            let mut running: Vec<usize> = Vec::new();
            let mut finished = vec![false; commands.len()];
            let admissions = between.iter().take(commands.len()).enumerate().map(|(i, choice)| (Some(i), *choice));
            let rest = choices.iter().take(commands.len()).map(|choice| (None, Some(*choice)));
            for (admitted, choice) in admissions.chain(rest) {
                if let Some(i) = admitted {
                    let (keys, write) = &commands[i];
                    let keys = match keys[..] {
                        [] => Keys::All,
                        [key] => Keys::One(key),
                        _ => Keys::Many(keys.clone()),
                    };
                    let is_behind = (0..i).any(|earlier| !finished[earlier] && conflict(earlier, i));
                    prop_assert!(*write || !is_behind || p.blocks_read(&keys), "{} overtakes", i);
                    if let Admitted::Start(ticket, work) = p.admit(keys, access(*write), i as u32) {
                        prop_assert_eq!(ticket, i as u64);
                        running.push(work as usize);
                    }
                }
                for (at, &a) in running.iter().enumerate() {
                    for &b in &running[..at] {
                        prop_assert!(!conflict(a, b), "{} and {} run at once", a, b);
                    }
                    for (earlier, done) in finished.iter().enumerate().take(a) {
                        prop_assert!(*done || !conflict(earlier, a), "{} before {}", a, earlier);
                    }
                }
                let all_admitted = admitted.is_none();
                prop_assert!(!all_admitted || !running.is_empty() || finished.iter().all(|f| *f), "nobody starts one");
                if let Some(choice) = choice.filter(|_| !running.is_empty()) {
                    let done = running.swap_remove(choice.index(running.len()));
                    finished[done] = true;
                    running.extend(finish(&mut p, done as u64).into_iter().map(|w| w as usize));
                }
            }
            let replies: Vec<u32> = std::iter::from_fn(|| p.pop()).collect();
            prop_assert_eq!(replies, (0..commands.len() as u32).collect::<Vec<_>>());
            prop_assert!(p.keys.is_empty() && p.of_all.is_none() && p.writer_of_all.is_none());
            prop_assert_eq!(p.unfinished(), 0);
        }
    }
}
