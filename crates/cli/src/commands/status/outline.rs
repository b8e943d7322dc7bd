//! Any JSON document, readable: nothing is left out.

use std::fmt::Write;

use serde_json::Value;

/// The document as an indented outline: short objects on one line, lists with a dash for each entry.
pub fn outline(document: &Value) -> String {
    let mut out = String::new();
    put(&mut out, document, 0);
    out
}

/// Longest one-line form of an object.
const LINE_CHARS_MAX: usize = 110;

fn put(out: &mut String, value: &Value, depth: usize) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match one_line(field) {
                    Some(line) if line.len() + name.len() + indent.len() <= LINE_CHARS_MAX => {
                        let _ = writeln!(out, "{indent}{name}: {line}");
                    }
                    _ => {
                        let _ = writeln!(out, "{indent}{name}:");
                        put(out, field, depth + 1);
                    }
                }
            }
        }
        Value::Array(entries) => {
            for entry in entries {
                match one_line(entry) {
                    Some(line) if line.len() + indent.len() + 2 <= LINE_CHARS_MAX => {
                        let _ = writeln!(out, "{indent}- {line}");
                    }
                    _ => {
                        let mut nested = String::new();
                        put(&mut nested, entry, depth + 1);
                        // The dash takes the place of the first line's last indentation.
                        nested.replace_range(indent.len()..indent.len() + 2, "- ");
                        out.push_str(&nested);
                    }
                }
            }
        }
        scalar => {
            let _ = writeln!(out, "{indent}{}", plain(scalar));
        }
    }
}

/// `a 1, b 2`, if nothing in it is nested more than that.
fn one_line(value: &Value) -> Option<String> {
    match value {
        Value::Object(fields) if fields.is_empty() => Some("none".into()),
        Value::Object(fields) => {
            let parts: Option<Vec<String>> = fields
                .iter()
                .map(|(name, field)| match field {
                    Value::Object(_) => None,
                    Value::Array(_) => Some(format!("{name} [{}]", one_line(field)?)),
                    scalar => Some(format!("{name} {}", plain(scalar))),
                })
                .collect();
            Some(parts?.join(", "))
        }
        Value::Array(entries) if entries.is_empty() => Some("none".into()),
        Value::Array(entries) => {
            let parts: Option<Vec<String>> =
                entries.iter().map(|e| (!e.is_object() && !e.is_array()).then(|| plain(e))).collect();
            Some(parts?.join(" "))
        }
        scalar => Some(plain(scalar)),
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".into(),
        Value::Bool(true) => "yes".into(),
        Value::Bool(false) => "no".into(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_readable() {
        let document = serde_json::json!({
            "node": 1,
            "partitions": [
                {
                    "partition": 0, "leader": 2, "ready": true,
                    "tables": [{"name": "default", "replicas": [1, 2, 3]}, {"name": "t", "replicas": []}]
                },
                { "partition": 1, "leader": null, "ready": false, "tables": [] }
            ]
        });
        let text = outline(&document);
        assert_eq!(
            text,
            "node: 1\n\
             partitions:\n\
             \x20 - leader: 2\n\
             \x20   partition: 0\n\
             \x20   ready: yes\n\
             \x20   tables:\n\
             \x20     - name default, replicas [1 2 3]\n\
             \x20     - name t, replicas [none]\n\
             \x20 - leader -, partition 1, ready no, tables [none]\n"
        );
    }
}
