//! Histories of commands on objects: those that have a legal order pass, and those that are wrong, in each way that a database may
//! be wrong, do not.

use sextant_checker::{Expiry, Options, Report, Verdict, check_reader};

/// A line: when it was called and had returned (0: nobody knows), commands, and replies as JSON.
type Line<'l> = (u64, u64, &'l [&'l str], &'l str);

fn checked_with(lines: &[Line<'_>], options: &Options) -> Report {
    let line = |(at, (call, ret, commands, replies)): (usize, &Line<'_>)| {
        let commands: Vec<Vec<&str>> = commands.iter().map(|c| c.split(' ').collect()).collect();
        let ret = if *ret == 0 { "null".to_owned() } else { ret.to_string() };
        let commands = serde_json::to_string(&commands).unwrap();
        format!(
            r#"{{"client":{at},"group":"g","commands":{commands},"replies":{replies},"call":{call},"ret":{ret}}}"#
        )
    };
    let text: Vec<String> = lines.iter().enumerate().map(line).collect();
    check_reader(text.join("\n").as_bytes(), options).unwrap()
}

fn verdict(lines: &[Line<'_>]) -> Verdict {
    checked_with(lines, &Options::default()).verdict()
}

fn is_legal(lines: &[Line<'_>]) {
    let report = checked_with(lines, &Options::default());
    assert_eq!(report.verdict(), Verdict::Linearizable, "{report}");
}

fn is_wrong(lines: &[Line<'_>]) {
    assert_eq!(verdict(lines), Verdict::Violation, "{lines:?}");
}

#[test]
fn commands_side_by_side_may_come_in_any_order() {
    is_legal(&[
        (1, 9, &["HSET h f 1"], "[0]"),
        (2, 8, &["HSET h f 2"], "[1]"),
        (3, 7, &["HLEN h"], "[0]"),
        (10, 11, &["HGETALL h"], r#"[["f","1"]]"#),
    ]);
    is_wrong(&[(1, 2, &["HSET h f 1"], "[1]"), (3, 4, &["HSET h f 2"], "[1]")]);
}

#[test]
fn what_changes_nothing_in_one_place_may_be_needed_in_another() {
    is_legal(&[
        (1, 2, &["RPUSH l a"], "[1]"),
        (3, 9, &["RPUSH l b"], "[2]"),
        (3, 9, &["LMOVE l l LEFT RIGHT"], r#"["a"]"#),
        (10, 11, &["LRANGE l 0 -1"], r#"[["b","a"]]"#),
    ]);
}

#[test]
fn a_command_of_unknown_outcome_may_come_late_or_never() {
    let unknown: Line<'_> = (1, 0, &["INCRBY n 5"], "[]");
    is_legal(&[unknown, (2, 3, &["GET n"], "[null]"), (4, 5, &["GET n"], r#"["5"]"#)]);
    is_legal(&[unknown, (2, 3, &["INCRBY n 1"], "[1]")]);
    is_wrong(&[unknown, (2, 3, &["GET n"], r#"["5"]"#), (4, 5, &["GET n"], "[null]")]);
}

#[test]
fn a_lost_update_is_found() {
    is_wrong(&[
        (1, 5, &["INCRBY n 1"], "[1]"),
        (1, 5, &["INCRBY n 1"], "[1]"),
        (6, 7, &["GET n"], r#"["1"]"#),
    ]);
    is_wrong(&[
        (1, 5, &["RPUSH l a"], "[1]"),
        (2, 6, &["RPUSH l b"], "[2]"),
        (7, 8, &["LRANGE l 0 -1"], r#"[["b"]]"#),
    ]);
}

#[test]
fn a_retry_that_takes_effect_twice_is_found() {
    is_wrong(&[(1, 5, &["HINCRBY h m 3"], "[3]"), (6, 7, &["HGET h m"], r#"["6"]"#)]);
    let unknown: Line<'_> = (1, 0, &["LPUSH l a"], "[]");
    is_wrong(&[unknown, (6, 7, &["LRANGE l 0 -1"], r#"[["a","a"]]"#)]);
}

#[test]
fn a_stale_read_is_found() {
    is_wrong(&[
        (1, 2, &["ZADD z 1 a"], "[1]"),
        (3, 4, &["ZINCRBY z 4 a"], r#"["5"]"#),
        (5, 6, &["ZSCORE z a"], r#"["1"]"#),
    ]);
}

#[test]
fn a_read_of_two_keys_that_is_torn_is_found() {
    let moves: Line<'_> = (3, 9, &["HINCRBY h m -1", "INCRBY n 1"], "[0,1]");
    let before: Line<'_> = (1, 2, &["HINCRBY h m 1"], "[1]");
    is_legal(&[before, moves, (4, 8, &["HGET h m", "GET n"], r#"["1",null]"#)]);
    is_legal(&[before, moves, (4, 8, &["HGET h m", "GET n"], r#"["0","1"]"#)]);
    is_wrong(&[before, moves, (4, 8, &["HGET h m", "GET n"], r#"["0",null]"#)]);
    is_wrong(&[before, moves, (4, 8, &["HGET h m", "GET n"], r#"["1","1"]"#)]);
}

#[test]
fn a_count_that_is_not_that_of_the_elements_is_found() {
    is_wrong(&[(1, 2, &["SADD s a b"], "[2]"), (3, 4, &["SCARD s"], "[1]")]);
    is_wrong(&[(1, 2, &["SADD s a b"], "[2]"), (3, 4, &["SMEMBERS s"], r#"[["a"]]"#)]);
}

#[test]
fn an_element_that_outlives_its_object_is_found() {
    let made: Line<'_> = (1, 2, &["HSET h f 1"], "[1]");
    let again: Line<'_> = (5, 6, &["HSET h g 2"], "[1]");
    is_wrong(&[made, (3, 4, &["DEL h"], "[1]"), again, (7, 8, &["HGETALL h"], r#"[["f","1","g","2"]]"#)]);
    let lifetime: Line<'_> = (3, 4, &["PEXPIRE h 1"], "[1]");
    let gone: Line<'_> = (4, 5, &["EXISTS h"], "[0]");
    is_legal(&[made, lifetime, gone, again, (7, 8, &["HGETALL h"], r#"[["g","2"]]"#)]);
    is_wrong(&[made, lifetime, gone, again, (7, 8, &["HGETALL h"], r#"[["f","1","g","2"]]"#)]);
    is_wrong(&[made, lifetime, gone, (7, 8, &["HGET h f"], r#"["1"]"#)]);
}

#[test]
fn what_expires_is_gone_as_a_whole_and_neither_early_nor_late() {
    let options = Options { expiry: Expiry { early_ns: 100, late_ns: 200 }, ..Options::default() };
    let verdict = |line| {
        let set = [(1, 2, &["SET k v", "PEXPIRE k 1"][..], r#"["OK",1]"#), line];
        checked_with(&set, &options).verdict()
    };
    let there = r#"["v"]"#;
    assert_eq!(verdict((5, 999_900, &["GET k"], "[null]")), Verdict::Violation);
    assert_eq!(verdict((5, 999_901, &["GET k"], "[null]")), Verdict::Linearizable);
    assert_eq!(verdict((1_000_202, 2_000_000, &["GET k"], there)), Verdict::Linearizable);
    assert_eq!(verdict((1_000_203, 2_000_000, &["GET k"], there)), Verdict::Violation);
}

#[test]
fn a_transaction_takes_effect_only_on_what_it_has_read() {
    let read = r#"["1"]"#;
    let unknown: Line<'_> = (3, 0, &["GET n", "INCRBY n 1"], read);
    is_legal(&[(1, 2, &["SET n 1"], r#"["OK"]"#), unknown, (5, 6, &["GET n"], r#"["2"]"#)]);
    is_wrong(&[(1, 2, &["SET n 5"], r#"["OK"]"#), unknown, (5, 6, &["GET n"], r#"["6"]"#)]);
    let done: Line<'_> = (3, 9, &["GET n", "INCRBY n 1"], r#"["1",2]"#);
    is_wrong(&[
        (1, 2, &["SET n 1"], r#"["OK"]"#),
        (3, 8, &["INCRBY n 1"], "[2]"),
        done,
        (10, 11, &["GET n"], r#"["2"]"#),
    ]);
}

#[test]
fn what_is_too_much_to_search_is_undecided() {
    let pushes: Vec<String> = (0..12).map(|n| format!("RPUSH l {n}")).collect();
    let commands: Vec<[&str; 1]> = pushes.iter().map(|push| [push.as_str()]).collect();
    let mut lines: Vec<Line<'_>> = commands.iter().map(|command| (1, 0, &command[..], "[]")).collect();
    lines.push((2, 3, &["LRANGE l 0 -1"], r#"[["11","x"]]"#));
    let few = Options { steps_per_group: 1_000, ..Options::default() };
    let report = checked_with(&lines, &few);
    assert_eq!((report.verdict(), report.undecided.len()), (Verdict::BudgetExceeded, 1));
}

#[test]
fn a_violation_says_what_does_not_fit() {
    let report =
        checked_with(&[(1, 2, &["RPUSH l a"], "[1]"), (3, 4, &["LLEN l"], "[2]")], &Options::default());
    let text = report.to_string();
    for what in ["\"g\": not linearizable", "places 1 of 2", "  > line 2", "LLEN l -> 2", "RPUSH l a -> 1"] {
        assert!(text.contains(what), "no {what:?} in {text}");
    }
}

#[test]
fn lines_that_say_nothing_sensible_are_refused() {
    for (line, what) in [
        (r#""replies":[],"call":2,"ret":3"#, "0 replies to 1 commands"),
        (r#""replies":[1,2],"call":2,"ret":null"#, "2 replies to 1 commands"),
        (r#""replies":[1],"call":2,"ret":1"#, "returned before"),
        (r#""call":2,"ret":3"#, "replies"),
    ] {
        let line = format!(r#"{{"client":1,"group":"g","commands":[["LLEN","l"]],{line}}}"#);
        let error = check_reader(line.as_bytes(), &Options::default()).unwrap_err();
        assert!(error.message.contains("line 1") && error.message.contains(what), "{}", error.message);
    }
}

/// Random histories of a store that does everything right, with clients side by side and lost answers.
#[test]
fn what_a_correct_store_does_is_legal() {
    for seed in 0..60 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut n, mut list) = (0, std::collections::VecDeque::new());
        let mut lines: Vec<(u64, u64, [String; 1], String)> = Vec::new();
        for at in 0..80u64 {
            // What happens at `at * 10` was called up to three operations before, and returns up to three later.
            let (call, ret) = (at * 10 + 30 - rng.u64(0..30), at * 10 + 30 + rng.u64(0..30));
            let (command, reply) = match rng.u64(0..5) {
                0 => {
                    n += 2;
                    ("INCRBY n 2".to_owned(), n.to_string())
                }
                1 => {
                    list.push_back(at);
                    (format!("RPUSH l {at}"), list.len().to_string())
                }
                2 => {
                    let first = list.pop_front().map(|at| format!("\"{at}\""));
                    ("LPOP l".to_owned(), first.unwrap_or("null".to_owned()))
                }
                3 => ("LLEN l".to_owned(), list.len().to_string()),
                _ => ("GET n".to_owned(), if n == 0 { "null".to_owned() } else { format!("\"{n}\"") }),
            };
            match rng.u64(0..12) {
                0 => lines.push((call, 0, [command], "[]".to_owned())),
                _ => lines.push((call, ret, [command], format!("[{reply}]"))),
            }
        }
        let commands: Vec<[&str; 1]> = lines.iter().map(|(_, _, command, _)| [command[0].as_str()]).collect();
        let lines = lines.iter().zip(&commands);
        let lines: Vec<Line<'_>> = lines
            .map(|((call, ret, _, reply), command)| (*call, *ret, &command[..], reply.as_str()))
            .collect();
        let report = checked_with(&lines, &Options::default());
        assert!(report.passed(), "seed {seed}: {report}");
    }
}
