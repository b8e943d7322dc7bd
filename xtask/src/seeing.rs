//! `cargo xtask seeing`: what is there to see a cluster with: alerts and dashboards name metrics and labels that exist, and
//! sections of documents that exist. The same are tests of this crate.
//!
//! Expressions are not parsed: names are found by how they begin, labels by the braces behind a name and by `by (..)`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::metrics::documented;
use crate::metrics::families::{Families, PAGE};
use crate::root;

const RULES: &str = "deploy/alerts/sextant.rules.yaml";
const RULES_TEST: &str = "deploy/alerts/sextant.test.yaml";
const SCRAPES: [&str; 2] = ["deploy/prometheus/prometheus.yaml", "deploy/prometheus/prometheus.tls.yaml"];
const DASHBOARDS: &str = "deploy/grafana/dashboards";
const RESULTS: &str = "deploy/grafana/results";
/// Documents speak of metrics in passing: a histogram without its suffix, for example.
const DOCUMENTS: [&str; 3] = ["docs/operations.md", "docs/security.md", "docs/deployment.md"];
/// How our metrics begin. (`sextant_` alone is the beginning of crates, too.)
const PREFIXES: [&str; 7] = [
    "sextant_pnode_",
    "sextant_resp_",
    "sextant_memtable_",
    "sextant_raft_log_",
    "sextant_sst_",
    "sextant_tls_",
    "process_",
];
/// Labels that Prometheus gives, or that a histogram and an alert have of themselves.
const GIVEN_LABELS: [&str; 5] = ["job", "instance", "le", "severity", "alertname"];

pub fn check() -> Result<(), String> {
    let wrong = wrong()?;
    if !wrong.is_empty() {
        return Err(format!("{}\n(metrics: {PAGE}, written by `cargo xtask metrics`)", wrong.join("\n")));
    }
    println!("alerts and dashboards: all metrics, labels and sections are there");
    let promtool = |args: &[&str]| Command::new("promtool").args(args).current_dir(root()).status();
    if Command::new("promtool").arg("--version").output().is_err() {
        println!("SKIP(promtool): rules, their tests, the configuration of Prometheus");
        return Ok(());
    }
    let checks: [&[&str]; 4] = [
        &["check", "rules", RULES],
        &["test", "rules", RULES_TEST],
        // Their paths are those in the container.
        &["check", "config", "--syntax-only", SCRAPES[0]],
        &["check", "config", "--syntax-only", SCRAPES[1]],
    ];
    for args in checks {
        match promtool(args) {
            Ok(status) if status.success() => {}
            other => return Err(format!("xtask: seeing: promtool {}: {other:?}", args.join(" "))),
        }
    }
    Ok(())
}

/// What a Prometheus says of a cluster that runs.
pub fn live(options: &[&str]) -> Result<(), String> {
    let status = Command::new(Path::new(root()).join(RESULTS)).args(options).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("xtask: {RESULTS} failed ({status})")),
        Err(e) => Err(format!("xtask: cannot start {RESULTS}: {e}")),
    }
}

/// One line for each name that nobody has.
fn wrong() -> Result<Vec<String>, String> {
    let known = documented()?;
    let mut wrong = Vec::new();
    for path in [PathBuf::from(RULES), PathBuf::from(RULES_TEST)].into_iter().chain(dashboards()?) {
        let shown = path.display().to_string();
        let text = read(&shown)?;
        wrong.extend(strange(&text, &known).into_iter().map(|what| format!("{shown}: {what}")));
        wrong.extend(lost(&text)?.into_iter().map(|what| format!("{shown}: {what}")));
    }
    for document in DOCUMENTS {
        let text = read(document)?;
        for (at, name) in names(&text) {
            let is_family = known.contains_key(name) || known.contains_key(name.trim_end_matches("_total"));
            if !is_family && !is_sample(name, &known) && !text[at + name.len()..].starts_with('*') {
                wrong.push(format!("{document}: no metric is called {name}"));
            }
        }
    }
    Ok(wrong)
}

fn read(path: &str) -> Result<String, String> {
    std::fs::read_to_string(Path::new(root()).join(path)).map_err(|e| format!("{path}: {e}"))
}

/// Paths from the root.
fn dashboards() -> Result<Vec<PathBuf>, String> {
    let cannot = |e| format!("{DASHBOARDS}: {e}");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(Path::new(root()).join(DASHBOARDS)).map_err(cannot)? {
        let name = entry.map_err(cannot)?.file_name();
        if Path::new(&name).extension().is_some_and(|extension| extension == "json") {
            found.push(Path::new(DASHBOARDS).join(name));
        }
    }
    found.sort();
    Ok(found)
}

