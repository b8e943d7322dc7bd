//! Both checks against simulated histories, broken ones, and the definition.

mod brute;
mod objects;
mod simulate;

use proptest::prelude::*;
use sextant_checker::{
    ABSENT, Action, CheckKind, History, Op, Options, UNKNOWN, Value, Verdict, check, check_reader,
};

use simulate::{Plan, Simulation, simulate};

fn plan() -> impl Strategy<Value = Plan> {
    (any::<u64>(), 1..12u64, 1..400u32, 1..4u32, prop_oneof![Just(0), Just(3), Just(15)], any::<bool>())
        .prop_map(|(seed, clients, operations, keys, unknown_percent, conditional)| Plan {
            seed,
            clients,
            operations,
            keys,
            unknown_percent,
            conditional,
        })
}

/// A history without its versions: only the search can judge it.
fn blind(history: &History) -> History {
    rebuilt(history, |op| op.version = None)
}

fn rebuilt(history: &History, change: impl Fn(&mut Op)) -> History {
    let mut copy = History::default();
    for (key, ops) in history.by_key() {
        for op in ops {
            let mut op = *op;
            change(&mut op);
            copy.push(key, op);
        }
    }
    // Same values under the same numbers.
    for value in 1.. {
        match history.try_value(value) {
            Some(text) => assert_eq!(copy.intern(Some(text)), value),
            None => break,
        }
    }
    copy
}

/// Ways to break the history of a key, by appending operations that follow each other. Whatever went before, and whatever
/// unknown writes may still do, no order explains them; unless `needs_quiet`: an unknown delete could.
struct Breakage {
    name: &'static str,
    needs_quiet: bool,
    append: fn(&mut Simulation, &str),
}

fn put(simulation: &mut Simulation, key: &str) -> (Value, u64) {
    let text = simulation.fresh_value();
    let value = simulation.history.intern(Some(&text));
    let version = simulation.next_version(key);
    simulation.then(key, Action::Put { value }, Some(version));
    (value, version)
}

const BREAKAGES: [Breakage; 7] = [
    Breakage {
        name: "stale read",
        needs_quiet: false,
        append: |s, key| {
            let (old, version) = put(s, key);
            put(s, key);
            s.then(key, Action::Get { out: old }, Some(version));
        },
    },
    Breakage {
        name: "lost write",
        needs_quiet: true,
        append: |s, key| {
            put(s, key);
            s.then(key, Action::Get { out: ABSENT }, None);
        },
    },
    Breakage {
        name: "two inserts succeed",
        needs_quiet: true,
        append: |s, key| {
            let version = s.next_version(key);
            s.then(key, Action::Delete { existed: None }, Some(version));
            for _ in 0..2 {
                let text = s.fresh_value();
                let value = s.history.intern(Some(&text));
                let version = s.next_version(key);
                s.then(key, Action::Insert { value, applied: Some(true) }, Some(version));
            }
        },
    },
    Breakage {
        name: "value from nowhere",
        needs_quiet: false,
        append: |s, key| {
            let out = s.history.intern(Some("nobody wrote this"));
            let version = s.next_version(key);
            s.then(key, Action::Get { out }, Some(version));
        },
    },
    Breakage {
        name: "a deleted record is back",
        needs_quiet: false,
        append: |s, key| {
            let (value, version) = put(s, key);
            let deleted = s.next_version(key);
            s.then(key, Action::Delete { existed: None }, Some(deleted));
            s.then(key, Action::Get { out: value }, Some(version));
        },
    },
    Breakage {
        name: "two compare-and-sets succeed",
        needs_quiet: false,
        append: |s, key| {
            let (expected, _) = put(s, key);
            for _ in 0..2 {
                let text = s.fresh_value();
                let new = s.history.intern(Some(&text));
                let version = s.next_version(key);
                s.then(key, Action::Cas { expected, new, applied: Some(true) }, Some(version));
            }
        },
    },
    Breakage {
        name: "deleted twice",
        needs_quiet: true,
        append: |s, key| {
            put(s, key);
            for _ in 0..2 {
                let version = s.next_version(key);
                s.then(key, Action::Delete { existed: Some(true) }, Some(version));
            }
        },
    },
];

