//! A user, and the words that change one: those of `ACL SETUSER`.

use std::fmt::Write;

use sextant_common::{Error, Result};
use sextant_environment::rng::Rng;

use crate::password;
use crate::pattern::Pattern;
use crate::rights::{Class, DEFAULT_TABLE, KeyRule, Rights};

/// Longest name, in bytes.
const NAME_BYTES_MAX: usize = 64;
/// Passwords of one user: an old one and its successor, and some.
const PASSWORDS_MAX: usize = 8;
/// Patterns of one user, of keys and of tables each.
const PATTERNS_MAX: usize = 256;

/// Letters, digits, `-`, `_`, `.`, `@`: what can stand in a file's name, and in a line.
pub fn check_name(name: &str) -> Result<()> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'@');
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(plain) || name.starts_with('.') {
        return Err(Error::invalid(format!(
            "a user's name has 1 to {NAME_BYTES_MAX} letters, digits, '-', '_', '.' or '@'"
        )));
    }
    Ok(())
}

/// New ones are off and may do nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    pub enabled: bool,
    /// Any password is right.
    pub nopass: bool,
    /// Hashes.
    pub(crate) passwords: Vec<String>,
    pub rights: Rights,
}

impl User {
    /// Changes it as the words say, from left to right; not at all if one of them is not understood. Takes 30 ms for each password in it.
    pub fn apply<'a>(&mut self, words: impl IntoIterator<Item = &'a str>, rng: &dyn Rng) -> Result<()> {
        let mut changed = self.clone();
        words.into_iter().try_for_each(|word| changed.apply_word(word, rng))?;
        if changed.passwords.len() > PASSWORDS_MAX {
            return Err(Error::invalid(format!("a user has at most {PASSWORDS_MAX} passwords")));
        }
        if changed.rights.keys.len().max(changed.rights.tables.len()) > PATTERNS_MAX {
            return Err(Error::invalid(format!(
                "a user has at most {PATTERNS_MAX} patterns of keys, and of tables"
            )));
        }
        *self = changed;
        Ok(())
    }

    fn apply_word(&mut self, word: &str, rng: &dyn Rng) -> Result<()> {
        let rights = &mut self.rights;
        match word {
            "on" => self.enabled = true,
            "off" => self.enabled = false,
            "nopass" => {
                self.nopass = true;
                self.passwords.clear();
            }
            "resetpass" => {
                self.nopass = false;
                self.passwords.clear();
            }
            "reset" => *self = User::default(),
            "allkeys" | "~*" => rights.keys = Rights::all().keys,
            "resetkeys" => rights.keys.clear(),
            "alltables" | "table=*" => rights.tables = Rights::all().tables,
            "resettables" => rights.tables.clear(),
            "allcommands" | "+@all" => rights.set_all(true),
            "nocommands" | "-@all" => rights.set_all(false),
            // Channels: there are none. Redis' own tools send these.
            "allchannels" | "resetchannels" | "&*" | "sanitize-payload" | "skip-sanitize-payload" => {}
            _ => return self.apply_argument(word, rng),
        }
        Ok(())
    }

    fn apply_argument(&mut self, word: &str, rng: &dyn Rng) -> Result<()> {
        let rights = &mut self.rights;
        if let Some(password) = word.strip_prefix('>') {
            let phc = password::hash(password.as_bytes(), rng)?;
            self.nopass = false;
            // Said again, it is the same.
            self.passwords.retain(|before| !password::verify(password.as_bytes(), before));
            self.passwords.push(phc);
        } else if let Some(password) = word.strip_prefix('<') {
            let before = self.passwords.len();
            self.passwords.retain(|kept| !password::verify(password.as_bytes(), kept));
            if self.passwords.len() == before {
                return Err(Error::invalid("the password to be removed is none of the user's"));
            }
        } else if let Some(phc) = word.strip_prefix('#') {
            password::check(phc)?;
            self.nopass = false;
            if !self.passwords.iter().any(|kept| kept == phc) {
                self.passwords.push(phc.to_owned());
            }
        } else if let Some(phc) = word.strip_prefix('!') {
            self.passwords.retain(|kept| kept != phc);
        } else if let Some(table) = word.strip_prefix("table=") {
            let pattern = Pattern::parse(table)?;
            if !rights.tables.contains(&pattern) {
                rights.tables.push(pattern);
            }
        } else if let Some((read, write, keys)) = key_rule(word) {
            let rule = KeyRule { pattern: Pattern::parse(keys)?, read, write };
            if !rights.keys.contains(&rule) {
                rights.keys.push(rule);
            }
        } else if let Some((given, class)) = class_rule(word) {
            *rights.of(class) = given;
        } else {
            return Err(not_understood(word));
        }
        Ok(())
    }

    /// Whether this is one of its passwords. Some 30 ms for each that it has.
    pub(crate) fn knows(&self, password: &[u8]) -> bool {
        self.nopass || self.passwords.iter().any(|phc| password::verify(password, phc))
    }

    /// The words that make it out of a new one. Without hashes, `secrets` false, it can be shown to anybody.
    pub fn words(&self, secrets: bool) -> String {
        let mut words = String::from(if self.enabled { "on" } else { "off" });
        if self.nopass {
            words.push_str(" nopass");
        }
        for phc in &self.passwords {
            let _ = write!(words, " #{}", if secrets { phc } else { "(hidden)" });
        }
        for rule in &self.rights.keys {
            let kind = match (rule.read, rule.write) {
                (true, true) => "",
                (true, false) => "%R",
                _ => "%W",
            };
            let _ = write!(words, " {kind}~{}", rule.pattern);
        }
        if self.rights.tables != [Pattern::exactly(DEFAULT_TABLE)] {
            words.push_str(" resettables");
            for pattern in &self.rights.tables {
                let _ = write!(words, " table={pattern}");
            }
        }
        let given: Vec<Class> = Class::ALL.into_iter().filter(|class| self.rights.has(*class)).collect();
        match given.len() {
            0 => words.push_str(" -@all"),
            given if given == Class::ALL.len() => words.push_str(" +@all"),
            _ => given.iter().for_each(|class| {
                let _ = write!(words, " +@{}", class.name());
            }),
        }
        words
    }
}

