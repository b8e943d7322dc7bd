//! All users, and how the list is written down: a line each, as `ACL LIST` has it.

use std::collections::BTreeMap;

use sextant_common::{Error, Result};
use sextant_environment::rng::Rng;

use crate::user::{User, check_name};

/// The first line of what is stored.
const HEADING: &str = "sextant users 1";
/// More need a directory service.
const USERS_MAX: usize = 1000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Users {
    users: BTreeMap<String, User>,
}

impl Users {
    pub fn get(&self, name: &str) -> Option<&User> {
        self.users.get(name)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &User)> {
        self.users.iter().map(|(name, user)| (name.as_str(), user))
    }

    /// Makes or changes one.
    pub fn set(&mut self, name: &str, words: &[String], rng: &dyn Rng) -> Result<()> {
        check_name(name)?;
        let mut user = self.users.get(name).cloned().unwrap_or_default();
        user.apply(words.iter().map(String::as_str), rng)?;
        if !self.users.contains_key(name) && self.users.len() >= USERS_MAX {
            return Err(Error::invalid(format!("there are {USERS_MAX} users: more are not kept")));
        }
        self.users.insert(name.to_owned(), user);
        Ok(())
    }

    /// Whether there was one.
    pub fn remove(&mut self, name: &str) -> bool {
        self.users.remove(name).is_some()
    }

    /// What is stored.
    pub fn to_text(&self) -> String {
        let lines = self.users.iter().map(|(name, user)| format!("user {name} {}\n", user.words(true)));
        format!("{HEADING}\n{}", lines.collect::<String>())
    }

    /// What was stored. `Corrupt` if it is not, or of a later version.
    pub fn parse(text: &str, rng: &dyn Rng) -> Result<Self> {
        let corrupt = |why: String| Error::corrupt(format!("the list of users cannot be read: {why}"));
        let mut lines = text.lines();
        if lines.next() != Some(HEADING) {
            return Err(corrupt("it does not begin as this version writes it".into()));
        }
        let mut users = Users::default();
        for (at, line) in (2..).zip(lines) {
            let mut words = line.split(' ');
            let (Some("user"), Some(name)) = (words.next(), words.next()) else {
                return Err(corrupt(format!("line {at}")));
            };
            let words: Vec<String> = words.map(str::to_owned).collect();
            users.set(name, &words, rng).map_err(|e| corrupt(format!("line {at}: {}", e.message)))?;
        }
        Ok(users)
    }
}

#[cfg(test)]
mod tests {
    use sextant_environment::rng::SeededRng;

    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn what_is_stored_is_read_again() {
        let rng = SeededRng::new(1);
        let mut users = Users::default();
        users.set("alice", &words("on >secret ~app:* +@read"), &rng).unwrap();
        users.set("root", &words("on nopass ~* +@all table=*"), &rng).unwrap();
        users.set("nobody", &[], &rng).unwrap();
        let text = users.to_text();
        assert!(!text.contains("secret"), "{text}");
        assert_eq!(Users::parse(&text, &rng).unwrap(), users);
        assert!(users.remove("root") && !users.remove("root"));
    }

    #[test]
    fn what_is_not_a_list_is_refused() {
        let rng = SeededRng::new(1);
        assert_eq!(Users::parse("sextant users 1\n", &rng).unwrap(), Users::default());
        for text in
            ["", "sextant users 2\n", "sextant users 1\nalice on\n", "sextant users 1\nuser a sub\n", "\0"]
        {
            assert_eq!(
                Users::parse(text, &rng).unwrap_err().kind,
                sextant_common::ErrorKind::Corrupt,
                "{text}"
            );
        }
    }
}
