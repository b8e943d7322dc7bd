//! The certificate: the order that the versions claim, verified. O(n log n) for each key.
//!
//! The writes of a key, sorted by version, cut its life into *gaps*: gap k is the time between the k-th write and the next,
//! in which the record has one state. Every other operation only observes, and belongs into a gap: into that of its version,
//! or, if it has none (an absent record has no version), into the earliest that fits its result and real time. Real time is
//! obeyed if nothing is placed before something that returned before it was called.
//!
//! Earliest is best: an observation bounds only later ones, and only from below. (Not where a write of unknown outcome may have
//! made an earlier gap of which no version tells: then nothing is certified or violated by it.)

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::history::{ABSENT, Action, Op, UNKNOWN, Value};
use crate::register::Step;

/// What the versions of a key prove. Numbers are indexes into its operations.
#[derive(Debug, PartialEq)]
pub(crate) enum Certificate {
    /// The order of the versions is a legal one: the key is linearizable.
    Certified,
    /// Versions are missing, or an unknown write may explain what contradicts them.
    Inconclusive,
    /// Whatever the unknown writes did: the versions do not name a legal order.
    Violated { rule: &'static str, culprits: Vec<usize> },
}

/// The writes in the order of their versions, with what each gap needs to know.
struct Gaps<'o> {
    ops: &'o [Op],
    /// Index of the write that starts gap k + 1.
    writes: Vec<usize>,
    /// State in each gap; gap 0 is before the first write.
    states: Vec<Value>,
    /// The latest call of the writes up to a gap, and whose it is.
    latest_call: Vec<(u64, Option<usize>)>,
    /// The earliest return of the writes from a gap on (not including the one that starts it), and whose it is.
    earliest_ret: Vec<(u64, Option<usize>)>,
}

pub(crate) fn certify(ops: &[Op]) -> Certificate {
    match try_certify(ops) {
        Ok(()) => Certificate::Certified,
        Err(other) => other,
    }
}

fn try_certify(ops: &[Op]) -> Result<(), Certificate> {
    let mut writes = Vec::new();
    let mut observations = Vec::new();
    let mut unplaced = Vec::new();
    for (i, op) in ops.iter().enumerate() {
        let is_delete = matches!(op.action, Action::Delete { .. });
        if op.is_unknown() {
            unplaced.push(i);
        } else if op.action.is_pure() && !(is_delete && op.version.is_some()) {
            observations.push(i);
        } else if let Some(version) = op.version {
            writes.push((version, i));
        } else {
            return Err(Certificate::Inconclusive);
        }
    }
    writes.sort_unstable();
    if let Some(pair) = writes.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(violated("two writes have the same version", [pair[0].1, pair[1].1]));
    }
    place_seen_unknown_writes(ops, &mut writes, &observations, &mut unplaced)?;
    let excused = !unplaced.is_empty();
    let excusable = |violation: Certificate| if excused { Certificate::Inconclusive } else { violation };

    let gaps = Gaps::new(ops, &writes).map_err(excusable)?;
    gaps.writes_obey_real_time()?;

    // Observations in the order of their calls; each is placed no earlier than those that returned before.
    observations.sort_unstable_by_key(|i| (ops[*i].call, *i));
    let by_version: HashMap<u64, usize> = writes.iter().enumerate().map(|(k, (v, _))| (*v, k + 1)).collect();
    let positions = gaps.positions();
    let mut returning: BinaryHeap<Reverse<(u64, usize, usize, usize)>> = BinaryHeap::new();
    let mut floor = (0, None);
    // The same if an unknown write may have made what was seen without a version: as far as versions and real time say so.
    let mut sure_floor = (0, None);
    for i in observations {
        let op = &ops[i];
        while let Some(Reverse((ret, gap, sure, earlier))) = returning.peek().copied()
            && ret < op.call
        {
            returning.pop();
            if gap > floor.0 {
                floor = (gap, Some(earlier));
            }
            if sure > sure_floor.0 {
                sure_floor = (sure, Some(earlier));
            }
        }
        let (soonest, after) = gaps.soonest(op);
        let latest = gaps.latest(op);
        let (gap, sure) = match op.version.and_then(|version| by_version.get(&version)) {
            Some(&gap) => {
                if op.action.step(gaps.states[gap]) == Step::Illegal {
                    return Err(violated(
                        "the result is not what its version holds",
                        [gaps.writes[gap - 1], i],
                    ));
                }
                if gap < soonest {
                    return Err(violated(
                        "it saw a version that was overwritten before it was called",
                        after.into_iter().chain([i]),
                    ));
                }
                let rule = "it saw an older version than an operation that returned before it was called";
                if gap < sure_floor.0 {
                    return Err(violated(rule, sure_floor.1.into_iter().chain([i])));
                }
                if gap < floor.0 {
                    return Err(excusable(violated(rule, floor.1.into_iter().chain([i]))));
                }
                if gap > latest {
                    return Err(violated(
                        "it saw a version that was written after it returned",
                        gaps.latest_call[gap].1.into_iter().chain([i]),
                    ));
                }
                (gap, gap)
            }
            None => {
                let from = soonest.max(floor.0);
                let found = gaps.first_legal(op, from, &positions).filter(|gap| *gap <= latest);
                let gap = found.ok_or_else(|| {
                    let before = if soonest >= floor.0 { after } else { floor.1 };
                    let rule = "no moment between its call and its return fits its result";
                    excusable(violated(rule, before.into_iter().chain([i])))
                })?;
                (gap, soonest.max(sure_floor.0))
            }
        };
        returning.push(Reverse((op.ret, gap, sure, i)));
    }
    Ok(())
}

