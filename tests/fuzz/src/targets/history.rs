use serde_json::{Value, json};
use sextant_checker::{ABSENT, Action, History, Op, Options, check};

/// So many operations of one key may cost a search this many steps; enough to reach every rule, little enough to be quick.
const STEPS_MAX: u64 = 2_000;

fn line(history: &History, key: &str, op: &Op) -> Value {
    let text = |value| history.value(value).map(str::to_owned);
    let done = !op.is_unknown();
    let told = |known: Option<bool>, yes: &str, no: &str| {
        known.map(|applied| if applied { yes.to_owned() } else { no.to_owned() })
    };
    let (name, a, b, out) = match op.action {
        Action::Get { out } => ("get", None, None, text(out)),
        Action::Put { value } => ("put", text(value), None, None),
        Action::Insert { value, applied } => ("insert", text(value), None, told(applied, "ok", "exists")),
        Action::Delete { existed } => ("delete", None, None, told(existed, "existed", "absent")),
        Action::Cas { expected, new, applied } => {
            ("cas", text(expected), text(new), told(applied, "ok", "failed"))
        }
    };
    json!({
        "client": op.client, "key": key, "op": name, "a": a, "b": b, "out": out, "call": op.call,
        "ret": done.then_some(op.ret), "version": op.version,
    })
}

/// Operations by key, without the numbers of their lines.
fn operations(history: &History) -> Vec<(String, Vec<Op>)> {
    let without_line = |ops: &[Op]| ops.iter().map(|op| Op { line: 0, ..*op }).collect();
    history.by_key().map(|(key, ops)| (key.to_owned(), without_line(ops))).collect()
}

/// JSON lines.
pub fn history(data: &[u8]) {
    let history = match History::read(data) {
        Ok(history) => history,
        Err(e) => {
            assert!(e.message.contains("line"), "{e} does not say where");
            return;
        }
    };
    for (_, ops) in history.by_key() {
        for op in ops {
            if let Action::Get { out } = op.action {
                assert_eq!(history.value(out).is_none(), out == ABSENT);
            }
        }
    }
    let mut lines: Vec<(u32, Value)> = history
        .by_key()
        .flat_map(|(key, ops)| ops.iter().map(|op| (op.line, line(&history, key, op))).collect::<Vec<_>>())
        .collect();
    lines.sort_by_key(|(line, _)| *line);
    let text: String = lines.iter().map(|(_, line)| format!("{line}\n")).collect();
    let again = match History::read(text.as_bytes()) {
        Ok(again) => again,
        Err(e) => panic!("its own lines are refused: {e}\n{text}"),
    };
    assert_eq!(operations(&again), operations(&history));
    let options = Options { steps_per_key: STEPS_MAX, steps_per_group: STEPS_MAX, ..Options::default() };
    let report = check(&history, &options);
    if report.groups > 0 {
        // (Commands are not written again here.)
        return;
    }
    let verdict = |report: &sextant_checker::Report| (report.violations, report.certified, report.keys);
    let once_more = check(&again, &options);
    assert_eq!(verdict(&once_more), verdict(&report), "the verdict depends on more than the operations");
}

pub fn seeds() -> Vec<Vec<u8>> {
    let good = concat!(
        r#"{"client":1,"key":"k","op":"put","a":"x","b":null,"out":"ok","call":1,"ret":2,"version":7}"#,
        "\n",
        r#"{"client":2,"key":"k","op":"get","a":null,"b":null,"out":"x","call":3,"ret":4,"version":7}"#,
        "\n",
        r#"{"client":2,"key":"k","op":"cas","a":"x","b":"y","out":"ok","call":5,"ret":8,"version":9}"#,
        "\n",
        r#"{"client":3,"key":"k","op":"cas","a":"x","b":"z","out":"failed","call":6,"ret":9,"version":9}"#,
        "\n",
        r#"{"client":3,"key":"j","op":"insert","a":"w","b":null,"out":"exists","call":10,"ret":12,"version":1}"#,
        "\n",
        r#"{"client":3,"key":"k","op":"delete","a":null,"b":null,"out":"existed","call":12,"ret":20,"version":11}"#,
        "\n",
        r#"{"fault":"kill","at":3}"#,
        "\n",
    );
    let unknown = concat!(
        r#"{"client":1,"key":"k","op":"put","a":"x","call":1,"ret":null}"#,
        "\n\n",
        r#"{"client":2,"key":"k","op":"get","out":null,"call":2,"ret":3}"#,
        "\n",
        r#"{"client":2,"key":"k","op":"get","out":"x","call":4,"ret":5}"#,
        "\n",
        r#"{"client":4,"key":"é\"","op":"delete","call":5,"ret":9,"more":[1]}"#,
        "\n",
    );
    let stale = concat!(
        r#"{"client":1,"key":"k","op":"put","a":"x","out":"ok","call":1,"ret":2,"version":1}"#,
        "\n",
        r#"{"client":1,"key":"k","op":"put","a":"y","out":"ok","call":3,"ret":4,"version":2}"#,
        "\n",
        r#"{"client":2,"key":"k","op":"get","out":"x","call":5,"ret":6,"version":1}"#,
        "\n",
    );
    let objects = concat!(
        r#"{"client":1,"group":"g","commands":[["HSET","h","f","1"],["PEXPIRE","h","5"]],"replies":[1,1],"call":1,"ret":2}"#,
        "\n",
        r#"{"client":2,"group":"g","commands":[["RPUSH","l","a","b"]],"replies":[],"call":1,"ret":null}"#,
        "\n",
        r#"{"client":1,"group":"g","commands":[["COPY","l","k","REPLACE"],["ZADD","h","1","m"]],"replies":[1,{"error":"WRONGTYPE"}],"call":3,"ret":4}"#,
        "\n",
    );
    [good, unknown, stale, objects].iter().map(|text| text.as_bytes().to_vec()).collect()
}
