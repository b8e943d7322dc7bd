//! Metrics as servers show them (OpenMetrics text), and as `docs/metrics.md` has them.
//!
//! Standard library only, and nothing of this crate: `crates/cli/tests/metrics.rs` includes this file, and compares the page
//! with a running cluster.

use std::collections::{BTreeMap, BTreeSet};

/// Where the page is, in the repository.
pub const PAGE: &str = "docs/metrics.md";

/// Titles of the page: what only servers of a role have, and what all have. What follows is not seen in every cluster.
pub const ROLES: [&str; 3] = ["p-node", "Memtable server", "sstable server"];
pub const EVERY: &str = "Every server";

/// Label values that are not listed: there are as many as a cluster has, or they appear with what happened.
const OPEN_LABELS: [&str; 8] =
    ["partition", "device", "directory", "outcome", "service", "method", "code", "version"];

/// Longest line of a document.
const LINE_CHARS_MAX: usize = 120;

/// What a metric is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Family {
    /// `counter`, `gauge` or `histogram`.
    pub kind: String,
    /// One sentence, without its full stop.
    pub help: String,
    /// By label; no values: many, see [`OPEN_LABELS`].
    pub labels: BTreeMap<String, BTreeSet<String>>,
}

/// By name, without the suffixes of samples.
pub type Families = BTreeMap<String, Family>;

impl Family {
    /// How an expression names the metric: a counter by its sample, a histogram without the suffixes of its three.
    fn shown(&self, name: &str) -> String {
        if self.kind == "counter" { format!("{name}_total") } else { name.to_owned() }
    }

    /// The names of its samples.
    pub fn samples(&self, name: &str) -> Vec<String> {
        match &*self.kind {
            "counter" => vec![format!("{name}_total")],
            "histogram" => ["_bucket", "_sum", "_count"].map(|suffix| format!("{name}{suffix}")).into(),
            _ => vec![name.to_owned()],
        }
    }
}

/// What a server's `/metrics` has. `Err`: a line that it cannot have.
pub fn exposed(text: &str) -> Result<Families, String> {
    let mut families = Families::new();
    let mut last = String::new();
    for line in text.lines().filter(|line| !line.is_empty() && *line != "# EOF") {
        let wrong = || format!("no line of OpenMetrics: {line:?}");
        if let Some(comment) = line.strip_prefix("# ") {
            let (what, rest) = comment.split_once(' ').ok_or_else(wrong)?;
            let (name, value) = rest.split_once(' ').ok_or_else(wrong)?;
            let family = families.entry(name.to_owned()).or_default();
            match what {
                "HELP" => family.help = value.trim_end_matches('.').to_owned(),
                "TYPE" => family.kind = value.to_owned(),
                // It ends the name, too.
                "UNIT" => {}
                _ => return Err(wrong()),
            }
            name.clone_into(&mut last);
            continue;
        }
        let end = line.find(['{', ' ']).ok_or_else(wrong)?;
        let family = families.get_mut(&last).filter(|_| line.starts_with(&last)).ok_or_else(wrong)?;
        if line[end..].starts_with('{') {
            let close = line.rfind('}').ok_or_else(wrong)?;
            for (label, value) in labels(&line[end + 1..close]).ok_or_else(wrong)? {
                // A histogram's own.
                if label == "le" {
                    continue;
                }
                let is_open = OPEN_LABELS.contains(&&*label);
                let values = family.labels.entry(label).or_default();
                if !is_open {
                    values.insert(value);
                }
            }
        }
    }
    Ok(families)
}

/// `a="x",b="y"`. No label of ours has a quote or a comma in its values.
fn labels(text: &str) -> Option<Vec<(String, String)>> {
    let pair = |pair: &str| {
        let (label, value) = pair.split_once('=')?;
        Some((label.to_owned(), value.strip_prefix('"')?.strip_suffix('"')?.to_owned()))
    };
    text.split(',').filter(|part| !part.is_empty()).map(pair).collect()
}

