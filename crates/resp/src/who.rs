//! Who a connection is, and what it may do.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use sextant_access::{Allowance, Allowances, Class, Desk, Place, Principal};
use sextant_common::Result;
use sextant_common::database::Database;
use sextant_environment::env::{Holder, Identity};

use crate::command_table::{Id, Spec};
use crate::frame::{Command, Reply};
use crate::subcommands;

/// Without access control: everybody, who may do everything.
pub(crate) struct Who {
    desk: Option<Arc<Desk>>,
    /// Where it comes from. None: a Unix socket.
    peer: Option<SocketAddr>,
    /// By the connection's certificate.
    shown: Option<String>,
    /// As whom it has authenticated, or what it has shown.
    name: Option<String>,
    /// If it has authenticated: [since when](Principal::since) there was that user then.
    since: Option<u64>,
    /// In which it is.
    database: Database,
    principal: Option<Arc<Principal>>,
    /// Of the desk, when `principal` was found.
    generation: u64,
    allowances: Arc<Allowances>,
    /// None: no limits.
    limits: Option<Limited>,
}

/// A user with limits.
struct Limited {
    user: String,
    allowance: Arc<Allowance>,
    /// None: the user has as many connections as it may.
    place: Option<Place>,
}

impl Who {
    pub fn new(
        desk: Option<Arc<Desk>>,
        peer: Option<SocketAddr>,
        identity: Option<&Identity>,
        allowances: Arc<Allowances>,
    ) -> Self {
        let shown = identity.and_then(|identity| match &identity.holder {
            Holder::User(name) => Some(name.clone()),
            // Servers are no users.
            Holder::Server(_) => None,
        });
        let mut who = Self {
            desk,
            peer,
            name: shown.clone(),
            shown,
            since: None,
            database: Database::FIRST,
            principal: None,
            generation: 0,
            allowances,
            limits: None,
        };
        if who.desk.is_none() {
            who.enter(Some(DEFAULT_USER.to_owned()));
        }
        who
    }

    pub fn desk(&self) -> Option<&Arc<Desk>> {
        self.desk.as_ref()
    }

    /// From now on it is this one.
    pub fn becomes(&mut self, principal: Arc<Principal>) {
        (self.name, self.since) = (Some(principal.name.clone()), Some(principal.since));
        // Found again by name: rights may have changed while the password was compared.
        self.generation = 0;
    }

    /// Only what the certificate says counts again.
    pub fn reset(&mut self) {
        (self.name, self.since) = (self.shown.clone(), None);
        self.generation = 0;
    }

    /// `None`: nobody, who may only say who it is.
    pub fn principal(&mut self) -> Option<&Arc<Principal>> {
        let desk = self.desk.as_ref()?;
        let generation = desk.generation();
        if generation != self.generation {
            self.generation = generation;
            self.principal = found(desk, self.name.as_deref(), self.since);
            self.enter(self.principal.as_ref().map(|principal| principal.name.clone()));
        }
        self.principal.as_ref()
    }

    /// It is not who it has said that it is any more, and nobody: it has to come in anew.
    pub fn is_cut_off(&mut self) -> bool {
        self.since.is_some() && self.is_nobody()
    }

    /// Takes a place among the connections of this user, if it has limits, and leaves the one that was taken.
    fn enter(&mut self, user: Option<String>) {
        if self.limits.as_ref().map(|limited| &limited.user) == user.as_ref() {
            return;
        }
        self.limits = user.and_then(|user| {
            let allowance = self.allowances.of(&user)?;
            Some(Limited { place: allowance.try_enter(), user, allowance })
        });
    }

    /// Whether its user has limits.
    #[inline]
    pub fn has_limits(&mut self) -> bool {
        if self.desk.is_some() {
            self.principal();
        }
        self.limits.is_some()
    }

    /// Whether its user has limits, and it is one of too many of its connections.
    pub fn lacks_a_place(&mut self) -> bool {
        self.has_limits() && self.limits.as_ref().is_some_and(|limited| limited.place.is_none())
    }

    /// What its user may take, if that is limited, whether this connection has a place or not.
    pub fn limits(&self) -> Option<&Arc<Allowance>> {
        self.limits.as_ref().map(|limited| &limited.allowance)
    }