fn is_sample(name: &str, known: &Families) -> bool {
    known
        .iter()
        .any(|(family, what)| name.starts_with(&**family) && what.samples(family).iter().any(|s| s == name))
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Words that begin as our metrics do, and where.
fn names(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for prefix in PREFIXES {
        for (at, _) in text.match_indices(prefix) {
            let is_inside = text[..at].chars().next_back().is_some_and(|c| is_word(c) || c == '/');
            let end = text[at..].find(|c| !is_word(c)).map_or(text.len(), |length| at + length);
            if !is_inside {
                found.push((at, &text[at..end]));
            }
        }
    }
    found.sort_unstable();
    found
}

/// Metrics that do not exist, and labels that the metric does not have.
fn strange(text: &str, known: &Families) -> Vec<String> {
    // As it is within a string of JSON.
    let text = text.replace("\\\"", "\"");
    let mut strange = Vec::new();
    for (at, name) in names(&text) {
        let family = known.iter().find(|(family, what)| what.samples(family).iter().any(|s| s == name));
        let Some((_, family)) = family else {
            strange.push(format!("no metric has samples {name}"));
            continue;
        };
        let Some(selector) = text[at + name.len()..].strip_prefix('{') else { continue };
        let selector = selector.split('}').next().unwrap_or_default();
        for label in selector.split(',').filter_map(|matcher| matcher.split(['=', '!', '~']).next()) {
            let label = label.trim();
            if !label.is_empty() && !GIVEN_LABELS.contains(&label) && !family.labels.contains_key(label) {
                strange.push(format!("{name} has no label {label}"));
            }
        }
    }
    let all: BTreeSet<&str> =
        known.values().flat_map(|family| family.labels.keys()).map(String::as_str).collect();
    for label in grouped(&text).into_iter().chain(templated(&text)) {
        if !GIVEN_LABELS.contains(&label) && !all.contains(label) {
            strange.push(format!("no metric has a label {label}"));
        }
    }
    strange
}

/// Labels of `by (a, b)` and the like.
fn grouped(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for word in ["by", "without", "on", "ignoring", "group_left", "group_right"] {
        for (at, _) in text.match_indices(word) {
            let is_inside = text[..at].chars().next_back().is_some_and(is_word);
            let Some(labels) = text[at + word.len()..].trim_start_matches(' ').strip_prefix('(') else {
                continue;
            };
            let labels = labels.split(')').next().unwrap_or_default();
            let looks_so = labels.chars().all(|c| is_word(c) || c == ',' || c == ' ');
            if !is_inside && looks_so {
                found.extend(labels.split(',').map(str::trim).filter(|label| !label.is_empty()));
            }
        }
    }
    found
}

/// Labels of `{{ $labels.a }}` and `{{a}}`.
fn templated(text: &str) -> Vec<&str> {
    let inside = text.split("{{").skip(1).filter_map(|rest| rest.split("}}").next()).map(str::trim);
    let label = |inside: &'_ str| {
        let from = inside.find("$labels.").map_or(0, |at| at + "$labels.".len());
        let length = inside[from..].find(|c| !is_word(c)).unwrap_or(inside.len() - from);
        from..from + length
    };
    // Others begin with `$`: nothing is left of them.
    inside.map(|inside| &inside[label(inside)]).filter(|label| !label.is_empty()).collect()
}

/// Links `docs/NAME.md#section` that lead nowhere.
fn lost(text: &str) -> Result<Vec<String>, String> {
    let mut lost = Vec::new();
    for link in text.split("docs/").skip(1) {
        let link = link.split(|c: char| c.is_whitespace() || "\"',;)".contains(c)).next().unwrap_or_default();
        let Some((name, section)) = link.split_once('#') else { continue };
        let document = read(&format!("docs/{name}"))?;
        let headings = document.lines().filter(|line| line.starts_with('#'));
        if !headings
            .map(|line| anchor(line.trim_start_matches('#').trim()))
            .any(|a| a == section.trim_end_matches('.'))
        {
            lost.push(format!("docs/{name} has no section {section}"));
        }
    }
    Ok(lost)
}

/// As forges make them of headings.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || *c == ' ' || *c == '-' || *c == '_');
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::families;

    #[test]
    fn alerts_and_dashboards_use_what_there_is() {
        let wrong = wrong().unwrap();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn everything_is_looked_at() {
        assert!(dashboards().unwrap().len() >= 5);
        let known = documented().unwrap();
        let used: Vec<_> = names(&read(RULES).unwrap()).iter().map(|(_, name)| name.to_string()).collect();
        assert!(used.len() > 20 && used.iter().all(|name| is_sample(name, &known)), "{used:?}");
    }

    #[test]
    fn what_there_is_not_is_named() {
        let known = families::exposed(
            "# HELP sextant_pnode_reads R.\n# TYPE sextant_pnode_reads counter\n\
             sextant_pnode_reads_total{mode=\"pda\",path=\"kept\"} 1\n\
             # HELP process_open_fds F.\n# TYPE process_open_fds gauge\nprocess_open_fds 1\n",
        )
        .unwrap();
        for (text, expected) in [
            (r#""expr": "sum by (mode) (rate(sextant_pnode_reads_total{path=~\"a|b\"}[1m]))""#, ""),
            ("process_open_fds{job='pnode'} > 1 # {{ $labels.instance }}", ""),
            ("sextant_pnode_reads", "no metric has samples sextant_pnode_reads"),
            ("rate(sextant_pnode_writes_total[1m])", "no metric has samples sextant_pnode_writes_total"),
            ("process_open_fds{path=\"a\"}", "process_open_fds has no label path"),
            (
                "sextant_pnode_reads_total{mode=\"a\", way=\"b\"}",
                "sextant_pnode_reads_total has no label way",
            ),
            ("sum by (way) (up)", "no metric has a label way"),
            ("{{way}} {{mode}} {{ $value }}", "no metric has a label way"),
            ("of {{ $labels.way | humanize }}", "no metric has a label way"),
        ] {
            assert_eq!(strange(text, &known).join(";"), expected, "{text}");
        }
    }

    #[test]
    fn sections_are_found_as_links_name_them() {
        assert_eq!(
            anchor("A memtable server that lost its memory"),
            "a-memtable-server-that-lost-its-memory"
        );
        assert_eq!(lost("see docs/operations.md#when-something-fails, or").unwrap(), [""; 0]);
        assert_eq!(lost("docs/operations.md#no-such").unwrap().len(), 1);
    }
}
