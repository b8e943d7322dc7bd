//! Members that are not who the membership means: servers that came back without their memory.
//!
//! What is heard of them, and what a leader does next about one: it takes it out of the voters, lets it go, and lets it in again as
//! what it is now. Each step is a committed change of the membership and follows from what the membership says, so that the next
//! leader goes on wherever the last one stopped.
//!
//! Whom an operator has left out of the voters is not let in, whatever it asks for: the replicated configuration says so, so that every
//! leader knows.
//!
//! Invariant: a server is taken out only for a refusal of what this leader sent to the very incarnation that the membership names.
//! (Anything older speaks of another life, perhaps of one that was let in since.)

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use sextant_raft_log::Membership;

/// What was heard so long ago is not believed any more: refusals come with every heartbeat, wishes twice a second.
const BELIEVED_NS: u64 = 5_000_000_000;

/// A refusal: the server says that it is not `named`, but `is`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refusal {
    named: u64,
    is: u64,
    at_ns: u64,
}

/// A server asks to be let in as this incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wish {
    incarnation: u64,
    first_ns: u64,
    at_ns: u64,
}

#[derive(Debug, Default)]
struct Heard {
    refusals: BTreeMap<u64, Refusal>,
    /// Servers that ask to be let in.
    wishes: BTreeMap<u64, Wish>,
}

/// What a node hears of strangers. Times are the holder's clock, in nanoseconds.
#[derive(Debug, Default)]
pub struct Strangers {
    heard: Mutex<Heard>,
    any: AtomicBool,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Nothing,
    /// The voters are to be these: the others have lost their memory.
    TakeOut(BTreeSet<u64>),
    /// These are members only in name.
    LetGo(BTreeSet<u64>),
    /// The server is to become a voter, as this incarnation.
    LetIn(u64, u64),
}

impl Strangers {
    /// A server has refused what was meant for its incarnation `named`.
    pub fn refused(&self, node: u64, named: u64, is: u64, now_ns: u64) {
        self.heard.lock().refusals.insert(node, Refusal { named, is, at_ns: now_ns });
        self.has_become(node, is);
        self.any.store(true, Ordering::Release);
    }

    /// A server has said which one it is: what it asked for as somebody else it does not want any more.
    pub fn has_become(&self, node: u64, is: u64) {
        self.heard.lock().wishes.retain(|asks, wish| *asks != node || wish.incarnation == is);
    }

    /// A server that has lost its memory asks to be let in.
    pub fn asks(&self, node: u64, incarnation: u64, now_ns: u64) {
        let mut heard = self.heard.lock();
        let before = heard.wishes.get(&node).filter(|wish| wish.incarnation == incarnation);
        let first_ns = before.map_or(now_ns, |wish| wish.first_ns);
        heard.wishes.insert(node, Wish { incarnation, first_ns, at_ns: now_ns });
        self.any.store(true, Ordering::Release);
    }

    /// Whether there may be anything to do. Cheap.
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Members that are others than the membership names, and what they are.
    pub fn lost(&self, membership: &Membership, now_ns: u64) -> BTreeMap<u64, u64> {
        let mut heard = self.heard.lock();
        heard.refusals.retain(|_, r| now_ns.saturating_sub(r.at_ns) < BELIEVED_NS);
        heard.wishes.retain(|_, wish| now_ns.saturating_sub(wish.at_ns) < BELIEVED_NS);
        if heard.refusals.is_empty() && heard.wishes.is_empty() {
            self.any.store(false, Ordering::Release);
        }
        let named = |node: &u64| membership.get_node(node).map(|m| m.incarnation);
        let lost = heard.refusals.iter().filter(|(node, r)| named(node) == Some(r.named) && r.is != r.named);
        lost.map(|(node, r)| (*node, r.is)).collect()
    }

