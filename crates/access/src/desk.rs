//! Where it is asked who somebody is: the users that are known here, and those who may always come in.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use serde::{Deserialize, Serialize};
use sextant_common::{Error, ErrorKind, Result};
use sextant_environment::Env;

use crate::comparisons::Comparisons;
use crate::password;
use crate::rights::{Principal, Rights};
use crate::user::{User, check_name};
use crate::users::Users;

/// How soon a change that was made elsewhere is known here.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Rounds of a change against others' changes.
const ROUNDS_MAX: usize = 16;
/// At most one line about wrong passwords in so long, and one about each user's refusals.
const LINE_EVERY_NS: u64 = 1_000_000_000;
/// Users whose refusals have lines of their own within [`LINE_EVERY_NS`]: so many lines a second are no flood.
const REFUSED_USERS_MAX: usize = 64;
/// Who says nothing is this one, if it exists and needs no password.
const DEFAULT_USER: &str = "default";

/// The section `[access]` of a p-node: with it, who comes in has to be a user, and may do what that user may.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccessConfig {
    /// Users who may do everything, whatever the cluster's list says: names, and hashes of their passwords (`sextant user hash`), or ""
    /// for one that shows a certificate. At least one, who makes the others.
    pub superusers: BTreeMap<String, String>,
}

impl AccessConfig {
    pub fn validate(&self) -> Result<()> {
        if self.superusers.is_empty() {
            return Err(Error::invalid("access.superusers: at least one, or nobody could make users"));
        }
        for (name, phc) in &self.superusers {
            let named = |e: Error| Error::invalid(format!("access.superusers.{name}: {}", e.message));
            check_name(name).map_err(named)?;
            if !phc.is_empty() {
                password::check(phc).map_err(named)?;
            }
        }
        Ok(())
    }
}

/// The list as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    pub text: String,
    /// Of this content; never 0.
    pub version: u64,
}

/// Where the list is kept, for all p-nodes of a cluster.
pub trait Keeper: Send + Sync + 'static {
    fn load(&self) -> BoxFuture<'_, Result<Option<Stored>>>;

    /// Replaces what was stored as version `expected` (0: nothing was). False if something else is stored by now.
    fn store(&self, text: String, expected: u64) -> BoxFuture<'_, Result<bool>>;
}

pub struct Desk {
    env: Env,
    keeper: Arc<dyn Keeper>,
    superusers: BTreeMap<String, String>,
    known: ArcSwap<Known>,
    /// Rises with each change of what is known.
    generation: AtomicU64,
    /// One looks at a time: what was loaded later is not replaced by what was loaded before it.
    looking: tokio::sync::Mutex<()>,
    comparisons: Comparisons,
    outcomes: Outcomes,
    wrong_passwords: Mutex<Lines>,
    refusals: Mutex<LinesByUser>,
}

#[derive(Default)]
struct Known {
    users: Users,
    /// Of each of them.
    seen: HashMap<String, Seen>,
    /// 0: nothing is stored.
    version: u64,
    /// Whether it was ever asked for with success.
    loaded: bool,
}

/// What tells a user from the next one of its name.
struct Seen {
    /// Since which generation there is this one.
    since: u64,
    /// Hashes.
    passwords: Vec<String>,
    /// Whether it needed none.
    nopass: bool,
}

impl Known {
    /// What is known from this generation on, when these users are stored as this version.
    fn next(&self, users: Users, version: u64, generation: u64) -> Self {
        let seen = |(name, user): (&str, &User)| {
            let before = self.users.get(name).and_then(|_| self.seen.get(name));
            let same = before.filter(|before| !user.may_be_another(&before.passwords, before.nopass));
            let since = same.map_or(generation, |same| same.since);
            (name.to_owned(), Seen { since, passwords: user.passwords().to_vec(), nopass: user.nopass })
        };
        let seen = users.iter().map(seen).collect();
        Self { users, seen, version, loaded: true }
    }

