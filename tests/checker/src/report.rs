//! What a check says: for people (`Display`) and for programs ([`Report::to_json`]).

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

use crate::history::{ABSENT, Action, History, Op, UNKNOWN, Value};
use crate::objects::{self, Commands};
use crate::register::Step;
use crate::search::{DeadEnd, Evidence};

/// Most operations that an explanation shows.
const SHOWN_MAX: usize = 16;
/// How many operations that returned just before those it is about.
const BEFORE_MAX: usize = 4;

/// The result of checking a history.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    pub operations: u64,
    pub keys: u64,
    /// Groups of objects: each is judged by itself.
    pub groups: u64,
    /// Operations whose outcome is unknown.
    pub unknown: u64,
    /// Lines about faults.
    pub notes: u64,
    /// Keys that are linearizable in the order of their versions.
    pub certified: u64,
    /// Keys with a violation.
    pub violations: u64,
    /// Those of them for which there is no legal order at all, whatever their versions say.
    pub illegal: u64,
    /// Keys for which the budget was not enough, and which the certificate does not prove right either.
    pub undecided: Vec<Undecided>,
    /// Of the first violation.
    pub explanation: Option<Explanation>,
}

/// A key that could be neither proved right nor wrong.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Undecided {
    pub key: String,
    pub operations: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Linearizable,
    /// Some key is not linearizable, or its versions contradict its results.
    Violation,
    /// No violation was found, but the budget was not enough for some key. Not a pass.
    BudgetExceeded,
}

/// Who found a violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckKind {
    /// The versions contradict results or real time; there may be another order that does not.
    Certificate,
    /// There is no legal order.
    Search,
    Both,
}

/// A violation, with the operations that show it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    pub key: String,
    pub found_by: CheckKind,
    /// What is wrong.
    pub rule: String,
    /// The operations it is about, and some around them; in the order of their calls. (Of objects: those placed last, then what does
    /// not fit.)
    pub operations: Vec<Described>,
    /// Operations on the key that are not shown.
    pub not_shown: u64,
}

/// An operation, for people.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Described {
    pub line: u32,
    pub client: u64,
    /// Such as `insert "x" -> exists`.
    pub text: String,
    pub call: u64,
    /// `None`: unknown outcome.
    pub ret: Option<u64>,
    pub version: Option<u64>,
    /// One of those that the rule is about.
    pub culprit: bool,
}

impl Report {
    pub fn verdict(&self) -> Verdict {
        if self.violations > 0 {
            Verdict::Violation
        } else if !self.undecided.is_empty() {
            Verdict::BudgetExceeded
        } else {
            Verdict::Linearizable
        }
    }

    /// Only what is proved linearizable passes.
    pub fn passed(&self) -> bool {
        self.verdict() == Verdict::Linearizable
    }

    /// One object: `verdict`, and the fields of the report.
    pub fn to_json(&self) -> String {
        #[derive(Serialize)]
        struct WithVerdict<'r> {
            verdict: Verdict,
            #[serde(flatten)]
            report: &'r Report,
        }
        let json = serde_json::to_string(&WithVerdict { verdict: self.verdict(), report: self });
        json.unwrap_or_else(|e| format!("{{\"error\":\"{e}\"}}"))
    }
}

impl Explanation {
    /// `culprits`: the operations that the rule is about, by index.
    pub(crate) fn new(
        history: &History,
        key: &str,
        ops: &[Op],
        found_by: CheckKind,
        rule: String,
        culprits: &[usize],
    ) -> Self {
        let shown = around(ops, culprits);
        let operations = shown.iter().map(|i| describe(history, &ops[*i], culprits.contains(i))).collect();
        let not_shown = (ops.len() - shown.len()) as u64;
        Self { key: key.to_owned(), found_by, rule, operations, not_shown }
    }

