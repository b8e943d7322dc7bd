//! What one user may do.

use sextant_common::{Error, ErrorKind, Result};

use crate::pattern::Pattern;

/// What a command does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Reads records.
    Read,
    /// Changes records.
    Write,
    /// Administrates: tables, users, the cluster.
    Admin,
    /// Removes everything at once.
    Dangerous,
}

impl Class {
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Admin, Self::Dangerous];

    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Admin => "admin",
            Self::Dangerous => "dangerous",
        }
    }
}

/// A pattern of keys, and what may be done to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyRule {
    pub pattern: Pattern,
    pub read: bool,
    pub write: bool,
}

/// The default of a new user: nothing, in the default table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rights {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) admin: bool,
    pub(crate) dangerous: bool,
    pub(crate) keys: Vec<KeyRule>,
    pub(crate) tables: Vec<Pattern>,
}

/// Of the default table, which may also go without a name.
pub(crate) const DEFAULT_TABLE: &str = "default";

impl Default for Rights {
    fn default() -> Self {
        Self {
            read: false,
            write: false,
            admin: false,
            dangerous: false,
            keys: Vec::new(),
            tables: vec![Pattern::exactly(DEFAULT_TABLE)],
        }
    }
}

impl Rights {
    /// Everything.
    pub fn all() -> Self {
        let keys = vec![KeyRule { pattern: Pattern::all(), read: true, write: true }];
        Self { read: true, write: true, admin: true, dangerous: true, keys, tables: vec![Pattern::all()] }
    }

    pub(crate) fn set_all(&mut self, given: bool) {
        Class::ALL.into_iter().for_each(|class| *self.of(class) = given);
    }

    pub(crate) fn of(&mut self, class: Class) -> &mut bool {
        match class {
            Class::Read => &mut self.read,
            Class::Write => &mut self.write,
            Class::Admin => &mut self.admin,
            Class::Dangerous => &mut self.dangerous,
        }
    }

    pub(crate) fn has(&self, class: Class) -> bool {
        match class {
            Class::Read => self.read,
            Class::Write => self.write,
            Class::Admin => self.admin,
            Class::Dangerous => self.dangerous,
        }
    }

    fn covers(&self, class: Class, covers: impl Fn(&Pattern) -> bool) -> bool {
        self.keys.iter().any(|rule| {
            let applies = match class {
                Class::Read => rule.read,
                Class::Write | Class::Dangerous => rule.write,
                Class::Admin => true,
            };
            applies && covers(&rule.pattern)
        })
    }
}

/// A user who has shown who it is, with the rights of that moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    pub name: String,
    pub rights: Rights,
    /// Since which generation of the desk's list there is a user of this name whose passwords were not all replaced at once, and who did
    /// not come to need one: one with another number may be somebody else. Of a superuser 0.
    pub since: u64,
}

impl Principal {
    /// Whether commands of this class may be used at all.
    pub fn may(&self, class: Class) -> Result<()> {
        match self.rights.has(class) {
            true => Ok(()),
            false => {
                Err(denied(format!("user {} has no permission for commands that {}", self.name, does(class))))
            }
        }
    }

    /// Whether there may be anything in a table ("": the default one) for which it has permission.
    pub fn may_enter(&self, table: &str) -> bool {
        let table = if table.is_empty() { DEFAULT_TABLE } else { table };
        self.rights.tables.iter().any(|pattern| pattern.covers(table.as_bytes()))
    }

    /// Whether this may be done to the key of a table ("": the default one).
    pub fn may_key(&self, class: Class, table: &str, key: &[u8]) -> Result<()> {
        self.may_in(class, table)?;
        match self.rights.covers(class, |pattern| pattern.covers(key)) {
            true => Ok(()),
            // Not which key: errors carry none.
            false => Err(denied(format!(
                "user {} has no permission to {} one of the keys",
                self.name,
                class.name()
            ))),
        }
    }

    /// Whether all keys from `start` to `end` (exclusive; empty: to the last) may be read.
    pub fn may_scan(&self, table: &str, start: &[u8], end: &[u8]) -> Result<()> {
        self.may_in(Class::Read, table)?;
        match self.rights.covers(Class::Read, |pattern| pattern.covers_range(start, end)) {
            true => Ok(()),
            false => Err(denied(format!("user {} has no permission to read all of this range", self.name))),
        }
    }

    /// Whether all records of a table may be removed at once.
    pub fn may_empty(&self, table: &str) -> Result<()> {
        self.may_in(Class::Dangerous, table)?;
        match self.rights.covers(Class::Write, |pattern| pattern.covers_range(b"", b"")) {
            true => Ok(()),
            false => Err(denied(format!("user {} has no permission to write all keys", self.name))),
        }
    }

    fn may_in(&self, class: Class, table: &str) -> Result<()> {
        self.may(class)?;
        match self.may_enter(table) {
            true => Ok(()),
            false => {
                let table = if table.is_empty() { DEFAULT_TABLE } else { table };
                Err(denied(format!("user {} has no permission for table {table}", self.name)))
            }
        }
    }
}

fn does(class: Class) -> &'static str {
    match class {
        Class::Read => "read",
        Class::Write => "write",
        Class::Admin => "administrate",
        Class::Dangerous => "remove everything",
    }
}

fn denied(why: String) -> Error {
    Error::new(ErrorKind::Denied, why)
}
