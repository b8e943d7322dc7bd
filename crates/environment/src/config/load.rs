//! Reading a configuration: a TOML file, then the environment over it.
//!
//! A variable `SEXTANT_<SECTION>__<FIELD>=value` sets the field `section.field`; further double underscores go deeper, a
//! number picks an element of an array that the file has (`SEXTANT_CLUSTER__MEMTABLE__0__ADDR`), and `SEXTANT__<FIELD>` sets
//! a field outside of any section. Names are written in capitals. A value that is one TOML literal (`5`, `true`, `"text"`,
//! `[1, 2]`, `{ id = 1 }`) is taken as that, anything else as a string. Variables without a double underscore are not
//! configuration: other parts of the program and of the platform use them.
//!
//! What all servers of a cluster share may stand in a file of its own: `cluster = "cluster.toml"` (a path from where the naming file is)
//! takes that file's contents as the section `[cluster]`. A field `role` says whose configuration it is ([`load_role`]).
//!
//! An error is one line that says where (file and line, or the variable), which field, and what is allowed.
//!
//! Invariant: every value keeps a span into one virtual text: the file, the file that it names, then the values of the variables. That
//! is how an error found after the merge still knows its origin.

use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

const PREFIX: &str = "SEXTANT_";
const NESTING: &str = "__";
/// The section that may stand in a file of its own.
const SHARED: &str = "cluster";
const ROLE: &str = "role";
const ROLES: [&str; 3] = ["memtable", "sstable", "pnode"];

/// One clear line for people.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);

/// Reads `path`, applies `SEXTANT_*` environment variables, and reports unknown fields (of types that deny them). What the
/// values mean together is for the type's own `validate()`.
pub fn load<T: DeserializeOwned>(path: &Path) -> Result<T, ConfigError> {
    read(path, None, environment())
}

/// As [`load`]; a file that says that it is another role's is refused.
pub fn load_role<T: DeserializeOwned>(path: &Path, role: &str) -> Result<T, ConfigError> {
    read(path, Some(role), environment())
}

/// As [`load_role`], whatever the environment says.
pub fn load_file<T: DeserializeOwned>(path: &Path, role: &str) -> Result<T, ConfigError> {
    read(path, Some(role), Vec::new())
}

/// What the file says of its role.
pub fn role_of(path: &Path) -> Result<Option<String>, ConfigError> {
    let file = Text::read(path)?;
    let origins = Origins::new(&file, None, Vec::new());
    let mut root = DeTable::parse(&file.text).map_err(|e| origins.error(&e))?;
    take_role(root.get_mut(), &origins).map(|role| role.map(|(role, _)| role))
}

fn environment() -> Vec<(String, String)> {
    let variables = std::env::vars_os();
    variables.filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?))).collect()
}

fn read<T: DeserializeOwned>(
    path: &Path,
    role: Option<&str>,
    variables: Vec<(String, String)>,
) -> Result<T, ConfigError> {
    let named = |shared: &str| {
        let beside = path.parent().unwrap_or(Path::new("")).join(shared);
        Text::read(&beside)
    };
    parse_text(&Text::read(path)?, role, variables, named)
}

/// As [`load`], from a text that errors call `name`, and from given variables. No other file is read.
pub fn parse<T: DeserializeOwned>(
    text: &str,
    name: &str,
    variables: impl IntoIterator<Item = (String, String)>,
) -> Result<T, ConfigError> {
    let text = Text { name: name.to_owned(), text: text.to_owned() };
    let named = |shared: &str| Err(ConfigError(format!("{name}: cluster: {shared:?} is not read here")));
    parse_text(&text, None, variables.into_iter().collect(), named)
}

fn parse_text<T: DeserializeOwned>(
    file: &Text,
    role: Option<&str>,
    variables: Vec<(String, String)>,
    named: impl Fn(&str) -> Result<Text, ConfigError>,
) -> Result<T, ConfigError> {
    let shared = match shared_file(&file.text) {
        Some(shared) => Some(named(&shared)?),
        None => None,
    };
    let origins = Origins::new(file, shared, variables);
    let mut root = DeTable::parse(&file.text).map_err(|e| origins.error(&e))?;
    if let Some((said, span)) = take_role(root.get_mut(), &origins)?
        && role.is_some_and(|role| role != said)
    {
        let (origin, role) = (origins.origin(Some(span)), role.unwrap_or_default());
        return Err(ConfigError(format!(
            "{origin}: role: this configures a {said} server, not a {role} server"
        )));
    }
    if let Some(shared) = &origins.shared {
        let section = DeTable::parse(&shared.document).map_err(|e| origins.error(&e))?;
        let span = shared.start..shared.document.len();
        let value = Spanned::new(span, DeValue::Table(section.into_inner()));
        root.get_mut().insert(Spanned::new(0..0, Cow::Borrowed(SHARED)), value);
    }
    for variable in &origins.variables {
        set(root.get_mut(), variable)?;
    }
    T::deserialize(toml::de::Deserializer::from(root)).map_err(|e| origins.error(&e))
}