/// Histories of one key, legal or not, small enough to try every order.
fn small_history() -> impl Strategy<Value = Vec<Op>> {
    let value = 0..4u32;
    let written = 1..4u32;
    let answer = prop_oneof![Just(Some(true)), Just(Some(false))];
    let action = prop_oneof![
        4 => value.clone().prop_map(|out| Action::Get { out }),
        3 => written.clone().prop_map(|value| Action::Put { value }),
        2 => (written, answer.clone()).prop_map(|(value, applied)| Action::Insert { value, applied }),
        2 => proptest::option::of(any::<bool>()).prop_map(|existed| Action::Delete { existed }),
        2 => (value.clone(), value, answer)
            .prop_map(|(expected, new, applied)| Action::Cas { expected, new, applied }),
    ];
    let op = (action, 0..14u64, 0..8u64, prop::bool::weighted(0.2), proptest::option::of(1..6u64));
    prop::collection::vec(op, 1..8).prop_map(|ops| {
        ops.into_iter()
            .enumerate()
            .filter(|(_, (action, _, _, unknown, _))| !(*unknown && matches!(action, Action::Get { .. })))
            .map(|(i, (action, call, took, unknown, version))| Op {
                client: i as u64,
                action: if unknown { without_answer(action) } else { action },
                call,
                ret: if unknown { UNKNOWN } else { call + took },
                version: version.filter(|_| !unknown),
                line: i as u32 + 1,
            })
            .collect()
    })
}

fn without_answer(action: Action) -> Action {
    match action {
        Action::Insert { value, .. } => Action::Insert { value, applied: None },
        Action::Delete { .. } => Action::Delete { existed: None },
        Action::Cas { expected, new, .. } => Action::Cas { expected, new, applied: None },
        other => other,
    }
}

fn history_of(ops: &[Op]) -> History {
    let mut history = History::default();
    for text in ["v1", "v2", "v3"] {
        history.intern(Some(text));
    }
    for op in ops {
        history.push("k", *op);
    }
    history
}