fn violated(rule: &'static str, culprits: impl IntoIterator<Item = usize>) -> Certificate {
    Certificate::Violated { rule, culprits: culprits.into_iter().collect() }
}

/// A version that a get saw and no acknowledged write has is that of an unknown write of the same value.
fn place_seen_unknown_writes(
    ops: &[Op],
    writes: &mut Vec<(u64, usize)>,
    observations: &[usize],
    unplaced: &mut Vec<usize>,
) -> Result<(), Certificate> {
    let acknowledged = writes.len();
    let mut placed: HashMap<u64, Value> = HashMap::new();
    for &i in observations {
        let Some(version) = ops[i].version else { continue };
        let known =
            |writes: &[(u64, usize)]| writes[..acknowledged].binary_search_by_key(&version, |w| w.0).is_ok();
        if known(writes) {
            continue;
        }
        let Action::Get { out } = ops[i].action else { return Err(Certificate::Inconclusive) };
        match placed.get(&version) {
            Some(value) if *value == out => continue,
            Some(_) => return Err(violated("two gets saw different values of one version", [i])),
            None => {}
        }
        let mut candidates = unplaced
            .iter()
            .enumerate()
            .filter(|(_, w)| ops[**w].action.produces() == Some(out))
            .map(|(at, _)| at);
        let Some(at) = candidates.next() else {
            return Err(violated("it saw a version that nobody wrote", [i]));
        };
        if candidates.next().is_some() {
            // Which of them it was is the search's business.
            return Err(Certificate::Inconclusive);
        }
        placed.insert(version, out);
        writes.push((version, unplaced.swap_remove(at)));
    }
    writes.sort_unstable();
    Ok(())
}

impl<'o> Gaps<'o> {
    /// Fails if the writes are not a legal sequence.
    fn new(ops: &'o [Op], writes: &[(u64, usize)]) -> Result<Self, Certificate> {
        let mut states = vec![ABSENT];
        let mut latest_call = vec![(0, None)];
        for (k, (_, i)) in writes.iter().enumerate() {
            let action = effective(ops[*i].action);
            let Step::Legal(next) = action.step(states[k]) else {
                let before = k.checked_sub(1).map(|previous| writes[previous].1);
                return Err(violated(
                    "the write before it rules its result out",
                    before.into_iter().chain([*i]),
                ));
            };
            states.push(next);
            latest_call.push(latest_call[k].max((ops[*i].call, Some(*i))));
        }
        let mut earliest_ret = vec![(UNKNOWN, None); writes.len() + 1];
        for (k, (_, i)) in writes.iter().enumerate().rev() {
            earliest_ret[k] = earliest_ret[k + 1].min((ops[*i].ret, Some(*i)));
        }
        let writes = writes.iter().map(|(_, i)| *i).collect();
        Ok(Self { ops, writes, states, latest_call, earliest_ret })
    }

