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
/// Words of one change that have a password: each takes as long as some comparisons.
const PASSWORD_WORDS_MAX: usize = 2 * PASSWORDS_MAX;
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
    /// Changes it as the words say, from left to right; not at all if one of them is not understood. Takes 30 ms for each password in it,
    /// and as long for each that the user has by then.
    pub fn apply<'a>(&mut self, words: impl IntoIterator<Item = &'a str>, rng: &dyn Rng) -> Result<()> {
        let mut changed = self.clone();
        let mut with_password = 0;
        for word in words {
            with_password += usize::from(word.starts_with(['>', '<']));
            if with_password > PASSWORD_WORDS_MAX {
                return Err(Error::invalid(format!(
                    "at most {PASSWORD_WORDS_MAX} passwords are given or removed at a time"
                )));
            }
            changed.apply_word(word, &self.passwords, rng)?;
            // Before the next one: it may take long. (The new ones may come before the old ones go.)
            changed.check_size(2)?;
        }
        changed.check_size(1)?;
        *self = changed;
        Ok(())
    }

    fn check_size(&self, times: usize) -> Result<()> {
        if self.passwords.len() > times * PASSWORDS_MAX {
            return Err(Error::invalid(format!("a user has at most {PASSWORDS_MAX} passwords")));
        }
        if self.rights.keys.len().max(self.rights.tables.len()) > times * PATTERNS_MAX {
            return Err(Error::invalid(format!(
                "a user has at most {PATTERNS_MAX} patterns of keys, and of tables"
            )));
        }
        Ok(())
    }

    /// `before`: hashes of the passwords that it had before all words.
    fn apply_word(&mut self, word: &str, before: &[String], rng: &dyn Rng) -> Result<()> {
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
            _ => return self.apply_argument(word, before, rng),
        }
        Ok(())
    }

    fn apply_argument(&mut self, word: &str, before: &[String], rng: &dyn Rng) -> Result<()> {
        let rights = &mut self.rights;
        if let Some(password) = word.strip_prefix('>') {
            let phc = self.hash_of(password.as_bytes(), before, rng)?;
            self.nopass = false;
            if !self.passwords.contains(&phc) {
                self.passwords.push(phc);
            }
        } else if let Some(password) = word.strip_prefix('<') {
            let count = self.passwords.len();
            self.passwords.retain(|kept| !password::verify(password.as_bytes(), kept));
            if self.passwords.len() == count {
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

    /// Of a password that is said again, also after `reset`, it is the one that is kept: with another the user would look like another
    /// one.
    fn hash_of(&self, password: &[u8], before: &[String], rng: &dyn Rng) -> Result<String> {
        let others = before.iter().filter(|phc| !self.passwords.contains(phc));
        let kept = self.passwords.iter().chain(others).find(|phc| password::verify(password, phc));
        kept.map_or_else(|| password::hash(password, rng), |phc| Ok(phc.clone()))
    }

    /// Whether this is one of its passwords. Some 30 ms for each that it has.
    pub(crate) fn knows(&self, password: &[u8]) -> bool {
        self.nopass || self.passwords.iter().any(|phc| password::verify(password, phc))
    }

    /// Hashes of its passwords.
    pub(crate) fn passwords(&self) -> &[String] {
        &self.passwords
    }

    /// Whether it may be another one than who had these passwords, or needed none (`nopass`), under the same name: it has none of them.
    /// (Whoever needed none may have been anybody. Who needs none now may be, so it does not matter who was it before.)
    pub(crate) fn may_be_another(&self, before: &[String], nopass: bool) -> bool {
        let is_kept = |phc: &String| before.contains(phc);
        let has_others = !before.is_empty() && !self.passwords.iter().any(is_kept);
        !self.nopass && (nopass || has_others)
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
        let may = |words: &str| {
            let rights = user(words).rights;
            Principal { name: "u".into(), rights, since: 0 }.may_empty("").is_ok()
        };
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
        let kept = made.passwords.clone();
        made.apply([">two"], &SeededRng::new(2)).unwrap();
        assert_eq!(made.passwords, kept, "the same hash");
        made.apply(["nopass"], &SeededRng::new(1)).unwrap();
        assert!(made.knows(b"anything"));
        made.apply(["resetpass"], &SeededRng::new(1)).unwrap();
        assert!(!made.knows(b"anything") && !made.knows(b"two"));
    }

    #[test]
    fn all_passwords_at_once_are_those_of_another_user() {
        let before = user("on >one >two");
        let is_another = |words: &str| {
            let mut after = before.clone();
            after.apply(words.split_whitespace(), &SeededRng::new(2)).unwrap();
            after.may_be_another(&before.passwords, before.nopass)
        };
        for words in ["", "<one >three", "off resetkeys", "nopass", "reset on >two"] {
            assert!(!is_another(words), "{words}");
        }
        for words in ["resetpass", "resetpass >three", "reset on >three"] {
            assert!(is_another(words), "{words}");
        }
        let mut anew = User::default();
        anew.apply(["on", ">one"], &SeededRng::new(2)).unwrap();
        assert!(anew.may_be_another(&before.passwords, false), "the same password, and a hash of its own");
        assert!(!user("on >three").may_be_another(&[], false), "there was none");
        assert!(user("on >three").may_be_another(&[], true), "it needed none");
        assert!(user("on").may_be_another(&[], true));
        assert!(!user("on nopass").may_be_another(&[], true));
    }

    #[test]
    fn what_is_too_much_is_refused_before_the_rest_is_looked_at() {
        let refused = |words: Vec<String>| {
            let words = words.iter().map(String::as_str).chain(["not understood"]);
            User::default().apply(words, &SeededRng::new(1)).unwrap_err().message
        };
        let many = |word: &str, count: usize| (0..count).map(|at| format!("{word}{at}")).collect();
        let hashes =
            (0..=2 * PASSWORDS_MAX as u64).map(|at| password::hash(b"x", &SeededRng::new(at)).unwrap());
        assert!(refused(hashes.map(|phc| format!("#{phc}")).collect()).contains("at most 8 passwords"));
        assert!(refused(many("~k", 2 * PATTERNS_MAX + 1)).contains("at most 256 patterns"));
        assert!(refused(many("table=t", 2 * PATTERNS_MAX)).contains("at most 256 patterns"));
        // (Those that are removed again count, too.)
        let again = [">a", "<a"].repeat(PASSWORD_WORDS_MAX / 2).into_iter().chain([">a"]);
        assert!(refused(again.map(str::to_owned).collect()).contains("at most 16 passwords are given"));
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