    fn since_of(&self, name: &str) -> u64 {
        self.seen.get(name).map_or(0, |seen| seen.since)
    }
}

#[derive(Default)]
struct Lines {
    last_ns: Option<u64>,
    left_out: u64,
}

impl Lines {
    /// How many were left out before this one; none: it is too soon for another.
    fn next(&mut self, now_ns: u64) -> Option<u64> {
        if self.last_ns.is_some_and(|last_ns| is_recent(last_ns, now_ns)) {
            self.left_out += 1;
            return None;
        }
        self.last_ns = Some(now_ns);
        Some(std::mem::take(&mut self.left_out))
    }
}

/// By user: who is refused all the time does not hide that others are.
#[derive(Default)]
struct LinesByUser {
    /// When the last line about each of them was; [`REFUSED_USERS_MAX`] at most.
    last_ns: HashMap<String, u64>,
    /// The same of all those who have no room there.
    others_ns: Option<u64>,
    /// Of everybody.
    left_out: u64,
}

impl LinesByUser {
    /// How many, of all users, were left out before this one; none: it is too soon for another about this user.
    fn next(&mut self, user: &str, now_ns: u64) -> Option<u64> {
        if self.last_ns.len() >= REFUSED_USERS_MAX && !self.last_ns.contains_key(user) {
            self.last_ns.retain(|_, last_ns| is_recent(*last_ns, now_ns));
        }
        let own_ns = self.last_ns.get(user).copied();
        let has_room = own_ns.is_some() || self.last_ns.len() < REFUSED_USERS_MAX;
        let last_ns = if has_room { own_ns } else { self.others_ns };
        if last_ns.is_some_and(|last_ns| is_recent(last_ns, now_ns)) {
            self.left_out += 1;
            return None;
        }
        if has_room {
            self.last_ns.insert(user.to_owned(), now_ns);
        } else {
            self.others_ns = Some(now_ns);
        }
        Some(std::mem::take(&mut self.left_out))
    }
}

/// Whether it is too soon for another line.
fn is_recent(last_ns: u64, now_ns: u64) -> bool {
    now_ns.saturating_sub(last_ns) < LINE_EVERY_NS
}

/// What became of those that said who they are: a metric, also where nobody is asked.
#[derive(Clone, Debug)]
pub struct Outcomes(Family<Outcome, Counter>);

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

impl Outcomes {
    pub fn register(registry: &mut Registry) -> Self {
        let outcomes = Self(Family::default());
        ["ok", "wrong", "undecided"].into_iter().for_each(|outcome| drop(outcomes.of(outcome)));
        let help = "Users that said who they are, by what became of it";
        registry.register("sextant_access_authentications", help, outcomes.0.clone());
        outcomes
    }

    fn of(&self, outcome: &'static str) -> Counter {
        self.0.get_or_create(&Outcome { outcome }).clone()
    }
}

impl Desk {
    /// Knows the superusers; the others as soon as [`Self::watch`] has loaded them.
    pub fn new(
        env: Env,
        config: &AccessConfig,
        keeper: Arc<dyn Keeper>,
        outcomes: Outcomes,
    ) -> Result<Arc<Self>> {
        config.validate()?;
        Ok(Arc::new(Self {
            comparisons: Comparisons::new(env.clone())?,
            env,
            keeper,
            superusers: config.superusers.clone(),
            known: ArcSwap::default(),
            generation: AtomicU64::new(1),
            looking: tokio::sync::Mutex::default(),
            outcomes,
            wrong_passwords: Mutex::default(),
            refusals: Mutex::default(),
        }))
    }