/// The file that the section `cluster` is to come from.
fn shared_file(text: &str) -> Option<String> {
    let root = DeTable::parse(text).ok()?;
    match root.get_ref().get(SHARED)?.get_ref() {
        DeValue::String(file) => Some(file.to_string()),
        _ => None,
    }
}

/// It is no field of any configuration.
fn take_role(
    root: &mut DeTable<'_>,
    origins: &Origins<'_>,
) -> Result<Option<(String, Range<usize>)>, ConfigError> {
    let Some(role) = root.remove(ROLE) else { return Ok(None) };
    let span = role.span();
    match role.into_inner() {
        DeValue::String(role) if ROLES.contains(&&*role) => Ok(Some((role.into_owned(), span))),
        _ => {
            let origin = origins.origin(Some(span));
            Err(ConfigError(format!(
                "{origin}: role: one of {}",
                ROLES.map(|role| format!("{role:?}")).join(", ")
            )))
        }
    }
}

/// A file, and what errors call it.
struct Text {
    name: String,
    text: String,
}

impl Text {
    fn read(path: &Path) -> Result<Self, ConfigError> {
        let name = path.display().to_string();
        match std::fs::read_to_string(path) {
            Ok(text) => Ok(Self { name, text }),
            Err(e) => Err(ConfigError(format!("{name}: {e}"))),
        }
    }
}

/// One environment variable that sets a field.
struct Variable {
    name: String,
    /// From the outermost section to the field.
    path: Vec<String>,
    /// `value = <literal>`, after as much white space as puts the spans of the parsed literal at `span`.
    document: String,
    /// The value as it was given.
    raw: String,
    span: Range<usize>,
}

/// The file that holds the section `cluster`.
struct Shared {
    name: String,
    /// Its text, after as many line feeds as put its spans at `start`.
    document: String,
    start: usize,
}

/// Which part of the virtual text came from where.
struct Origins<'a> {
    file: &'a Text,
    shared: Option<Shared>,
    variables: Vec<Variable>,
}

impl<'a> Origins<'a> {
    fn new(file: &'a Text, shared: Option<Text>, variables: Vec<(String, String)>) -> Self {
        let mut named: Vec<_> = variables.into_iter().filter(|(name, _)| is_configuration(name)).collect();
        // A section comes before its fields, and the outcome does not depend on the order of the environment.
        named.sort();
        let mut variables = Vec::new();
        let mut start = file.text.len() + 1;
        let shared = shared.map(|Text { name, text }| {
            let document = format!("{}{text}", "\n".repeat(start));
            let shared = Shared { name, start, document };
            start = shared.document.len() + 1;
            shared
        });
        for (name, raw) in named {
            let path =
                name[PREFIX.len()..].split(NESTING).map(str::to_lowercase).filter(|part| !part.is_empty());
            let path: Vec<String> = path.map(|part| part.trim_start_matches('_').to_owned()).collect();
            let document = format!("{}value = {raw}", "\n".repeat(start));
            let end = document.len() + 1;
            variables.push(Variable { name, path, document, raw, span: start..end });
            start = end;
        }
        Self { file, shared, variables }
    }

    /// `<origin>: <field>: <what is wrong>`
    fn error(&self, e: &toml::de::Error) -> ConfigError {
        let field = field_of(e);
        // What is missing at the top level is missing on no line.
        let nowhere = field.is_none() && e.message().starts_with("missing field");
        let mut parts = vec![if nowhere { self.file.name.clone() } else { self.origin(e.span()) }];
        parts.extend(field);
        parts.push(one_line(e.message()));
        if self.variable(e.span()).is_some() && e.message().contains("expected a string") {
            parts.push("a number or a word like `true` is text only in quotes, as in '\"5\"'".into());
        }
        ConfigError(parts.join(": "))
    }

    fn variable(&self, span: Option<Range<usize>>) -> Option<&Variable> {
        let start = span?.start;
        self.variables.iter().find(|v| v.span.contains(&start))
    }

