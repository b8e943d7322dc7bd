//! JSON lines to a history.

use std::borrow::Cow;
use std::io::BufRead;

use serde::Deserialize;
use sextant_common::{Error, Result};

use super::{Action, History, Op, UNKNOWN};
use crate::objects::ObjectLine;

/// A line as it stands in the file. Fields that are not named here are ignored.
#[derive(Deserialize)]
struct Line<'a> {
    client: Option<u64>,
    #[serde(borrow)]
    key: Option<Cow<'a, str>>,
    #[serde(borrow)]
    op: Option<Cow<'a, str>>,
    a: Option<String>,
    b: Option<String>,
    out: Option<String>,
    call: Option<u64>,
    ret: Option<u64>,
    version: Option<u64>,
    fault: Option<serde::de::IgnoredAny>,
    /// Of a line of its own form.
    group: Option<serde::de::IgnoredAny>,
}

impl History {
    /// Reads JSON lines. Empty lines are skipped.
    ///
    /// # Errors
    /// `Invalid`, with the number of the line and what is wrong with it; `Disk` if reading fails.
    pub fn read(mut input: impl BufRead) -> Result<History> {
        let mut history = History::default();
        let mut text = Vec::new();
        let mut number = 0u32;
        loop {
            text.clear();
            if input.read_until(b'\n', &mut text)? == 0 {
                return Ok(history);
            }
            number = number.checked_add(1).ok_or_else(|| Error::invalid("the history has too many lines"))?;
            let wrong = |what: &str| Error::invalid(format!("line {number} of the history: {what}"));
            let text = std::str::from_utf8(&text).map_err(|_| wrong("it is not UTF-8"))?;
            if text.trim().is_empty() {
                continue;
            }
            let line: Line<'_> = serde_json::from_str(text).map_err(|e| wrong(&e.to_string()))?;
            if line.group.is_some() {
                let line: ObjectLine = serde_json::from_str(text).map_err(|e| wrong(&e.to_string()))?;
                history.push_commands(line, number).map_err(|what| wrong(&what))?;
                continue;
            }
            if line.fault.is_some() {
                history.notes += 1;
                continue;
            }
            line.add_to(&mut history, number).map_err(|what| wrong(&what))?;
        }
    }
}