/// Adds what another server of the role has, which may have been asked for other things.
pub fn merge(into: &mut Families, from: Families) {
    for (name, family) in from {
        let known = into.entry(name).or_insert_with(|| family.clone());
        for (label, values) in family.labels {
            known.labels.entry(label).or_default().extend(values);
        }
    }
}

/// The page's entries, one below the other. `sections`: title and metrics.
pub fn page(head: &str, sections: &[(String, Families)]) -> String {
    let mut out = head.trim_end().to_owned() + "\n";
    for (title, families) in sections {
        out += &format!("\n## {title}\n\n");
        for (name, family) in families {
            let mut first = format!("`{}`: {}", family.shown(name), family.kind);
            let unit = ["seconds", "bytes"].into_iter().find(|unit| name.ends_with(&format!("_{unit}")));
            if let Some(unit) = unit {
                first += &format!(", {unit}");
            }
            if !family.labels.is_empty() {
                first += "; by ";
                let each = family.labels.iter().map(|(label, values)| {
                    let values: Vec<_> = values.iter().map(|value| format!("`{value}`")).collect();
                    if values.is_empty() {
                        format!("`{label}`")
                    } else {
                        format!("`{label}` ({})", values.join(", "))
                    }
                });
                first += &each.collect::<Vec<_>>().join(" and ");
            }
            out += &wrapped("* ", &(first + "."));
            out += &wrapped("  ", &format!("{}.", family.help));
        }
    }
    out
}

/// In lines of the length allowed. `begin`: two characters; further lines are indented by as many.
fn wrapped(begin: &str, text: &str) -> String {
    let (mut out, mut line) = (String::new(), begin.to_owned());
    for word in text.split(' ') {
        let is_empty = line.len() == begin.len();
        if !is_empty && line.chars().count() + 1 + word.chars().count() > LINE_CHARS_MAX {
            out += &(line + "\n");
            line = format!("  {word}");
        } else {
            line += if is_empty { "" } else { " " };
            line += word;
        }
    }
    out + &line + "\n"
}

/// What [`page`] wrote: by title. `Err`: an entry that it cannot have written.
pub fn read(page: &str) -> Result<Vec<(String, Families)>, String> {
    // Lines that are indented continue an entry: "* `name`: kind .. Meaning."
    let mut sections: Vec<(String, Families)> = Vec::new();
    let mut entry: Option<String> = None;
    for line in page.lines().chain([""]) {
        if line.starts_with("  ")
            && let Some(entry) = &mut entry
        {
            entry.push(' ');
            entry.push_str(line.trim_start());
            continue;
        }
        if let Some(entry) = entry.take() {
            let (_, families) = sections.last_mut().ok_or("an entry above all headings")?;
            let (name, family) = family(&entry).ok_or_else(|| format!("no entry of the page: {entry:?}"))?;
            families.insert(name, family);
        }
        if let Some(title) = line.strip_prefix("## ") {
            sections.push((title.to_owned(), Families::new()));
        } else if line.starts_with("* `") && !sections.is_empty() {
            entry = Some(line.to_owned());
        }
    }
    Ok(sections)
}

fn family(entry: &str) -> Option<(String, Family)> {
    let (shown, rest) = entry.strip_prefix("* `")?.split_once("`: ")?;
    let (described, help) = rest.split_once(". ")?;
    let (kind, by) = described.split_once("; by ").unwrap_or((described, ""));
    let kind = kind.split(", ").next()?.to_owned();
    let name = if kind == "counter" { shown.strip_suffix("_total")? } else { shown }.to_owned();
    let mut labels = BTreeMap::new();
    for label in by.split(" and ").filter(|label| !label.is_empty()) {
        let mut quoted = label.split('`').skip(1).step_by(2).map(str::to_owned);
        labels.insert(quoted.next()?, quoted.collect());
    }
    Some((name, Family { kind, help: help.strip_suffix('.')?.to_owned(), labels }))
}