    fn origin(&self, span: Option<Range<usize>>) -> String {
        if let Some(variable) = self.variable(span.clone()) {
            return format!("environment variable {}", variable.name);
        }
        let Some(start) = span.map(|span| span.start) else { return self.file.name.clone() };
        let (name, before) = match &self.shared {
            Some(shared) if start >= shared.start => {
                (&shared.name, shared.document.as_bytes().get(shared.start..start))
            }
            _ => (&self.file.name, self.file.text.as_bytes().get(..start)),
        };
        let Some(before) = before else { return name.clone() };
        let line = 1 + before.iter().filter(|b| **b == b'\n').count();
        format!("{name}:{line}")
    }
}

fn is_configuration(name: &str) -> bool {
    name.strip_prefix(PREFIX).is_some_and(|rest| {
        // `SEXTANT__FIELD`: the prefix took one of the two underscores.
        let rest =
            rest.strip_prefix('_').map_or_else(|| rest.split_once(NESTING).map(|(_, field)| field), Some);
        rest.is_some_and(|field| !field.is_empty())
    })
}

/// The error's path of keys, which its `Display` shows but no method gives: `message\nin `a.b`\n`.
fn field_of(e: &toml::de::Error) -> Option<String> {
    let mut shown = e.clone();
    shown.set_input(None);
    let shown = shown.to_string();
    let path = shown.trim_end().strip_prefix(e.message())?.trim().strip_prefix("in `")?.strip_suffix('`')?;
    Some(path.to_owned())
}

fn one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Sets the field that `variable` names, making the sections that are missing.
fn set<'v>(root: &mut DeTable<'v>, variable: &'v Variable) -> Result<(), ConfigError> {
    let wrong = |what: String| ConfigError(format!("environment variable {}: {what}", variable.name));
    let Some((field, sections)) = variable.path.split_last() else {
        return Err(wrong("names no field".into()));
    };
    let span = variable.span.clone();
    let mut table = root;
    let mut parts = sections.iter().peekable();
    while let Some(part) = parts.next() {
        if !table.contains_key(part.as_str()) {
            let empty = Spanned::new(span.clone(), DeValue::Table(DeTable::new()));
            table.insert(Spanned::new(span.clone(), Cow::Borrowed(part.as_str())), empty);
        }
        let mut value = table.get_mut(part.as_str()).map(Spanned::get_mut);
        if let Some(DeValue::Array(array)) = value {
            let len = array.len();
            let index = parts.next().and_then(|index| index.parse::<usize>().ok());
            let element = index.and_then(|index| array.get_mut(index));
            value = element.map(Spanned::get_mut);
            if value.is_none() {
                return Err(wrong(format!(
                    "`{part}` is a list of {len}: set it as a whole, or a field of one element by its number from 0"
                )));
            }
        }
        table = match value {
            Some(DeValue::Table(inner)) => inner,
            _ => return Err(wrong(format!("`{part}` is not a section"))),
        };
    }
    let value = literal(variable)
        .unwrap_or_else(|| Spanned::new(span.clone(), DeValue::String(Cow::Borrowed(variable.raw.as_str()))));
    table.insert(Spanned::new(span, Cow::Borrowed(field.as_str())), value);
    Ok(())
}

/// The value as a TOML literal, if it is exactly one.
fn literal(variable: &Variable) -> Option<Spanned<DeValue<'_>>> {
    let mut parsed = DeTable::parse(&variable.document).ok()?.into_inner();
    let value = parsed.remove("value")?;
    parsed.is_empty().then_some(value)
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::config::ClusterConfig;
    use sextant_common::ids::NodeId;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Config {
        listen: String,
        #[serde(default)]
        cache_bytes: u64,
        http: Option<String>,
        cluster: ClusterConfig,
    }

    const TEXT: &str = r#"
listen = "127.0.0.1:1"

[cluster]
id = "c"
partitions = 4
memtable = [{ id = 1, addr = "m:1" }, { id = 2, addr = "m:2" }]
sstable = [{ id = 1, addr = "s:1" }]