    pub(crate) fn of_search(history: &History, key: &str, ops: &[Op], evidence: &Evidence) -> Self {
        let line = |i: usize| ops[i].line;
        let (rule, culprits) = match evidence {
            Evidence::FromNowhere(i) => {
                (format!("line {} met a value that nobody had begun to write", line(*i)), vec![*i])
            }
            Evidence::Held { from, to, against } => {
                let state = ops[*to].action.needs().or(ops[*from].action.needs()).unwrap_or(ABSENT);
                let mut lines: Vec<String> = against.iter().map(|i| line(*i).to_string()).collect();
                lines.dedup();
                let rule = format!(
                    "{} was written once and was there from the return of line {} to the call of line {}; line {} fits \
                     neither before nor after that",
                    record(history, state),
                    line(*from),
                    line(*to),
                    lines.join(" with line ")
                );
                (rule, [&[*from, *to], against.as_slice()].concat())
            }
            Evidence::Replaced { by, then } => {
                let rule = format!("line {} met what line {} had replaced", line(*then), line(*by));
                (rule, vec![*by, *then])
            }
            Evidence::DeadEnd(dead_end) => return Self::of_dead_end(history, key, ops, dead_end),
        };
        Self::new(history, key, ops, CheckKind::Search, rule, &culprits)
    }

    fn of_dead_end(history: &History, key: &str, ops: &[Op], dead_end: &DeadEnd) -> Self {
        let state = dead_end.written_by.and_then(|i| ops[i].action.produces()).unwrap_or(ABSENT);
        let stuck = &ops[dead_end.stuck];
        let mut culprits = vec![dead_end.stuck];
        culprits.extend(dead_end.written_by);
        let mut rule = format!(
            "no order explains all results. The longest places {} of {} operations and leaves {}",
            dead_end.placed,
            ops.len(),
            record(history, state)
        );
        if let Some(i) = dead_end.written_by {
            rule += &format!(" (line {})", ops[i].line);
        }
        if stuck.action.step(state) == Step::Illegal {
            rule += &format!("; line {} does not fit there, and must not come later", stuck.line);
        } else {
            // It would fit, but then somebody who has yet to see the state never will.
            let needs = |i: &usize| ops[*i].action.needs() == Some(state) && *i != dead_end.stuck;
            let waiting = (0..ops.len()).filter(needs).max_by_key(|i| ops[*i].call);
            rule += &format!("; line {} ends that, and must not come later", stuck.line);
            if let Some(i) = waiting {
                rule += &format!(", but line {} still has to see it", ops[i].line);
                culprits.push(i);
            }
        }
        culprits.extend(dead_end.last.iter().rev().take(2));
        culprits.sort_unstable();
        culprits.dedup();
        Self::new(history, key, ops, CheckKind::Search, rule, &culprits)
    }

    /// Of a group of objects.
    pub(crate) fn of_objects(group: &str, ops: &[Commands], dead_end: &objects::DeadEnd) -> Self {
        let objects::DeadEnd { placed, stuck } = dead_end;
        let last = &placed[placed.len().saturating_sub(SHOWN_MAX - BEFORE_MAX)..];
        let shown: Vec<usize> = last.iter().chain(stuck.iter().take(BEFORE_MAX)).copied().collect();
        let describe = |op: &usize| Described {
            line: ops[*op].line,
            client: ops[*op].client,
            text: ops[*op].describe(),
            call: ops[*op].call,
            ret: (!ops[*op].is_unknown()).then_some(ops[*op].ret),
            version: None,
            culprit: stuck.contains(op),
        };
        let rule = format!(
            "no order explains all results. The longest places {} of {} operations; what is marked does not fit behind it",
            placed.len(),
            ops.len()
        );
        Self {
            key: group.to_owned(),
            found_by: CheckKind::Search,
            rule,
            operations: shown.iter().map(describe).collect(),
            not_shown: (ops.len() - shown.len()) as u64,
        }
    }
}