/// A get of an absent record could only be placed behind a later delete: a delete of unknown outcome had made it absent before.
#[test]
fn a_plan_with_a_lost_delete_is_accepted() {
    let seed = 11581209795136996007;
    let plan = Plan { seed, clients: 10, operations: 183, keys: 2, unknown_percent: 3, conditional: true };
    let report = check(&simulate(&plan).history, &Options::default());
    assert!(report.passed(), "{report}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn what_an_atomic_register_does_is_accepted(plan in plan()) {
        let simulation = simulate(&plan);
        let report = check(&simulation.history, &Options::default());
        prop_assert!(report.passed(), "{:?}\n{}", plan, report);
        if plan.unknown_percent == 0 {
            prop_assert_eq!(report.certified, report.keys);
        }
        let report = check(&blind(&simulation.history), &Options::default());
        prop_assert!(report.passed(), "{:?}\n{}", plan, report);
    }

    #[test]
    fn broken_histories_are_rejected_by_both(plan in plan(), which in 0..BREAKAGES.len()) {
        let breakage = &BREAKAGES[which];
        let plan = if breakage.needs_quiet { Plan { unknown_percent: 0, ..plan } } else { plan };
        let mut simulation = simulate(&plan);
        (breakage.append)(&mut simulation, "k0");
        let report = check(&simulation.history, &Options::default());
        prop_assert_eq!(report.verdict(), Verdict::Violation, "{}: {:?}", breakage.name, plan);
        let explanation = report.explanation.expect("a violation is explained");
        prop_assert_eq!(&explanation.key, "k0");
        if plan.unknown_percent == 0 {
            prop_assert_eq!(explanation.found_by, CheckKind::Both, "{}", breakage.name);
        }
        prop_assert!(explanation.operations.iter().any(|op| op.culprit));

        let report = check(&blind(&simulation.history), &Options::default());
        prop_assert_eq!(report.verdict(), Verdict::Violation, "blind: {}: {:?}", breakage.name, plan);
        let explanation = report.explanation.expect("a violation is explained");
        // Without versions it is the search that decides; some breakages the certificate sees as well.
        prop_assert_ne!(explanation.found_by, CheckKind::Certificate);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn the_search_agrees_with_the_definition(ops in small_history()) {
        let blind: Vec<Op> = ops.iter().map(|op| Op { version: None, ..*op }).collect();
        let verdict = check(&history_of(&blind), &Options::default()).verdict();
        let expected = if brute::linearizable(&ops) { Verdict::Linearizable } else { Verdict::Violation };
        prop_assert_eq!(verdict, expected);
    }

    #[test]
    fn what_is_certified_is_linearizable(ops in small_history()) {
        let report = check(&history_of(&ops), &Options::default());
        prop_assert!(report.certified == 0 || brute::linearizable(&ops));
    }
}

#[test]
fn a_search_that_gives_up_is_neither_a_pass_nor_a_violation() {
    let plan = Plan { seed: 1, clients: 16, operations: 500, keys: 1, unknown_percent: 0, conditional: true };
    let simulation = simulate(&plan);
    let options = Options { steps_per_key: 100, ..Options::default() };
    let report = check(&blind(&simulation.history), &options);
    assert_eq!(report.verdict(), Verdict::BudgetExceeded);
    assert!(!report.passed());
    assert_eq!(report.undecided[0].operations, 500);
    // With versions the certificate decides.
    assert_eq!(check(&simulation.history, &options).verdict(), Verdict::Linearizable);
}

#[test]
fn a_hot_key_with_saturating_clients_is_decided() {
    let plan =
        Plan { seed: 7, clients: 16, operations: 20_000, keys: 1, unknown_percent: 0, conditional: true };
    let report = check(&blind(&simulate(&plan).history), &Options::default());
    assert!(report.passed(), "{report}");
}

#[test]
fn versions_that_contradict_real_time_are_a_violation_even_if_another_order_is_legal() {
    let ops = [
        Op { client: 1, action: Action::Put { value: 1 }, call: 0, ret: 1, version: Some(9), line: 1 },
        Op { client: 1, action: Action::Put { value: 2 }, call: 2, ret: 3, version: Some(8), line: 2 },
    ];
    let report = check(&history_of(&ops), &Options::default());
    assert_eq!(report.verdict(), Verdict::Violation);
    assert_eq!(report.explanation.unwrap().found_by, CheckKind::Certificate);
}

#[test]
fn an_unknown_write_that_was_seen_cannot_vanish_again() {
    // The put of "b" timed out, was seen, and then the older "a" came back.
    let lines = concat!(
        r#"{"client":1,"key":"k","op":"put","a":"a","call":0,"ret":10}"#,
        "\n",
        r#"{"client":2,"key":"k","op":"put","a":"b","call":20,"ret":null}"#,
        "\n",
        r#"{"client":3,"key":"k","op":"get","out":"b","call":30,"ret":40}"#,
        "\n",
        r#"{"client":3,"key":"k","op":"get","out":"a","call":50,"ret":60}"#,
    );
    let report = check_reader(lines.as_bytes(), &Options::default()).unwrap();
    assert_eq!(report.verdict(), Verdict::Violation);
    let text = report.to_string();
    for part in
        ["VIOLATION", "key \"k\": not linearizable", "> line 4", "get -> \"a\"", "put \"b\"", "unknown"]
    {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    assert_eq!(json["verdict"], "violation");
    assert_eq!(json["explanation"]["key"], "k");
    assert_eq!(json["explanation"]["operations"][0]["line"], 1);
    // An unseen one may do what it likes: also explain a record where none should be.
    let lines = concat!(
        r#"{"client":2,"key":"k","op":"put","a":"b","call":20,"ret":null}"#,
        "\n",
        r#"{"client":3,"key":"k","op":"insert","a":"c","out":"exists","call":30,"ret":40}"#,
    );
    assert!(check_reader(lines.as_bytes(), &Options::default()).unwrap().passed());
}
