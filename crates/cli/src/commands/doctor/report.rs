//! What was found, and how it is shown.

use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value, json};

/// In the order of their weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Ok,
    /// It works, and somebody should know.
    Warning,
    /// A server would not start, not be reached, or not keep what it promises.
    Bad,
}

/// As wide as the widest of them.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Ok => "ok",
            Verdict::Warning => "warning",
            Verdict::Bad => "bad",
        })
    }
}

/// What pure code makes of what was measured: the verdict, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub verdict: Verdict,
    pub why: String,
}

impl Finding {
    pub fn ok(why: impl Into<String>) -> Self {
        Self { verdict: Verdict::Ok, why: why.into() }
    }

    pub fn warning(why: impl Into<String>) -> Self {
        Self { verdict: Verdict::Warning, why: why.into() }
    }

    pub fn bad(why: impl Into<String>) -> Self {
        Self { verdict: Verdict::Bad, why: why.into() }
    }

    /// Of something.
    pub fn about(self, subject: impl Into<String>) -> Check {
        let reason = one_line(&self.why);
        Check { verdict: self.verdict, subject: subject.into(), reason, measured: Map::new() }
    }
}

/// Others' words may have line breaks, and what a terminal obeys.
fn one_line(text: &str) -> String {
    text.split(char::is_control).filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

/// A line of the report.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    pub verdict: Verdict,
    pub subject: String,
    pub reason: String,
    /// Figures for scripts; names say the unit.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub measured: Map<String, Value>,
}

impl Check {
    /// The same, with a figure.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.measured.insert(name.to_owned(), value.into());
        self
    }
}

pub struct Report {
    checks: Vec<Check>,
    /// Of the worst of them.
    pub verdict: Verdict,
}

impl Report {
    pub fn new(checks: Vec<Check>) -> Self {
        let verdict = checks.iter().map(|check| check.verdict).max().unwrap_or(Verdict::Ok);
        Self { checks, verdict }
    }

    fn count(&self, verdict: Verdict) -> usize {
        self.checks.iter().filter(|check| check.verdict == verdict).count()
    }

    pub fn json(&self) -> String {
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "verdict": self.verdict,
            "ok": self.count(Verdict::Ok),
            "warnings": self.count(Verdict::Warning),
            "bad": self.count(Verdict::Bad),
            "checks": self.checks,
        })
        .to_string()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Check { verdict, subject, reason, .. } in &self.checks {
            writeln!(f, "{verdict:<7}  {subject}: {reason}")?;
        }
        let [ok, warnings, bad] = [Verdict::Ok, Verdict::Warning, Verdict::Bad].map(|v| self.count(v));
        writeln!(f, "verdict: {}; {ok} ok, {warnings} warnings, {bad} bad", self.verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_finding_is_the_verdict_and_comes_last() {
        let checks = vec![
            Finding::ok("tsc").about("clock").with("ppm", 5),
            Finding::bad("in use\nby \u{1b}[31mnobody").about("port"),
            Finding::warning("tmpfs").about("disk"),
        ];
        let report = Report::new(checks);
        assert_eq!(
            report.to_string(),
            "ok       clock: tsc\nbad      port: in use by  [31mnobody\nwarning  disk: tmpfs\n\
             verdict: bad; 1 ok, 1 warnings, 1 bad\n"
        );
        let document: Value = serde_json::from_str(&report.json()).unwrap();
        assert_eq!((&document["verdict"], &document["warnings"]), (&json!("bad"), &json!(1)));
        assert_eq!(document["checks"][0]["measured"]["ppm"], 5);
        assert_eq!(Report::new(Vec::new()).verdict, Verdict::Ok);
    }
}