/// The culprits, who wrote what they name, what overlaps them, and what came just before; in the order of their calls.
fn around(ops: &[Op], culprits: &[usize]) -> Vec<usize> {
    let mut shown: BTreeSet<usize> = culprits.iter().copied().take(SHOWN_MAX).collect();
    let add = |shown: &mut BTreeSet<usize>, candidates: Vec<usize>, most: usize| {
        for i in candidates.into_iter().take(most) {
            if shown.len() < SHOWN_MAX {
                shown.insert(i);
            }
        }
    };
    let named: Vec<Value> =
        culprits.iter().filter_map(|i| ops[*i].action.needs()).filter(|v| *v != ABSENT).collect();
    let writers = (0..ops.len()).filter(|i| ops[*i].action.produces().is_some_and(|v| named.contains(&v)));
    add(&mut shown, writers.collect(), SHOWN_MAX / 4);
    // The last of them is what it is about: earlier ones are there for what they did.
    let Some(last) = culprits.iter().map(|i| &ops[*i]).max_by_key(|op| op.call) else { return Vec::new() };
    let until = if last.ret == UNKNOWN { last.call } else { last.ret };
    let mut overlapping: Vec<usize> =
        (0..ops.len()).filter(|i| ops[*i].call <= until && ops[*i].ret >= last.call).collect();
    overlapping.sort_by_key(|i| (ops[*i].action.is_pure(), std::cmp::Reverse(ops[*i].call)));
    add(&mut shown, overlapping, SHOWN_MAX / 2);
    let mut before: Vec<usize> = (0..ops.len()).filter(|i| ops[*i].ret < last.call).collect();
    before.sort_by_key(|i| std::cmp::Reverse(ops[*i].ret));
    add(&mut shown, before, BEFORE_MAX);
    let mut shown: Vec<usize> = shown.into_iter().collect();
    shown.sort_by_key(|i| (ops[*i].call, ops[*i].ret));
    shown
}

fn describe(history: &History, op: &Op, culprit: bool) -> Described {
    let value = |value: Value| match history.value(value) {
        Some(text) => format!("{text:?}"),
        None => "(no record)".to_owned(),
    };
    let word = |answer: Option<bool>, yes: &str, no: &str| match answer {
        Some(true) => format!(" -> {yes}"),
        Some(false) => format!(" -> {no}"),
        None => String::new(),
    };
    let text = match op.action {
        Action::Get { out } => format!("get -> {}", value(out)),
        Action::Put { value: v } => format!("put {}", value(v)),
        Action::Insert { value: v, applied } => {
            format!("insert {}{}", value(v), word(applied, "ok", "exists"))
        }
        Action::Delete { existed } => format!("delete{}", word(existed, "existed", "absent")),
        Action::Cas { expected, new, applied } => {
            format!("cas {} to {}{}", value(expected), value(new), word(applied, "ok", "failed"))
        }
    };
    Described {
        line: op.line,
        client: op.client,
        text,
        call: op.call,
        ret: (!op.is_unknown()).then_some(op.ret),
        version: op.version,
        culprit,
    }
}

fn record(history: &History, state: Value) -> String {
    match history.value(state) {
        Some(text) => format!("the record {text:?}"),
        None => "no record".to_owned(),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.verdict() {
            Verdict::Linearizable => "linearizable",
            Verdict::Violation => "VIOLATION",
            Verdict::BudgetExceeded => "BUDGET EXCEEDED",
        };
        writeln!(
            f,
            "{verdict}: {} operations ({} of unknown outcome) on {} keys, {} certified by their versions, and {} groups of objects",
            self.operations, self.unknown, self.keys, self.certified, self.groups
        )?;
        if self.violations > 0 {
            writeln!(f, "{} keys or groups with a violation", self.violations)?;
        }
        for undecided in self.undecided.iter().take(SHOWN_MAX) {
            writeln!(f, "undecided: {:?} with {} operations", undecided.key, undecided.operations)?;
        }
        match &self.explanation {
            Some(explanation) => explanation.fmt(f),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let check = match self.found_by {
            CheckKind::Certificate => "its versions contradict its results",
            CheckKind::Search => "not linearizable",
            CheckKind::Both => "not linearizable, and its versions contradict its results",
        };
        writeln!(f, "key {:?}: {check}", self.key)?;
        writeln!(f, "  {}", self.rule)?;
        let start = self.operations.first().map_or(0, |op| op.call);
        let us =
            |ns: u64| format!("{}.{:03}", ns.saturating_sub(start) / 1000, ns.saturating_sub(start) % 1000);
        let width = self.operations.iter().map(|op| op.text.chars().count()).max().unwrap_or(0);
        writeln!(f, "  times in microseconds; {} more operations on the key are not shown", self.not_shown)?;
        for op in &self.operations {
            let mark = if op.culprit { '>' } else { ' ' };
            let ret = op.ret.map_or_else(|| "unknown".to_owned(), us);
            write!(
                f,
                "  {mark} line {:<7} client {:<5} {:width$}  {:>12} to {ret:>12}",
                op.line,
                op.client,
                op.text,
                us(op.call)
            )?;
            match op.version {
                Some(version) => writeln!(f, "  version {version}")?,
                None => writeln!(f)?,
            }
        }
        Ok(())
    }
}