    fn writes_obey_real_time(&self) -> Result<(), Certificate> {
        for (k, i) in self.writes.iter().enumerate() {
            let (call, earlier) = self.latest_call[k];
            if self.ops[*i].ret < call {
                let rule = "it returned before the write of an older version was called";
                return Err(violated(rule, earlier.into_iter().chain([*i])));
            }
        }
        Ok(())
    }

    /// The first gap that an operation may be placed in: no write after it returned before the call. And the last write
    /// that did return before.
    fn soonest(&self, op: &Op) -> (usize, Option<usize>) {
        let gap = self.earliest_ret.partition_point(|(ret, _)| *ret < op.call);
        (gap, gap.checked_sub(1).and_then(|previous| self.earliest_ret[previous].1))
    }

    /// The last gap that an operation may be placed in: no write up to it was called after the return.
    fn latest(&self, op: &Op) -> usize {
        self.latest_call.partition_point(|(call, _)| *call <= op.ret) - 1
    }

    /// The gaps in which the record has a value, for each value; in order.
    fn positions(&self) -> HashMap<Value, Vec<usize>> {
        let mut positions: HashMap<Value, Vec<usize>> = HashMap::new();
        for (gap, state) in self.states.iter().enumerate() {
            positions.entry(*state).or_default().push(gap);
        }
        positions
    }

    /// The first gap from `from` on in which a result is possible.
    fn first_legal(&self, op: &Op, from: usize, positions: &HashMap<Value, Vec<usize>>) -> Option<usize> {
        match op.action.needs() {
            Some(state) => {
                let gaps = positions.get(&state)?;
                gaps.get(gaps.partition_point(|gap| *gap < from)).copied()
            }
            None => (from..self.states.len()).find(|gap| op.action.step(self.states[*gap]) != Step::Illegal),
        }
    }
}