[cluster.lease]
lease_ms = 100
"#;

    fn read(text: &str, variables: &[(&str, &str)]) -> Result<Config, String> {
        let variables = variables.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        parse(text, "s.toml", variables).map_err(|e| e.to_string())
    }

    fn beside(text: &str, shared: &str, variables: &[(&str, &str)]) -> Result<Config, String> {
        let variables = variables.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let file = Text { name: "s.toml".into(), text: text.into() };
        let named = |name: &str| Ok(Text { name: format!("/etc/{name}"), text: shared.to_owned() });
        parse_text(&file, Some("memtable"), variables, named).map_err(|e| e.to_string())
    }

    #[test]
    fn what_is_shared_may_stand_in_a_file_of_its_own() {
        let (own, shared) = TEXT.split_once("[cluster]\n").unwrap();
        let shared = &shared.replace("[cluster.lease]", "[lease]");
        let naming = format!("role = \"memtable\"\ncluster = \"all.toml\"{own}");
        assert_eq!(beside(&naming, shared, &[]).unwrap(), read(TEXT, &[]).unwrap());
        let variables = [("SEXTANT_CLUSTER__LEASE__LEASE_MS", "250")];
        assert_eq!(beside(&naming, shared, &variables).unwrap(), read(TEXT, &variables).unwrap());
        // Errors name the file that they are in.
        for (from, to, expected) in [
            ("lease_ms = 100", "lease_ms = \"x\"", "/etc/all.toml:7: cluster.lease.lease_ms: invalid type"),
            (
                "partitions = 4",
                "partitions = 4\nnonsense = 1",
                "/etc/all.toml:3: cluster: unknown field `nonsense`",
            ),
            ("partitions = 4", "partitions =", "/etc/all.toml:2: "),
            ("partitions = 4", "", "/etc/all.toml:1: cluster: missing field `partitions`"),
        ] {
            let error = beside(&naming, &shared.replace(from, to), &[]).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
        let error = beside(&naming.replace("listen =", "liste ="), shared, &[]).unwrap_err();
        assert!(error.starts_with("s.toml:3: unknown field `liste`"), "{error}");
        let error = beside(&naming, shared, &[("SEXTANT__CACHE_BYTES", "x")]).unwrap_err();
        assert!(error.starts_with("environment variable SEXTANT__CACHE_BYTES: "), "{error}");
    }

    #[test]
    fn the_configuration_of_another_role_is_refused() {
        let error = beside(&format!("role = \"pnode\"\n{TEXT}"), "", &[]).unwrap_err();
        assert_eq!(error, "s.toml:1: role: this configures a pnode server, not a memtable server");
        let error = beside(&format!("role = 5\n{TEXT}"), "", &[]).unwrap_err();
        assert_eq!(error, "s.toml:1: role: one of \"memtable\", \"sstable\", \"pnode\"");
    }

    #[test]
    fn the_environment_goes_over_the_file() {
        let variables = [
            ("SEXTANT__CACHE_BYTES", "0x10"),
            ("SEXTANT__HTTP", "127.0.0.1:80"),
            ("SEXTANT_CLUSTER__ID", "\"7\""),
            ("SEXTANT_CLUSTER__LEASE__LEASE_MS", "250"),
            ("SEXTANT_CLUSTER__LEASE__MODE", "timed"),
            ("SEXTANT_CLUSTER__MEMTABLE__1__ADDR", "other:2"),
            ("SEXTANT_CLUSTER__SSTABLE", "[{ id = 9, addr = \"s:9\" }]"),
        ];
        let config = read(TEXT, &variables).unwrap();
        assert_eq!(config.cache_bytes, 16);
        assert_eq!(config.http.as_deref(), Some("127.0.0.1:80"));
        assert_eq!(config.cluster.id, "7");
        assert_eq!(config.cluster.lease.lease_ms, 250);
        assert_eq!(config.cluster.lease.mode, crate::config::LeaseMode::Timed);
        assert_eq!(config.cluster.memtable[0].addr, "m:1");
        assert_eq!(config.cluster.memtable[1].addr, "other:2");
        assert_eq!(config.cluster.sstable[0].id, NodeId(9));
    }

    #[test]
    fn a_section_may_come_from_the_environment_alone() {
        let text = "listen = \"x:1\"";
        let variables = [
            ("SEXTANT_CLUSTER__PARTITIONS", "2"),
            ("SEXTANT_CLUSTER", "ignored: no field"),
            ("SEXTANT_CLUSTER__ID", "from the environment"),
            ("SEXTANT_CLUSTER__MEMTABLE", "[]"),
            ("SEXTANT_CLUSTER__SSTABLE", "[]"),
        ];
        assert_eq!(read(text, &variables).unwrap().cluster.id, "from the environment");
    }

    #[test]
    fn variables_of_others_are_left_alone() {
        let others = [
            ("SEXTANT_LOG_FORMAT", "json"),
            ("SEXTANT_PORT_7400_TCP", "tcp://10.0.0.1:7400"),
            ("SEXTANT_SERVICE_HOST", "10.0.0.1"),
            ("SEXTANT_", "x"),
            ("SEXTANT__", "x"),
            ("SEXTANT_X__", "x"),
            ("SEXTANTS__LISTEN", "x"),
        ];
        assert_eq!(read(TEXT, &others), read(TEXT, &[]));
    }

    #[test]
    fn an_error_in_the_file_names_line_and_field() {
        let cases = [
            (
                TEXT.replace("lease_ms = 100", "lease_ms = \"x\""),
                "s.toml:11: cluster.lease.lease_ms: invalid type",
            ),
            (
                TEXT.replace("lease_ms = 100", "lease_mss = 1"),
                "s.toml:11: cluster.lease: unknown field `lease_mss`",
            ),
            (
                TEXT.replace("lease_ms = 100", "mode = \"ak\""),
                "s.toml:11: cluster.lease.mode: unknown variant `ak`",
            ),
            (
                TEXT.replace("lease_ms = 100", "lease_ms = -1"),
                "s.toml:11: cluster.lease.lease_ms: invalid value",
            ),
            (TEXT.replace("partitions = 4\n", ""), "s.toml:4: cluster: missing field `partitions`"),
            (TEXT.replace("listen = \"127.0.0.1:1\"\n", ""), "s.toml: missing field `listen`"),
            (
                TEXT.replace("id = 1, addr = \"s:1\"", "id = 1"),
                "s.toml:8: cluster.sstable: missing field `addr`",
            ),
            (TEXT.replace("partitions = 4", "partitions 4"), "s.toml:6: "),
            (TEXT.replace("partitions = 4", "id = \"d\""), "s.toml:6: duplicate key"),
            (String::new(), "s.toml: missing field `listen`"),
        ];
        for (text, expected) in cases {
            let error = read(&text, &[]).unwrap_err();
            assert!(error.starts_with(expected) && !error.contains('\n'), "{error:?} is not {expected:?}");
        }
        let error = read(&TEXT.replace("lease_ms = 100", "lease_mss = 1"), &[]).unwrap_err();
        assert!(error.contains("expected one of `mode`, `lease_ms`"), "what is allowed: {error}");
    }

    #[test]
    fn an_error_in_the_environment_names_the_variable() {
        let cases = [
            (
                ("SEXTANT_CLUSTER__LEASE__LEASE_MS", "soon"),
                "cluster.lease.lease_ms: invalid type: string \"soon\"",
            ),
            (("SEXTANT_CLUSTER__LEASE__LEASE", "5"), "cluster.lease: unknown field `lease`"),
            (
                ("SEXTANT_CLUSTER__ID", "5"),
                "cluster.id: invalid type: integer `5`, expected a string: a number",
            ),
            (("SEXTANT__LISTEM", "x:1"), "unknown field `listem`"),
            (("SEXTANT_LISTEN__X", "x:1"), "`listen` is not a section"),
            (("SEXTANT_CLUSTER__MEMTABLE__2__ADDR", "x:1"), "`memtable` is a list of 2"),
            (("SEXTANT_CLUSTER__MEMTABLE__FIRST__ADDR", "x:1"), "`memtable` is a list of 2"),
            (("SEXTANT_CLUSTER__MEMTABLE", "[{ id = 1 }]"), "cluster.memtable: missing field `addr`"),
        ];
        for (variable, expected) in cases {
            let error = read(TEXT, &[("SEXTANT_CLUSTER__PARTITIONS", "8"), variable]).unwrap_err();
            let expected = format!("environment variable {}: {expected}", variable.0);
            assert!(error.starts_with(&expected) && !error.contains('\n'), "{error:?} is not {expected:?}");
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = load::<Config>(Path::new("/nonexistent/s.toml")).unwrap_err().to_string();
        assert!(error.starts_with("/nonexistent/s.toml: No such file"), "{error}");
    }

    proptest::proptest! {
        #[test]
        fn no_input_makes_it_panic(text in "[ -~\n\u{e4}]{0,60}", name in "SEXTANT_[A-Z0-9_]{0,20}", value in "[ -~\n]{0,20}") {
            let _ = read(&text, &[(&name, &value)]);
            let _ = read(TEXT, &[(&name, &value)]);
        }
    }
}