/// `~pattern`, `%R~pattern`, `%W~pattern`, `%RW~pattern`: may be read, written, and which keys.
fn key_rule(word: &str) -> Option<(bool, bool, &str)> {
    if let Some(keys) = word.strip_prefix('~') {
        return Some((true, true, keys));
    }
    let (kind, keys) = word.strip_prefix('%')?.split_once('~')?;
    match kind.to_ascii_uppercase().as_str() {
        "R" => Some((true, false, keys)),
        "W" => Some((false, true, keys)),
        "RW" | "WR" => Some((true, true, keys)),
        _ => None,
    }
}

/// `+@read`, `-@admin`.
fn class_rule(word: &str) -> Option<(bool, Class)> {
    let (given, name) = match (word.strip_prefix("+@"), word.strip_prefix("-@")) {
        (Some(name), _) => (true, name),
        (_, Some(name)) => (false, name),
        _ => return None,
    };
    let class = Class::ALL.into_iter().find(|class| class.name() == name)?;
    Some((given, class))
}

/// It may have been meant as a password: it is not repeated.
fn not_understood(word: &str) -> Error {
    let what = match word.as_bytes().first() {
        Some(b'+' | b'-') => "rights are given by class: @read, @write, @admin, @dangerous, @all",
        Some(b'(') => "there are no selectors",
        _ => "on, off, >password, nopass, ~keys, %R~keys, table=name, +@class are understood, and their like",
    };
    Error::invalid(format!("a rule is not understood: {what}"))
}

#[cfg(test)]
mod tests {
    use sextant_environment::rng::SeededRng;

    use super::*;
    use crate::rights::Principal;

    fn user(words: &str) -> User {
        let mut user = User::default();
        user.apply(words.split_whitespace(), &SeededRng::new(1)).unwrap();
        user
    }

    #[test]
    fn what_is_written_makes_the_same_user_again() {
        for words in [
            "",
            "on nopass ~* +@all table=*",
            "on >a >b ~app:* %R~shared:* %W~log +@read +@write",
            "off resettables table=x table=y* +@admin",
            "on >a resettables",
            "on +@all -@dangerous",
        ] {
            let made = user(words);
            assert_eq!(user(&made.words(true)), made, "{words}: {}", made.words(true));
            assert!(!made.words(false).contains("argon2"));
        }
    }

    #[test]
    fn to_remove_everything_is_a_right_of_its_own() {
        let may =
            |words: &str| Principal { name: "u".into(), rights: user(words).rights }.may_empty("").is_ok();
        assert!(may("+@all ~*") && may("+@dangerous %W~*"));
        for words in [
            "+@all -@dangerous ~*",
            "+@read +@write +@admin ~*",
            "+@all ~a*",
            "+@all %R~*",
            "+@all ~* resettables",
        ] {
            assert!(!may(words), "{words}");
        }
    }

    #[test]
    fn later_words_win_and_a_bad_one_changes_nothing() {
        let made = user("on +@all -@admin ~* resetkeys ~a");
        assert!(made.rights.read && made.rights.write && !made.rights.admin);
        assert_eq!(made.rights.keys.len(), 1);
        let mut same = made.clone();
        for bad in ["+get", "secret", "(~x)", "~a?b", "#abc", "%X~a", "+@pubsub", "<never", "table=", ">"] {
            let error = same.apply(["off", bad], &SeededRng::new(1)).unwrap_err();
            assert_eq!(same, made, "{bad}: {error}");
            assert!(!error.message.contains("secret"), "{error}");
        }
    }

    #[test]
    fn passwords_come_and_go() {
        let mut made = user("on >one >two");
        assert!(made.knows(b"one") && made.knows(b"two") && !made.knows(b"three"));
        made.apply(["<one"], &SeededRng::new(1)).unwrap();
        assert!(!made.knows(b"one") && made.knows(b"two"));
        made.apply([">two"], &SeededRng::new(2)).unwrap();
        assert_eq!(made.passwords.len(), 1);
        made.apply(["nopass"], &SeededRng::new(1)).unwrap();
        assert!(made.knows(b"anything"));
        made.apply(["resetpass"], &SeededRng::new(1)).unwrap();
        assert!(!made.knows(b"anything") && !made.knows(b"two"));
    }

    #[test]
    fn names_are_plain() {
        for name in ["a", "alice@example.org", "app-1_x", &"x".repeat(64)] {
            check_name(name).unwrap();
        }
        for name in ["", "a b", "../x", ".x", "a/b", "ü", &"x".repeat(65)] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