impl Line<'_> {
    fn add_to(self, history: &mut History, line: u32) -> Result<(), String> {
        let key = self.key.as_ref().ok_or("no key")?;
        let call = self.call.ok_or("no call time")?;
        let ret = self.ret.unwrap_or(UNKNOWN);
        if self.ret == Some(UNKNOWN) || ret < call {
            return Err("it returned before it was called".into());
        }
        let action = self.action(history)?;
        let client = self.client.unwrap_or(0);
        let version = self.version.filter(|_| ret != UNKNOWN);
        history.push(key, Op { client, action, call, ret, version, line });
        Ok(())
    }

    fn action(&self, history: &mut History) -> Result<Action, String> {
        let done = self.ret.is_some();
        let op = self.op.as_deref().ok_or("no op")?;
        let out = self.out.as_deref().filter(|_| done);
        let yes_or_no = |yes: &str, no: &str| match out {
            Some(text) if text == yes => Ok(Some(true)),
            Some(text) if text == no => Ok(Some(false)),
            Some(text) => Err(format!("the result of {op} is {text:?}, not {yes:?} or {no:?}")),
            None if done && op != "delete" => Err(format!("{op} returned without a result")),
            None => Ok(None),
        };
        Ok(match op {
            "get" => Action::Get { out: history.intern(out) },
            "put" => {
                let value = self.a.as_deref().ok_or("put without a value")?;
                Action::Put { value: history.intern(Some(value)) }
            }
            "insert" => {
                let value = self.a.as_deref().ok_or("insert without a value")?;
                Action::Insert { applied: yes_or_no("ok", "exists")?, value: history.intern(Some(value)) }
            }
            "delete" => Action::Delete { existed: yes_or_no("existed", "absent")? },
            // A put, and if it tells what it met, one that takes effect only there.
            "swap" => {
                let new = history.intern(Some(self.a.as_deref().ok_or("swap without a value")?));
                match out {
                    Some("met") => {
                        let expected = history.intern(self.b.as_deref());
                        Action::Cas { expected, new, applied: Some(true) }
                    }
                    Some(other) => return Err(format!("the result of swap is {other:?}, not \"met\"")),
                    None => Action::Put { value: new },
                }
            }
            "cas" => Action::Cas {
                applied: yes_or_no("ok", "failed")?,
                expected: history.intern(self.a.as_deref()),
                new: history.intern(self.b.as_deref()),
            },
            other => return Err(format!("unknown op {other:?}")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::ABSENT;
    use super::*;

    fn read(text: &str) -> Result<History> {
        History::read(text.as_bytes())
    }

    #[test]
    fn lines_become_operations() {
        let history = read(concat!(
            r#"{"client":1,"key":"k","op":"put","a":"x","b":null,"out":null,"call":1,"ret":2,"version":7}"#,
            "\n\n",
            r#"{"fault":"kill","node":3,"call":3}"#,
            "\n",
            r#"{"client":2,"key":"k","op":"get","out":"x","call":3,"ret":4,"more":[1]}"#,
            "\n",
            r#"{"client":2,"key":"k","op":"get","call":3,"ret":null}"#,
            "\n",
            r#"{"client":3,"key":"é\"","op":"cas","a":null,"b":"y","call":5,"ret":null,"out":"ignored"}"#,
            "\n",
            r#"{"client":3,"key":"k","op":"delete","out":"existed","call":5,"ret":6}"#,
        ))
        .unwrap();
        assert_eq!((history.operations, history.unknown, history.notes), (5, 2, 1));
        let keys: Vec<_> = history.by_key().collect();
        assert_eq!(keys.iter().map(|(k, ops)| (*k, ops.len())).collect::<Vec<_>>(), [("k", 3), ("é\"", 1)]);
        let put = keys[0].1[0];
        assert_eq!((put.action, put.version, put.line), (Action::Put { value: 1 }, Some(7), 1));
        assert_eq!(keys[0].1[1].action, Action::Get { out: 1 });
        assert_eq!(keys[1].1[0].action, Action::Cas { expected: ABSENT, new: 2, applied: None });
        assert!(keys[1].1[0].is_unknown());
    }

    #[test]
    fn a_swap_is_a_put_that_may_say_what_it_met() {
        let history = read(concat!(
            r#"{"key":"k","op":"swap","a":"x","b":null,"out":"met","call":1,"ret":2,"version":7}"#,
            "\n",
            r#"{"key":"k","op":"swap","a":"y","b":"x","out":"met","call":3,"ret":4,"version":8}"#,
            "\n",
            r#"{"key":"k","op":"swap","a":"z","b":null,"out":null,"call":5,"ret":6,"version":9}"#,
            "\n",
            r#"{"key":"k","op":"swap","a":"u","b":null,"out":null,"call":7,"ret":null}"#,
        ));
        let history = history.unwrap();
        let actions: Vec<_> = history.by_key().flat_map(|(_, ops)| ops.iter().map(|op| op.action)).collect();
        let met = |expected, new| Action::Cas { expected, new, applied: Some(true) };
        let puts = [Action::Put { value: 3 }, Action::Put { value: 4 }];
        assert_eq!(actions, [met(ABSENT, 1), met(1, 2), puts[0], puts[1]]);
        for (line, what) in [
            (r#"{"key":"k","op":"swap","call":1,"ret":2}"#, "swap without a value"),
            (r#"{"key":"k","op":"swap","a":"x","out":"ok","call":1,"ret":2}"#, "not \"met\""),
        ] {
            assert!(read(line).unwrap_err().message.contains(what));
        }
    }

    #[test]
    fn errors_name_the_line_and_the_fault() {
        for (line, what) in [
            ("x", "line 2 of the history: expected value"),
            (
                r#"{"key":"k","op":"get","call":2,"ret":1}"#,
                "line 2 of the history: it returned before it was called",
            ),
            (r#"{"key":"k","op":"get","ret":1}"#, "line 2 of the history: no call time"),
            (r#"{"op":"get","call":1,"ret":1}"#, "line 2 of the history: no key"),
            (r#"{"key":"k","op":"put","call":1,"ret":1}"#, "line 2 of the history: put without a value"),
            (r#"{"key":"k","op":"incr","call":1,"ret":1}"#, "line 2 of the history: unknown op \"incr\""),
            (
                r#"{"key":"k","op":"insert","a":"x","call":1,"ret":1}"#,
                "line 2 of the history: insert returned without a result",
            ),
            (
                r#"{"key":"k","op":"insert","a":"x","out":"no","call":1,"ret":1}"#,
                "line 2 of the history: the result of insert is \"no\", not \"ok\" or \"exists\"",
            ),
        ] {
            let error = read(&format!("\n{line}\n")).unwrap_err();
            assert!(error.message.starts_with(what), "{}", error.message);
        }
    }

    #[test]
    fn a_line_that_is_not_text_is_named() {
        let error = History::read(&b"\n\n{\"key\":\"\xff\"}\n"[..]).unwrap_err();
        assert_eq!(error.kind, sextant_common::ErrorKind::Invalid);
        assert_eq!(error.message, "line 3 of the history: it is not UTF-8");
    }
}