    /// What its user may take, if that is limited. Err: not even this connection.
    pub fn allowance(&mut self) -> Result<Option<&Arc<Allowance>>> {
        let Some(limited) = &mut self.limits else { return Ok(None) };
        if limited.place.is_none() {
            // There may be one by now.
            limited.place = Some(limited.allowance.enter()?);
        }
        Ok(Some(&limited.allowance))
    }

    /// As it is called; without access control everybody is the default user.
    pub fn name(&mut self) -> &str {
        if self.desk.is_none() {
            return DEFAULT_USER;
        }
        self.principal().map_or(DEFAULT_USER, |principal| &principal.name)
    }

    /// As others see it: as whom it came in, also if that user is not there, or may do nothing, any more.
    pub fn shown_name(&self) -> &str {
        let name = self.name.as_deref().filter(|_| self.desk.is_some());
        name.unwrap_or(DEFAULT_USER)
    }

    /// None: everybody may do everything.
    pub fn standing(&mut self) -> Option<Standing> {
        let generation = self.generation();
        let (name, since, database) = (self.name.clone(), self.since, self.database);
        Some(Standing { desk: self.desk.clone()?, name, since, database, generation })
    }

    pub fn is_nobody(&mut self) -> bool {
        self.desk.is_some() && self.principal().is_none()
    }

    /// Of the rights of users: another number may mean other rights.
    pub fn generation(&mut self) -> u64 {
        self.principal();
        self.generation
    }

    /// Of its database.
    pub fn may_read(&mut self, key: &[u8]) -> bool {
        let table = self.database.table();
        self.desk.is_none()
            || self.principal().is_some_and(|who| who.may_key(Class::Read, table, key).is_ok())
    }

    /// All keys of a range of its database; an empty end: to the last key.
    pub fn may_scan(&mut self, start: &[u8], end: &[u8]) -> bool {
        let table = self.database.table();
        self.desk.is_none() || self.principal().is_some_and(|who| who.may_scan(table, start, end).is_ok())
    }

    /// Anything at all in a database.
    pub fn may_enter(&mut self, database: Database) -> bool {
        self.desk.is_none() || self.principal().is_some_and(|who| who.may_enter(database.table()))
    }

    pub fn may_make_databases(&mut self) -> bool {
        self.desk.is_none() || self.principal().is_some_and(|who| who.may(Class::Write).is_ok())
    }

    pub fn database(&self) -> Database {
        self.database
    }

    pub fn selects(&mut self, database: Database) {
        self.database = database;
    }

    pub fn may_administrate(&mut self) -> bool {
        self.desk.is_none() || self.principal().is_some_and(|who| who.may(Class::Admin).is_ok())
    }

    /// For the audit log: it asked for what it may not have.
    pub fn refused(&mut self, command: &str) {
        let user = self.principal().map(|principal| principal.name.clone());
        if let Some(desk) = &self.desk {
            desk.refused(user.as_deref().unwrap_or("nobody"), command, self.peer);
        }
    }

    /// Whether the command may be run; if not, what Redis says.
    pub fn permit(&mut self, spec: &Spec, command: &Command<'_>) -> std::result::Result<(), Reply> {
        if self.desk.is_none() || spec.flags.contains(&"no_auth") {
            return Ok(());
        }
        let database = self.database;
        let Some(who) = self.principal() else {
            return Err(Reply::error("NOAUTH Authentication required."));
        };
        let class = [
            ("readonly", Class::Read),
            ("write", Class::Write),
            ("admin", Class::Admin),
            ("dangerous", Class::Dangerous),
        ]
        .into_iter()
        .find_map(|(flag, class)| spec.flags.contains(&flag).then_some(class));
        // What concerns the connection alone is everybody's.
        let Some(class) = class else { return Ok(()) };
        if who.may(class).is_err() {
            return Err(not_permitted(subcommands::full_name(spec, command)));
        }
        if class == Class::Dangerous && who.may_empty(database.table()).is_err() {
            return Err(not_permitted(subcommands::full_name(spec, command)));
        }
        for (at, place) in spec.key_places(command).into_iter().enumerate() {
            let key = command.arg(place);
            let is_source = at > 0 && reads_all_but_the_first(spec.id);
            let mut classes = [Some(class).filter(|_| !is_source), None];
            if is_source || reads_too(spec.id, at, command) {
                classes[1] = Some(Class::Read);
            }
            if classes.into_iter().flatten().any(|class| who.may_key(class, database.table(), key).is_err()) {
                return Err(KEY_NOT_PERMITTED);
            }
        }
        Ok(())
    }
}