    /// Rises whenever rights may have changed: whoever remembers a principal asks [`Self::find`] again.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// A user by name, who has shown who it is before (or by a certificate). Whoever was let in by a password is this one only if it is
    /// there [`since`](Principal::since) the same generation.
    pub fn find(&self, name: &str) -> Option<Arc<Principal>> {
        if self.superusers.contains_key(name) {
            return Some(Arc::new(Principal { name: name.to_owned(), rights: Rights::all(), since: 0 }));
        }
        let known = self.known.load();
        let user = known.users.get(name).filter(|user| user.enabled)?;
        let (rights, since) = (user.rights.clone(), known.since_of(name));
        Some(Arc::new(Principal { name: name.to_owned(), rights, since }))
    }

    /// Who says nothing, if that is somebody.
    pub fn anonymous(&self) -> Option<Arc<Principal>> {
        let known = self.known.load();
        known.users.get(DEFAULT_USER).filter(|user| user.nopass)?;
        // (One of this name in the configuration is not the one in the list.)
        if self.superusers.contains_key(DEFAULT_USER) { None } else { self.find(DEFAULT_USER) }
    }

    /// Who `name` is, if this is its password. `from`: None: a Unix socket.
    pub async fn authenticate(
        &self,
        name: &str,
        password: &[u8],
        from: Option<SocketAddr>,
    ) -> Result<Arc<Principal>> {
        let authenticated = self.compare(name, password, from).await;
        match &authenticated {
            Ok(_) => self.count("ok"),
            Err(e) if e.kind == ErrorKind::Unauthenticated => {
                self.count("wrong");
                self.log(name, from);
            }
            Err(_) => self.count("undecided"),
        }
        authenticated
    }

    async fn compare(&self, name: &str, password: &[u8], from: Option<SocketAddr>) -> Result<Arc<Principal>> {
        if password.len() > password::PASSWORD_BYTES_MAX || check_name(name).is_err() {
            return Err(wrong());
        }
        let (user, since) = match self.superusers.get(name) {
            Some(phc) => (Some(superuser(phc)), 0),
            None => {
                let known = self.known.load();
                if !known.loaded {
                    return Err(Error::unavailable("the list of users is not known yet"));
                }
                (known.users.get(name).cloned(), known.since_of(name))
            }
        };
        // (Not one who has come to have the name meanwhile.)
        let found = || self.find(name).filter(|found| found.since == since).ok_or_else(wrong);
        let enabled = user.as_ref().is_some_and(|user| user.enabled);
        if enabled && user.as_ref().is_some_and(|user| user.nopass) {
            return found();
        }
        // Nobody is told whether a name is a user's, nor whether that has no password: it takes as long.
        let user = user.filter(|user| !user.nopass && !user.passwords.is_empty()).unwrap_or_else(nobody);
        let is_right = self.comparisons.knows(name, password, user, from).await?;
        match is_right && enabled {
            true => found(),
            false => Err(wrong()),
        }
    }

    /// All users of the cluster's list, as lines without secrets, and the superusers.
    pub fn list(&self) -> Vec<(String, String)> {
        let known = self.known.load();
        let supers = self.superusers.keys().map(|name| (name.clone(), "superuser".to_owned()));
        let others = known.users.iter().filter(|(name, _)| !self.superusers.contains_key(*name));
        supers.chain(others.map(|(name, user)| (name.to_owned(), user.words(false)))).collect()
    }

    /// One of the cluster's list.
    pub fn user(&self, name: &str) -> Option<User> {
        self.known.load().users.get(name).cloned()
    }

    /// Makes or changes a user, on behalf of `by`, who must be allowed to.
    pub async fn set(self: &Arc<Self>, by: &str, name: &str, words: Vec<String>) -> Result<()> {
        check_name(name)?;
        if self.superusers.contains_key(name) {
            return Err(Error::invalid(format!(
                "{name} is a superuser: the p-nodes' configuration says what it may"
            )));
        }
        self.change(|users| {
            let (name, words, rng) = (name.to_owned(), words.clone(), self.env.rng.clone());
            let changed = self.env.blocking(move || {
                let mut users = users;
                users.set(&name, &words, &*rng).map(|()| users)
            });
            async move {
                changed
                    .await
                    .unwrap_or_else(|| Err(Error::new(ErrorKind::Stopping, "the server is stopping")))
            }
        })
        .await?;
        tracing::info!(target: "audit", "{by} changed user {name}");
        Ok(())
    }