/// A write whose outcome is unknown and whose version somebody saw did take effect.
fn effective(action: Action) -> Action {
    match action {
        Action::Insert { value, applied: None } => Action::Insert { value, applied: Some(true) },
        Action::Cas { expected, new, applied: None } => Action::Cas { expected, new, applied: Some(true) },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(action: Action, call: u64, ret: u64, version: Option<u64>) -> Op {
        Op { client: 0, action, call, ret, version, line: 0 }
    }

    fn put(value: Value, call: u64, ret: u64, version: u64) -> Op {
        op(Action::Put { value }, call, ret, Some(version))
    }

    fn get(out: Value, call: u64, ret: u64, version: Option<u64>) -> Op {
        op(Action::Get { out }, call, ret, version)
    }

    fn rule(ops: &[Op]) -> &'static str {
        match certify(ops) {
            Certificate::Violated { rule, .. } => rule,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_order_in_accord_with_its_versions_is_certified() {
        let ops = [
            get(ABSENT, 0, 10, None),
            put(1, 0, 5, 3),
            get(1, 6, 20, Some(3)),
            op(Action::Insert { value: 9, applied: Some(false) }, 6, 8, Some(3)),
            put(2, 7, 30, 4),
            get(2, 21, 40, Some(4)),
            op(Action::Delete { existed: Some(true) }, 31, 35, Some(8)),
            get(ABSENT, 33, 36, None),
            op(Action::Delete { existed: Some(false) }, 36, 37, Some(9)),
            op(Action::Delete { existed: Some(false) }, 36, 37, None),
            op(Action::Cas { expected: ABSENT, new: 3, applied: Some(true) }, 38, 39, Some(10)),
            op(Action::Cas { expected: 2, new: 4, applied: Some(false) }, 38, 41, None),
        ];
        assert_eq!(certify(&ops), Certificate::Certified);
    }

    #[test]
    fn each_broken_rule_is_named() {
        assert_eq!(rule(&[put(1, 0, 1, 3), put(2, 2, 3, 3)]), "two writes have the same version");
        assert_eq!(
            rule(&[put(1, 0, 1, 4), put(2, 2, 3, 3)]),
            "it returned before the write of an older version was called"
        );
        assert_eq!(
            rule(&[put(1, 0, 1, 3), get(2, 2, 3, Some(3))]),
            "the result is not what its version holds"
        );
        assert_eq!(
            rule(&[put(1, 0, 1, 3), put(2, 2, 3, 4), get(1, 4, 5, Some(3))]),
            "it saw a version that was overwritten before it was called"
        );
        assert_eq!(
            rule(&[put(1, 0, 1, 3), put(2, 2, 9, 4), get(2, 3, 4, Some(4)), get(1, 5, 6, Some(3))]),
            "it saw an older version than an operation that returned before it was called"
        );
        assert_eq!(
            rule(&[put(1, 5, 6, 3), get(1, 1, 2, Some(3))]),
            "it saw a version that was written after it returned"
        );
        assert_eq!(rule(&[get(1, 1, 2, Some(3))]), "it saw a version that nobody wrote");
        let insert = |value, call, version| {
            op(Action::Insert { value, applied: Some(true) }, call, call + 1, Some(version))
        };
        assert_eq!(rule(&[insert(1, 0, 1), insert(2, 2, 2)]), "the write before it rules its result out");
        assert_eq!(
            rule(&[put(1, 0, 1, 3), get(ABSENT, 2, 3, None)]),
            "no moment between its call and its return fits its result"
        );
        assert_eq!(
            rule(&[
                put(1, 0, 1, 1),
                op(Action::Delete { existed: None }, 2, 9, Some(2)),
                get(ABSENT, 3, 4, None),
                put(2, 2, 9, 3),
                get(2, 5, 6, Some(3)),
                get(ABSENT, 7, 8, None),
            ]),
            "no moment between its call and its return fits its result"
        );
    }

    #[test]
    fn unknown_writes_excuse_what_they_may_explain_and_no_more() {
        let unknown = |action| op(action, 2, UNKNOWN, None);
        let lost = unknown(Action::Delete { existed: None });
        assert_eq!(certify(&[put(1, 0, 1, 3), lost, get(ABSENT, 2, 3, None)]), Certificate::Inconclusive);
        // An unknown write that was seen has its place, and is bound to it.
        let late = unknown(Action::Put { value: 2 });
        assert_eq!(certify(&[put(1, 0, 1, 3), late, get(2, 3, 4, Some(4))]), Certificate::Certified);
        assert_eq!(
            rule(&[put(1, 0, 1, 3), late, get(2, 3, 4, Some(4)), get(1, 5, 6, Some(3))]),
            "it saw an older version than an operation that returned before it was called"
        );
        assert_eq!(
            rule(&[put(1, 0, 1, 3), late, get(3, 3, 4, Some(4))]),
            "it saw a version that nobody wrote"
        );
        assert_eq!(certify(&[op(Action::Put { value: 1 }, 0, 1, None)]), Certificate::Inconclusive);
    }

    /// Without the lost delete, the record can only be absent after the last one.
    #[test]
    fn an_unknown_delete_may_have_made_the_absence_that_somebody_saw() {
        let lost = op(Action::Delete { existed: None }, 2, UNKNOWN, None);
        let known = [
            put(1, 0, 1, 1),
            get(ABSENT, 4, 8, None),
            put(2, 5, 12, 3),
            op(Action::Delete { existed: Some(true) }, 7, 20, Some(4)),
            get(2, 10, 11, Some(3)),
        ];
        let older = "it saw an older version than an operation that returned before it was called";
        assert_eq!(rule(&known), older);
        assert_eq!(certify(&[&known[..], &[lost]].concat()), Certificate::Inconclusive);
        // Not what versions tell.
        let two_reads =
            [put(1, 0, 1, 3), put(2, 2, 9, 4), get(2, 3, 4, Some(4)), get(1, 5, 6, Some(3)), lost];
        assert_eq!(rule(&two_reads), older);
    }
}