    /// Servers that ask to be let in while somebody else of their id goes on as the member: two servers with one id. By id, as
    /// what the second one asks. `answered_ns`: when what a member has answered last was sent.
    pub fn doubled(
        &self,
        membership: &Membership,
        answered_ns: impl Fn(u64) -> Option<u64>,
    ) -> BTreeMap<u64, u64> {
        let is_double = |(node, wish): &(&u64, &Wish)| {
            let named = membership.get_node(node).map(|m| m.incarnation);
            // (What it answered before it lost its memory says nothing.)
            let answered = || answered_ns(**node).is_some_and(|at| at > wish.first_ns + BELIEVED_NS);
            named.is_some_and(|named| named != wish.incarnation) && answered()
        };
        let heard = self.heard.lock();
        heard.wishes.iter().filter(is_double).map(|(node, wish)| (*node, wish.incarnation)).collect()
    }

    /// What a leader whose newest membership is committed and uniform does next. `is_sound`: whether a server answers;
    /// `is_left_out`: whether an operator does not want it among the voters.
    pub fn next(
        &self,
        membership: &Membership,
        now_ns: u64,
        is_sound: impl Fn(u64) -> bool,
        is_left_out: impl Fn(u64) -> bool,
    ) -> Step {
        let lost = self.lost(membership, now_ns);
        let voters: BTreeSet<u64> = membership.voter_ids().collect();
        let rest: BTreeSet<u64> = voters.iter().copied().filter(|v| !lost.contains_key(v)).collect();
        if rest.len() < voters.len() {
            // Both sets have to agree, and those without their memory count for neither.
            let sound = rest.iter().filter(|v| is_sound(**v)).count();
            let able = sound > voters.len() / 2 && sound > rest.len() / 2;
            return if able { Step::TakeOut(rest) } else { Step::Nothing };
        }
        let gone: BTreeSet<u64> = lost.keys().copied().collect();
        if !gone.is_empty() {
            return Step::LetGo(gone);
        }
        let heard = self.heard.lock();
        let may_come = |node: u64| membership.get_node(&node).is_none() && !is_left_out(node);
        let stranger = heard.wishes.iter().find(|(node, _)| may_come(**node));
        stranger.map_or(Step::Nothing, |(node, wish)| Step::LetIn(*node, wish.incarnation))
    }
}

#[cfg(test)]
mod tests {
    use sextant_raft_log::Member;

    use super::*;

    /// Members 1.. with incarnations 10 times their ids, or as given.
    fn membership(voters: &[u64], learners: &[(u64, u64)]) -> Membership {
        let set: BTreeSet<u64> = voters.iter().copied().collect();
        let voters = voters.iter().map(|v| (*v, Member::new("a:1", 10 * v)));
        let nodes: BTreeMap<u64, Member> =
            voters.chain(learners.iter().map(|(l, i)| (*l, Member::new("a:1", *i)))).collect();
        Membership::new(vec![set], nodes).unwrap()
    }

    fn next(strangers: &Strangers, of: &Membership, now_ns: u64, is_sound: impl Fn(u64) -> bool) -> Step {
        strangers.next(of, now_ns, is_sound, |_| false)
    }

    fn set(ids: &[u64]) -> BTreeSet<u64> {
        ids.iter().copied().collect()
    }

    #[test]
    fn who_says_that_it_is_another_does_not_want_any_more_what_it_asked_for_before() {
        let strangers = Strangers::default();
        strangers.asks(2, 77, 1000);
        strangers.refused(2, 77, 20, 1001);
        let out = membership(&[1, 3], &[]);
        assert_eq!(next(&strangers, &out, 1002, |_| true), Step::Nothing);
        strangers.asks(2, 88, 1003);
        assert_eq!(next(&strangers, &out, 1004, |_| true), Step::LetIn(2, 88));
    }

    #[test]
    fn a_second_server_of_an_id_is_noticed_if_the_first_goes_on() {
        let strangers = Strangers::default();
        let three = membership(&[1, 2, 3], &[]);
        strangers.asks(2, 77, 1000);
        strangers.asks(2, 77, 1000 + BELIEVED_NS);
        let doubled = |answered_ns: Option<u64>| strangers.doubled(&three, |_| answered_ns);
        assert_eq!(doubled(Some(1001 + BELIEVED_NS)), [(2, 77)].into());
        assert!(doubled(Some(1000 + BELIEVED_NS)).is_empty(), "it may have lost its memory since");
        assert!(doubled(None).is_empty());
        strangers.asks(2, 20, 1000);
        assert!(doubled(Some(u64::MAX)).is_empty(), "it is the member");
    }