    /// Whether there was one.
    pub async fn remove(self: &Arc<Self>, by: &str, name: &str) -> Result<bool> {
        let mut was_there = false;
        self.change(|mut users| {
            was_there = users.remove(name);
            std::future::ready(Ok(users))
        })
        .await?;
        if was_there {
            tracing::info!(target: "audit", "{by} removed user {name}");
        }
        Ok(was_there)
    }

    /// The stored list, changed; as often as others change it meanwhile.
    async fn change<F>(&self, mut change: impl FnMut(Users) -> F) -> Result<()>
    where
        F: Future<Output = Result<Users>>,
    {
        for _ in 0..ROUNDS_MAX {
            let stored = self.keeper.load().await?;
            let (text, version) = stored.map_or((None, 0), |stored| (Some(stored.text), stored.version));
            let before = text.map_or(Ok(Users::default()), |text| Users::parse(&text, &*self.env.rng))?;
            let after = change(before.clone()).await?;
            if after == before && version != 0 {
                return self.refresh().await;
            }
            if self.keeper.store(after.to_text(), version).await? {
                return self.refresh().await;
            }
        }
        Err(Error::retry("others change the users all the time: try again"))
    }

    /// Loads the list, if it has changed.
    pub async fn refresh(&self) -> Result<()> {
        let _looking = self.looking.lock().await;
        let stored = self.keeper.load().await?;
        let version = stored.as_ref().map_or(0, |stored| stored.version);
        let known = self.known.load();
        if known.loaded && known.version == version {
            return Ok(());
        }
        let users = match stored {
            Some(stored) => Users::parse(&stored.text, &*self.env.rng)?,
            None => Users::default(),
        };
        let generation = self.generation() + 1;
        self.known.store(Arc::new(known.next(users, version, generation)));
        self.generation.store(generation, Ordering::Release);
        Ok(())
    }

