//! `cargo xtask licenses`: the licences and sources of everything in `Cargo.lock` that is built here, by the lists of `deny.toml`.
//!
//! What `cargo deny check licenses sources` says too, without a tool that takes minutes to build; advisories and bans are for
//! that tool (`cargo xtask nightly`). Reads as much of TOML as these two files use.

use std::collections::BTreeSet;
use std::process::Command;

use crate::root;

pub fn check() -> Result<(), String> {
    let read = |name: &str| {
        std::fs::read_to_string(format!("{}/{name}", root())).map_err(|e| format!("{name}: {e}"))
    };
    let (deny, lock) = (read("deny.toml")?, read("Cargo.lock")?);
    let allowed = list(&deny, "licenses", "allow").ok_or("deny.toml: [licenses] has no list `allow`")?;
    let registries =
        list(&deny, "sources", "allow-registry").ok_or("deny.toml: [sources] has no `allow-registry`")?;
    let mut wrong = foreign_sources(&lock, &registries);
    let packages = packages()?;
    for (package, license) in &packages {
        if !allows(license, &allowed).map_err(|e| format!("{package}: licence {license:?}: {e}"))? {
            wrong.push(format!("{package}: its licence {license:?} is not allowed"));
        }
    }
    if wrong.is_empty() {
        println!("{} packages: licences and sources are as deny.toml allows", packages.len());
        Ok(())
    } else {
        Err(format!("xtask: by deny.toml:\n  {}", wrong.join("\n  ")))
    }
}

/// Packages with their licences, those of tests and build scripts included.
fn packages() -> Result<BTreeSet<(String, String)>, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["tree", "--locked", "--workspace", "--all-features", "--edges", "normal,build,dev"])
        .args(["--prefix", "none", "--no-dedupe", "--format", "{p}|{l}"])
        .current_dir(root())
        .output()
        .map_err(|e| format!("cargo tree: {e}"))?;
    if !output.status.success() {
        return Err(format!("cargo tree: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text
        .lines()
        .filter_map(|line| line.split_once('|'))
        .map(|(package, license)| (package.to_owned(), license.to_owned()))
        .collect())
}

/// Packages of a lock file that come from elsewhere than the registries allowed. Ours have no source.
fn foreign_sources(lock: &str, registries: &[String]) -> Vec<String> {
    let mut name = "";
    let mut foreign = Vec::new();
    for line in lock.lines() {
        if let Some(value) = line.strip_prefix("name = ") {
            name = value;
        }
        let Some(source) = line.strip_prefix("source = ") else { continue };
        let source = source.trim_matches('"');
        if !source.strip_prefix("registry+").is_some_and(|url| registries.iter().any(|r| r == url)) {
            foreign.push(format!("{name} comes from {source}"));
        }
    }
    foreign
}

/// The strings of a list in a section.
fn list(toml: &str, section: &str, key: &str) -> Option<Vec<String>> {
    let header = format!("[{section}]");
    let lines = toml.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let of_section =
        lines.skip_while(|line| *line != header).skip(1).take_while(|line| !line.starts_with('['));
    let text: String = of_section.skip_while(|line| !line.starts_with(&format!("{key} ="))).collect();
    let (_, rest) = text.split_once('[')?;
    let (items, _) = rest.split_once(']')?;
    Some(items.split(',').map(|i| i.trim().trim_matches('"').to_owned()).filter(|i| !i.is_empty()).collect())
}

/// Whether an SPDX expression can be satisfied by licences that are allowed. `A/B`, as older packages write, is `A OR B`.
fn allows(expression: &str, allowed: &[String]) -> Result<bool, String> {
    let text = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut rest = &words[..];
    let fits = any(&mut rest, allowed)?;
    if rest.is_empty() { Ok(fits) } else { Err(format!("cannot be read from {:?} on", rest[0])) }
}

/// `a OR b OR ..`, where AND binds more tightly.
fn any(rest: &mut &[&str], allowed: &[String]) -> Result<bool, String> {
    let mut fits = all(rest, allowed)?;
    while rest.first() == Some(&"OR") {
        *rest = &rest[1..];
        fits |= all(rest, allowed)?;
    }
    Ok(fits)
}

fn all(rest: &mut &[&str], allowed: &[String]) -> Result<bool, String> {
    let mut fits = one(rest, allowed)?;
    while rest.first() == Some(&"AND") {
        *rest = &rest[1..];
        fits &= one(rest, allowed)?;
    }
    Ok(fits)
}

fn one(rest: &mut &[&str], allowed: &[String]) -> Result<bool, String> {
    let Some((first, after)) = rest.split_first() else { return Err("it ends too early".to_owned()) };
    *rest = after;
    if *first == "(" {
        let fits = any(rest, allowed)?;
        return match rest.split_first() {
            Some((&")", after)) => {
                *rest = after;
                Ok(fits)
            }
            _ => Err("a parenthesis is not closed".to_owned()),
        };
    }
    if let ["WITH", exception, after @ ..] = rest {
        let license = format!("{first} WITH {exception}");
        *rest = after;
        return Ok(allowed.contains(&license));
    }
    Ok(allowed.iter().any(|a| a == first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_is_allowed_if_some_choice_of_licences_is() {
        let allowed = ["MIT".to_owned(), "Zlib".to_owned()];
        for good in [
            "MIT",
            "Apache-2.0 OR MIT",
            "Apache-2.0/MIT",
            "(GPL-3.0 OR MIT) AND Zlib",
            "GPL-3.0 AND X OR MIT",
        ] {
            assert_eq!(allows(good, &allowed), Ok(true), "{good}");
        }
        for bad in ["GPL-3.0", "MIT AND GPL-3.0", "MIT WITH some-exception", "(MIT OR Zlib) AND X"] {
            assert_eq!(allows(bad, &allowed), Ok(false), "{bad}");
        }
        for unreadable in ["", "MIT OR", "(MIT", "MIT MIT"] {
            assert!(allows(unreadable, &allowed).is_err(), "{unreadable}");
        }
    }

    #[test]
    fn sources_other_than_the_registry_are_named() {
        let lock = "name = \"a\"\nsource = \"registry+https://r\"\nname = \"b\"\nsource = \"git+https://g\"\nname = \"ours\"\n";
        assert_eq!(foreign_sources(lock, &["https://r".to_owned()]), ["\"b\" comes from git+https://g"]);
    }

    #[test]
    fn the_lists_of_deny_toml_are_read() {
        let deny = include_str!("../../deny.toml");
        assert!(list(deny, "licenses", "allow").unwrap().contains(&"Apache-2.0".to_owned()));
        assert_eq!(list(deny, "sources", "allow-registry").unwrap().len(), 1);
        assert_eq!(list(deny, "sources", "allow").map(|l| l.len()), None);
    }
}