    #[test]
    fn a_wiped_voter_is_taken_out_let_go_and_let_in_again() {
        let strangers = Strangers::default();
        let all = |_| true;
        assert!(!strangers.any());
        strangers.refused(2, 20, 77, 1000);
        strangers.asks(2, 77, 1000);
        assert!(strangers.any());
        assert_eq!(next(&strangers, &membership(&[1, 2, 3], &[]), 1001, all), Step::TakeOut(set(&[1, 3])));
        let out = membership(&[1, 3], &[(2, 20)]);
        assert_eq!(next(&strangers, &out, 1001, all), Step::LetGo(set(&[2])));
        assert_eq!(next(&strangers, &membership(&[1, 3], &[]), 1001, all), Step::LetIn(2, 77));
        let learner = membership(&[1, 3], &[(2, 77)]);
        assert_eq!(next(&strangers, &learner, 1001, all), Step::Nothing, "on its way");
        assert_eq!(next(&strangers, &membership(&[1, 3], &[]), 1000 + BELIEVED_NS, all), Step::Nothing);
        assert!(!strangers.any(), "nobody says so any more");
    }

    #[test]
    fn nobody_is_taken_out_unless_the_others_are_a_sound_majority() {
        let strangers = Strangers::default();
        strangers.refused(2, 20, 77, 0);
        let three = membership(&[1, 2, 3], &[]);
        assert_eq!(
            next(&strangers, &three, 1, |v| v == 1),
            Step::Nothing,
            "1 alone was no majority of three"
        );
        strangers.refused(3, 30, 78, 0);
        assert_eq!(
            next(&strangers, &three, 1, |_| true),
            Step::Nothing,
            "two of three have lost their memory"
        );
        let five = membership(&[1, 2, 3, 4, 5], &[]);
        assert_eq!(next(&strangers, &five, 1, |_| true), Step::TakeOut(set(&[1, 4, 5])), "both at once");
        assert_eq!(next(&strangers, &five, 1, |v| v != 5), Step::Nothing);
    }

    #[test]
    fn whom_an_operator_has_left_out_is_taken_out_but_not_let_in() {
        let strangers = Strangers::default();
        strangers.refused(2, 20, 77, 0);
        strangers.asks(2, 77, 0);
        let next = |of: &Membership| strangers.next(of, 1, |_| true, |node| node == 2);
        assert_eq!(
            next(&membership(&[1, 2, 3], &[])),
            Step::TakeOut(set(&[1, 3])),
            "it counts for nothing all the same"
        );
        assert_eq!(next(&membership(&[1, 3], &[(2, 20)])), Step::LetGo(set(&[2])));
        assert_eq!(next(&membership(&[1, 3], &[])), Step::Nothing);
        // It does not stand in another one's way.
        strangers.asks(4, 44, 0);
        assert_eq!(next(&membership(&[1, 3], &[])), Step::LetIn(4, 44));
    }

    #[test]
    fn what_was_said_of_an_earlier_life_takes_nobody_out() {
        let strangers = Strangers::default();
        // Meant for 20, which is no member any more: 2 was let in as 77, and is 77.
        strangers.refused(2, 20, 77, 0);
        let now = membership(&[1, 3], &[(2, 77)]);
        assert!(strangers.lost(&now, 1).is_empty());
        assert_eq!(next(&strangers, &now, 1, |_| true), Step::Nothing);
        // A wish alone takes nobody out either.
        strangers.asks(3, 99, 0);
        assert_eq!(next(&strangers, &membership(&[1, 2, 3], &[]), 1, |_| true), Step::TakeOut(set(&[1, 3])));
        let strangers = Strangers::default();
        strangers.asks(3, 99, 0);
        assert_eq!(next(&strangers, &membership(&[1, 2, 3], &[]), 1, |_| true), Step::Nothing);
    }
}