/// Who has a command that waits, or takes long: rights may change meanwhile.
#[derive(Debug)]
pub(crate) struct Standing {
    desk: Arc<Desk>,
    /// None: nobody that has said so.
    name: Option<String>,
    since: Option<u64>,
    database: Database,
    generation: u64,
}

impl Standing {
    /// Whether it may, still, remove all keys of a database at once.
    pub fn may_empty(&self, database: Database) -> bool {
        found(&self.desk, self.name.as_deref(), self.since)
            .is_some_and(|who| who.may(Class::Dangerous).is_ok() && who.may_empty(database.table()).is_ok())
    }

    /// Whether it may, still, take something of these keys.
    pub fn may_take(&mut self, keys: &[Bytes]) -> bool {
        let generation = self.desk.generation();
        if generation == self.generation {
            return true;
        }
        let who = found(&self.desk, self.name.as_deref(), self.since);
        let may = |class| {
            let who = who.as_ref();
            who.is_some_and(|who| {
                keys.iter().all(|key| who.may_key(class, self.database.table(), key).is_ok())
            })
        };
        let may = may(Class::Write) && may(Class::Read);
        if may {
            self.generation = generation;
        }
        may
    }
}

/// Whom the desk has under this name, or whoever says nothing. `since`: of the user whose password was right. Without one a certificate
/// has said it: that counts for whoever has the name.
fn found(desk: &Desk, name: Option<&str>, since: Option<u64>) -> Option<Arc<Principal>> {
    let Some(name) = name else { return desk.anonymous() };
    desk.find(name).filter(|found| since.is_none_or(|since| since == found.since))
}

/// Whether the keys after the first one are only read.
fn reads_all_but_the_first(id: Id) -> bool {
    matches!(
        id,
        Id::Zunionstore
            | Id::Zinterstore
            | Id::Zdiffstore
            | Id::Zrangestore
            | Id::Sunionstore
            | Id::Sinterstore
            | Id::Sdiffstore
    )
}

/// Whether a command that writes the key in this place, of its keys, tells what was there, or copies it.
fn reads_too(id: Id, at: usize, command: &Command<'_>) -> bool {
    match id {
        // `SET k v GET` answers with what was there.
        Id::Set => (3..command.len()).any(|i| command.arg(i).eq_ignore_ascii_case(b"get")),
        Id::Getset
        | Id::Getdel
        | Id::Getex
        | Id::Incr
        | Id::Decr
        | Id::Incrby
        | Id::Decrby
        | Id::Incrbyfloat
        | Id::Hincrby
        | Id::Hincrbyfloat
        | Id::Zincrby
        | Id::Zadd
        | Id::Zpopmin
        | Id::Zpopmax
        | Id::Zmpop
        | Id::Bzmpop
        | Id::Bzpopmin
        | Id::Bzpopmax
        | Id::Spop
        | Id::Lpop
        | Id::Rpop
        | Id::Lmpop
        | Id::Blmpop
        | Id::Blpop
        | Id::Brpop => true,
        // (What they move is read.)
        Id::Rename | Id::Renamenx | Id::Copy => at == 0,
        // (The first key is written; what the others have, or what is moved, is read.)
        Id::Smove | Id::Lmove | Id::Rpoplpush | Id::Blmove | Id::Brpoplpush => true,
        _ => false,
    }
}

pub(crate) const DEFAULT_USER: &str = "default";

pub(crate) const KEY_NOT_PERMITTED: Reply = Reply::Error(Bytes::from_static(
    b"NOPERM this user has no permissions to access one of the keys used as arguments",
));

/// `command`: its full name.
pub(crate) fn not_permitted(command: &str) -> Reply {
    Reply::error(format!("NOPERM this user has no permissions to run the '{command}' command"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_combined_into_another_key_is_read_and_only_that_key_is_written() {
        let stores = [Id::Sinterstore, Id::Sunionstore, Id::Sdiffstore, Id::Zinterstore, Id::Zrangestore];
        for id in stores {
            assert!(reads_all_but_the_first(id), "{id:?}");
        }
        assert!(!reads_all_but_the_first(Id::Smove), "it takes something away");
    }
}