    /// Keeps the list current, until it is dropped.
    pub async fn watch(self: Arc<Self>) {
        let mut failed = false;
        loop {
            match self.refresh().await {
                Ok(()) => failed = false,
                Err(e) if !failed => {
                    tracing::warn!("the list of users was not read; what was known of it counts: {e}");
                    failed = true;
                }
                Err(_) => {}
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn count(&self, outcome: &'static str) {
        self.outcomes.of(outcome).inc();
    }

    /// Somebody asked for what it may not have: `what` names a command or a kind of call, never a key. `from`: None: a Unix socket.
    pub fn refused(&self, user: &str, what: &str, from: Option<SocketAddr>) {
        let Some(left_out) = self.refusals.lock().next(user, self.env.clock.holder_ns()) else { return };
        tracing::warn!(target: "audit", "{}", refusal(user, what, from, left_out));
    }

    /// Names are data of who knocks: only plain ones are repeated.
    fn log(&self, name: &str, from: Option<SocketAddr>) {
        let Some(left_out) = self.wrong_passwords.lock().next(self.env.clock.holder_ns()) else { return };
        let name = if check_name(name).is_ok() { name } else { "a name that is none" };
        let from = shown(from);
        tracing::warn!(target: "audit", "wrong password for {name} from {from}; {left_out} more since the last such line");
    }
}

/// A line about one.
fn refusal(user: &str, what: &str, from: Option<SocketAddr>, left_out: u64) -> String {
    let from = shown(from);
    format!("refused to {user}: {what}; from {from}; {left_out} more since the last such line")
}

fn shown(from: Option<SocketAddr>) -> String {
    from.map_or_else(|| "an unknown address".to_owned(), |addr| addr.to_string())
}

impl std::fmt::Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Desk")
    }
}

/// `phc`: of its password, "" if it has none.
fn superuser(phc: &str) -> User {
    let passwords = Some(phc.to_owned()).filter(|phc| !phc.is_empty()).into_iter().collect();
    User { passwords, enabled: true, ..User::default() }
}

/// Somebody whose password is compared for as long as anybody's, and never right.
pub(crate) fn nobody() -> User {
    const PHC: &str =
        "$argon2id$v=19$m=19456,t=2,p=1$c2V4dGFudHNleHRhbnQ$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    User { passwords: vec![PHC.to_owned()], ..User::default() }
}

fn wrong() -> Error {
    Error::new(ErrorKind::Unauthenticated, "invalid username-password pair or user is disabled")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In memory; others may change it between a load and a store.
    #[derive(Default)]
    struct Memory {
        stored: Mutex<Option<Stored>>,
        interfere: Mutex<Vec<String>>,
    }

    impl Keeper for Memory {
        fn load(&self) -> BoxFuture<'_, Result<Option<Stored>>> {
            let stored = self.stored.lock().clone();
            if let Some(text) = self.interfere.lock().pop() {
                let version = stored.as_ref().map_or(0, |stored| stored.version) + 1;
                *self.stored.lock() = Some(Stored { text, version });
            }
            Box::pin(std::future::ready(Ok(stored)))
        }

        fn store(&self, text: String, expected: u64) -> BoxFuture<'_, Result<bool>> {
            let mut stored = self.stored.lock();
            let current = stored.as_ref().map_or(0, |stored| stored.version);
            if current == expected {
                *stored = Some(Stored { text, version: current + 1 });
            }
            Box::pin(std::future::ready(Ok(current == expected)))
        }
    }

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn desk(keeper: &Arc<Memory>) -> Arc<Desk> {
        let env = Env::real();
        let root = password::hash(b"root's", &*env.rng).unwrap();
        let outcomes = Outcomes::register(&mut Registry::default());
        let superusers = [("root".to_owned(), root), ("by-certificate".to_owned(), String::new())].into();
        Desk::new(env, &AccessConfig { superusers }, keeper.clone(), outcomes).unwrap()
    }

    #[test]
    fn refusals_are_told_once_a_second_and_those_between_are_counted() {
        let mut lines = Lines::default();
        let told =
            [0, 1, LINE_EVERY_NS - 1, LINE_EVERY_NS, 2 * LINE_EVERY_NS].map(|now_ns| lines.next(now_ns));
        assert_eq!(told, [Some(0), None, None, Some(2), Some(0)]);
    }

    #[test]
    fn a_line_about_a_refusal_says_to_whom_what_and_where_it_came_from() {
        assert_eq!(
            refusal("nobody", "get", Some(([192, 0, 2, 7], 4711).into()), 3),
            "refused to nobody: get; from 192.0.2.7:4711; 3 more since the last such line"
        );
        assert!(refusal("app", "a call", None, 0).contains("; from an unknown address; 0 more"));
    }

    #[test]
    fn who_is_refused_all_the_time_hides_no_other_users_refusals() {
        let mut lines = LinesByUser::default();
        assert_eq!([0, 1, 2].map(|now_ns| lines.next("flood", now_ns)), [Some(0), None, None]);
        assert_eq!(lines.next("alice", 3), Some(2));
        assert_eq!([4, LINE_EVERY_NS - 1].map(|now_ns| lines.next("flood", now_ns)), [None; 2]);
        assert_eq!(lines.next("alice", LINE_EVERY_NS), None, "it had one of its own");
        assert_eq!(lines.next("flood", LINE_EVERY_NS), Some(3));
    }

    #[test]
    fn of_too_many_users_the_last_ones_share_a_line_until_others_are_silent() {
        let mut lines = LinesByUser::default();
        for i in 0..REFUSED_USERS_MAX {
            assert_eq!(lines.next(&format!("user{i}"), 1), Some(0));
        }
        assert_eq!(lines.next("late", 2), Some(0));
        assert_eq!(["late", "later", "user0"].map(|user| lines.next(user, 3)), [None; 3]);
        assert_eq!(lines.last_ns.len(), REFUSED_USERS_MAX);
        // These have room again.
        let then_ns = 1 + LINE_EVERY_NS;
        assert_eq!(["late", "later"].map(|user| lines.next(user, then_ns)), [Some(3), Some(0)]);
        assert_eq!(lines.last_ns.len(), 2);
    }

    #[tokio::test]
    async fn users_are_made_by_one_and_known_to_all() {
        let keeper = Arc::new(Memory::default());
        let (one, two) = (desk(&keeper), desk(&keeper));
        // Before the list is known only superusers are.
        one.authenticate("root", b"root's", None).await.unwrap().may(crate::Class::Admin).unwrap();
        assert_eq!(one.authenticate("alice", b"a", None).await.unwrap_err().kind, ErrorKind::Unavailable);

        one.set("root", "alice", words("on >a ~app:* +@read")).await.unwrap();
        two.refresh().await.unwrap();
        for desk in [&one, &two] {
            let alice = desk.authenticate("alice", b"a", None).await.unwrap();
            alice.may_key(crate::Class::Read, "", b"app:1").unwrap();
            for refused in [
                alice.may_key(crate::Class::Read, "", b"other"),
                alice.may_key(crate::Class::Read, "table", b"app:1"),
                alice.may_key(crate::Class::Write, "", b"app:1"),
                alice.may(crate::Class::Admin),
                alice.may_scan("", b"", b""),
            ] {
                assert_eq!(refused.unwrap_err().kind, ErrorKind::Denied);
            }
            for (name, password) in
                [("alice", "b"), ("bob", "a"), ("root", "a"), ("by-certificate", ""), ("a b", "")]
            {
                let error = desk.authenticate(name, password.as_bytes(), None).await.unwrap_err();
                assert_eq!(error.kind, ErrorKind::Unauthenticated, "{name}");
            }
        }

        // Taken away: by name, and by what was remembered of the password.
        let before = two.generation();
        one.set("root", "alice", words("off")).await.unwrap();
        two.refresh().await.unwrap();
        assert!(two.generation() > before && two.find("alice").is_none());
        two.authenticate("alice", b"a", None).await.unwrap_err();
        assert!(one.remove("root", "alice").await.unwrap() && !one.remove("root", "alice").await.unwrap());
        assert!(one.set("root", "root", words("off")).await.is_err());
    }

    #[tokio::test]
    async fn changes_of_two_do_not_undo_each_other() {
        let keeper = Arc::new(Memory::default());
        let desk = desk(&keeper);
        let mut others = Users::default();
        others.set("bob", &words("on"), &*Env::real().rng).unwrap();
        keeper.interfere.lock().push(others.to_text());
        desk.set("root", "alice", words("on")).await.unwrap();
        let names: Vec<_> = desk.list().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["by-certificate", "root", "alice", "bob"]);
    }

    #[tokio::test]
    async fn a_user_that_is_made_anew_is_another_one_also_if_nobody_saw_it_go() {
        let keeper = Arc::new(Memory::default());
        let (here, there) = (desk(&keeper), desk(&keeper));
        here.set("root", "app", words("on >old")).await.unwrap();
        here.set("root", "other", words("on >x")).await.unwrap();
        there.refresh().await.unwrap();
        let since = |desk: &Desk, name| desk.find(name).map(|who| who.since);
        let [first, others] = ["app", "other"].map(|name| [&here, &there].map(|desk| since(desk, name)));
        assert_eq!(here.authenticate("app", b"old", None).await.unwrap().since, first[0].unwrap());

        // Whoever only changes is the same.
        for change in ["+@read ~*", "on >old", ">next", "<old", "off", "on"] {
            here.set("root", "app", words(change)).await.unwrap();
            there.refresh().await.unwrap();
        }
        assert_eq!([&here, &there].map(|desk| since(desk, "app")), first);

        // One of them does not look between the two.
        assert!(here.remove("root", "app").await.unwrap());
        assert_eq!(since(&here, "app"), None);
        here.set("root", "app", words("on >new")).await.unwrap();
        there.refresh().await.unwrap();
        for (desk, first) in [(&here, first[0]), (&there, first[1])] {
            assert!(since(desk, "app") > first);
            desk.authenticate("app", b"next", None).await.unwrap_err();
            assert_eq!(desk.authenticate("app", b"new", None).await.unwrap().since, desk.generation());
        }
        assert_eq!([&here, &there].map(|desk| since(desk, "other")), others);
        assert_eq!(since(&here, "root"), Some(0));
    }

    #[tokio::test]
    async fn whoever_says_nothing_is_not_the_superuser_of_that_name() {
        let keeper = Arc::new(Memory::default());
        let before = desk(&keeper);
        before.set("root", DEFAULT_USER, words("on nopass ~* +@read")).await.unwrap();
        assert!(before.anonymous().is_some());
        let env = Env::real();
        let superusers = [(DEFAULT_USER.to_owned(), password::hash(b"secret", &*env.rng).unwrap())].into();
        let outcomes = Outcomes::register(&mut Registry::default());
        let after = Desk::new(env, &AccessConfig { superusers }, keeper, outcomes).unwrap();
        after.refresh().await.unwrap();
        assert!(after.find(DEFAULT_USER).is_some() && after.anonymous().is_none());
    }

    #[tokio::test]
    async fn who_needed_no_password_is_another_one_when_it_needs_one() {
        let desk = desk(&Arc::new(Memory::default()));
        let set = async |rules: &str| {
            desk.set("root", "app", words(rules)).await.unwrap();
            desk.find("app").unwrap().since
        };
        let first = set("on >old").await;
        // Nobody is cut off by that.
        assert_eq!(set("nopass").await, first);
        assert_eq!(set("+@read ~*").await, first);
        assert_eq!(desk.authenticate("app", b"whatever", None).await.unwrap().since, first);
        // Whoever came in without a password is not the one who has it, though it were the same one as before.
        let second = set(">old").await;
        assert!(second > first);
        assert_eq!(set(">next").await, second);
        assert_eq!(desk.authenticate("app", b"old", None).await.unwrap().since, second);
        set("nopass").await;
        assert!(set("resetpass").await > second, "also if nobody can come in by one");
    }

    #[tokio::test]
    async fn a_list_that_cannot_be_read_changes_nothing() {
        let keeper = Arc::new(Memory::default());
        let desk = desk(&keeper);
        desk.set("root", "alice", words("on nopass")).await.unwrap();
        *keeper.stored.lock() = Some(Stored { text: "rubbish".into(), version: 77 });
        assert_eq!(desk.refresh().await.unwrap_err().kind, ErrorKind::Corrupt);
        assert!(desk.find("alice").is_some());
        assert_eq!(desk.set("root", "bob", words("on")).await.unwrap_err().kind, ErrorKind::Corrupt);
    }

    #[tokio::test]
    async fn who_says_nothing_is_the_default_user_if_that_needs_no_password() {
        let keeper = Arc::new(Memory::default());
        let desk = desk(&keeper);
        for (rules, is_let_in) in
            [("on", false), ("on >secret", false), ("on nopass +@read ~*", true), ("off", false)]
        {
            desk.set("root", "default", words(rules)).await.unwrap();
            assert_eq!(desk.anonymous().is_some(), is_let_in, "{rules}");
        }
    }

    #[test]
    fn a_configuration_that_lets_nobody_in_is_refused() {
        let with = |name: &str, phc: &str| {
            AccessConfig { superusers: [(name.to_owned(), phc.to_owned())].into() }.validate()
        };
        with("root", "").unwrap();
        assert!(AccessConfig::default().validate().is_err());
        assert!(with("a b", "").is_err() && with("root", "secret").is_err());
    }
}
