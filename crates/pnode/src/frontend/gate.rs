//! Who calls over gRPC, and what it may do.

use std::net::SocketAddr;
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use sextant_access::{Allowance, Allowances, Class, Desk, Place, Principal};
use sextant_common::operation::{Effect, Operation, Returns, Update};
use sextant_common::{Error, ErrorKind, Result};
use sextant_environment::env::{Caller, Hangup, Holder};
use sextant_environment::freight::Freight;
use tokio::sync::OwnedSemaphorePermit;
use tonic::Request;
use tonic::codegen::http::header::AUTHORIZATION;
use tonic::codegen::http::{Extensions, HeaderMap, HeaderValue};
use tonic::metadata::MetadataValue;

pub(crate) use crate::tables::is_for_clients;

/// Whose limits count where clients need not be users.
const DEFAULT_USER: &str = "default";

#[derive(Clone)]
pub(crate) struct Gate {
    /// Without one everybody may do everything.
    pub desk: Option<Arc<Desk>>,
    pub allowances: Arc<Allowances>,
}

/// How a caller has said who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// Another user of that name is not meant.
    Password,
    /// Whoever has the name is meant.
    Certificate,
    /// It has said nothing.
    Nothing,
}

/// Who makes a call that is not read yet.
#[derive(Clone)]
pub(super) struct Known {
    principal: Arc<Principal>,
    by: By,
    /// Where it comes from. None: a Unix socket.
    from: Option<SocketAddr>,
    /// Of the desk, when it was asked.
    generation: u64,
}

/// A call of a user who has limits, for as long as it is there.
pub(super) struct Entered {
    allowance: Arc<Allowance>,
    _place: Place,
}

impl Entered {
    /// What a request carries, until it is answered.
    pub fn carry(&self, bytes: usize) -> Result<Option<OwnedSemaphorePermit>> {
        self.allowance.try_carry(bytes)
    }
}

/// Who makes a call, until it is answered.
pub(crate) struct Who {
    /// None: there is no access control.
    principal: Option<Arc<Principal>>,
    by: By,
    /// As of [`Known`].
    from: Option<SocketAddr>,
    /// None: it has no limits.
    limits: Option<Arc<Entered>>,
    /// Whom an operator's certificate names, where nobody has to be a user.
    certified: Option<String>,
    /// Which is told what was refused.
    desk: Option<Arc<Desk>>,
    /// Of the desk, from before the user was found.
    generation: u64,
    /// Of its connection.
    hangup: Option<Hangup>,
}

impl Gate {
    /// By user and password (`authorization: Basic`, RFC 7617), or else by certificate.
    pub async fn who<T>(&self, request: &Request<T>) -> Result<Who> {
        let generation = self.desk.as_ref().map_or(0, |desk| desk.generation());
        let (principal, by) = self.principal(request).await?;
        let limits = match request.extensions().get::<Arc<Entered>>() {
            Some(entered) => Some(entered.clone()),
            // (Whoever was let in by its head and has none has no limits.)
            None if request.extensions().get::<Known>().is_some() => None,
            None => self.entered(principal.as_deref())?,
        };
        let caller = request.extensions().get::<Caller>();
        let hangup = caller.and_then(|caller| caller.hangup.clone());
        let (desk, from) = (self.desk.clone(), address(caller));
        Ok(Who { principal, by, from, limits, certified: None, desk, generation, hangup })
    }

    /// Counts a call that is not read yet. None: its user has no limits.
    pub(super) fn enter(&self, known: Option<&Known>) -> Result<Option<Arc<Entered>>> {
        self.entered(known.map(|known| &*known.principal))
    }

    fn entered(&self, principal: Option<&Principal>) -> Result<Option<Arc<Entered>>> {
        let user = principal.map_or(DEFAULT_USER, |who| &who.name);
        let Some(allowance) = self.allowances.of(user) else { return Ok(None) };
        allowance.pay_or_refuse()?;
        let place = allowance.enter()?;
        Ok(Some(Arc::new(Entered { allowance, _place: place })))
    }

    /// Whether a call that is not read yet is of somebody who may administrate.
    pub(super) fn is_operator(&self, known: Option<&Known>) -> Result<()> {
        let (Some(known), Some(desk)) = (known, &self.desk) else { return Ok(()) };
        let who = &known.principal;
        who.may(Class::Admin).inspect_err(|_| desk.refused(&who.name, "administration", known.from))
    }

    /// The same for administration, which no limit keeps away: it may be what ends a crowd.
    pub async fn operator<T>(&self, request: &Request<T>) -> Result<Who> {
        let generation = self.desk.as_ref().map_or(0, |desk| desk.generation());
        let (principal, by) = self.principal(request).await?;
        let caller = request.extensions().get::<Caller>();
        let shown = caller.and_then(|caller| caller.identity.as_deref());
        let certified = shown.filter(|_| principal.is_none()).map(ToString::to_string);
        let (desk, from) = (self.desk.clone(), address(caller));
        Ok(Who { principal, by, from, limits: None, certified, desk, generation, hangup: None })
    }

    /// Who makes a call, by its head. None: that is not asked.
    pub(super) async fn know(&self, headers: &HeaderMap, extensions: &Extensions) -> Result<Option<Known>> {
        let Some(desk) = &self.desk else { return Ok(None) };
        let generation = desk.generation();
        let said = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
        let caller = extensions.get::<Caller>();
        let (principal, by) = ask(desk, said, caller).await?;
        Ok(Some(Known { principal, by, from: address(caller), generation }))
    }

    async fn principal<T>(&self, request: &Request<T>) -> Result<(Option<Arc<Principal>>, By)> {
        let Some(desk) = &self.desk else { return Ok((None, By::Nothing)) };
        let (principal, by) = match request.extensions().get::<Known>() {
            Some(known) if known.generation == desk.generation() => (known.principal.clone(), known.by),
            // Rights have changed while the rest of the call came.
            Some(known) => (still_there(desk, &known.principal, known.by)?, known.by),
            None => {
                let said = request.metadata().get(AUTHORIZATION.as_str()).map(MetadataValue::as_bytes);
                ask(desk, said, request.extensions().get::<Caller>()).await?
            }
        };
        Ok((Some(principal), by))
    }
}

fn address(caller: Option<&Caller>) -> Option<SocketAddr> {
    caller.and_then(|caller| caller.addr)
}

/// `said`: the header `authorization`.
async fn ask(desk: &Desk, said: Option<&[u8]>, caller: Option<&Caller>) -> Result<(Arc<Principal>, By)> {
    if let Some((name, password)) = credentials(said)? {
        return Ok((desk.authenticate(&name, &password, address(caller)).await?, By::Password));
    }
    let shown = caller.and_then(|caller| caller.identity.as_deref());
    let (named, by) = match shown.map(|shown| &shown.holder) {
        Some(Holder::User(name)) => (desk.find(name), By::Certificate),
        // Servers are no users.
        _ => (desk.anonymous(), By::Nothing),
    };
    let named = named.ok_or_else(|| {
        desk.refused("nobody", "a call", address(caller));
        let why = "say who you are: a user's certificate, or name and password";
        Error::new(ErrorKind::Unauthenticated, why)
    })?;
    Ok((named, by))
}

/// As it is now.
fn still_there(desk: &Desk, who: &Principal, by: By) -> Result<Arc<Principal>> {
    let now = match by {
        By::Password => desk.find(&who.name).filter(|now| now.since == who.since),
        By::Certificate => desk.find(&who.name),
        By::Nothing => desk.anonymous(),
    };
    now.ok_or_else(|| Error::new(ErrorKind::Denied, "the user is not there any more"))
}

impl Who {
    /// Whether who was let in may still do so, as far as its user is there and has the right: a stream goes on for long.
    pub fn may_still(&self, class: Class) -> Result<()> {
        let (Some(desk), Some(principal)) = (&self.desk, &self.principal) else { return Ok(()) };
        if desk.generation() == self.generation {
            return Ok(());
        }
        still_there(desk, principal, self.by)?.may(class)
    }

    /// Whether who was let in to read a range still may. Asks nothing while rights stay as they were.
    pub fn may_still_scan(&self, table: &str, start: &[u8], end: &[u8]) -> Result<()> {
        let (Some(desk), Some(principal)) = (&self.desk, &self.principal) else { return Ok(()) };
        if desk.generation() == self.generation {
            return Ok(());
        }
        still_there(desk, principal, self.by)?.may_scan(table, start, end)
    }

    /// What a request carries, until it is answered.
    pub fn carry(&self, bytes: usize) -> Result<Option<OwnedSemaphorePermit>> {
        self.limits.as_ref().map_or(Ok(None), |entered| entered.carry(bytes))
    }

    /// What an answer holds, for as long as its user is counted: and its connection ends if it is not taken, if that matters then.
    pub fn freight(&self, matters: impl Fn() -> bool + Send + Sync + 'static) -> Freight {
        let freight = Freight::default();
        self.limits.iter().for_each(|entered| freight.add(entered.clone()));
        match &self.hangup {
            Some(hangup) => freight.within(hangup.clone(), matters),
            None => freight,
        }
    }

    /// For logs.
    pub fn name(&self) -> &str {
        let certified = self.certified.as_deref().unwrap_or("anybody");
        self.principal.as_ref().map_or(certified, |who| &who.name)
    }

    /// `what`, for the audit log: neither keys nor values.
    fn may_if(&self, what: &str, may: impl FnOnce(&Principal) -> Result<()>) -> Result<()> {
        let Some(who) = &self.principal else { return Ok(()) };
        may(who).inspect_err(|_| {
            if let Some(desk) = &self.desk {
                desk.refused(&who.name, what, self.from);
            }
        })
    }

    pub fn may(&self, class: Class, what: &str) -> Result<()> {
        self.may_if(what, |who| who.may(class))
    }

    /// Whether it may do whatever administrators may. (No refusal: nothing is told of it.)
    pub fn administers(&self) -> bool {
        self.principal.as_ref().is_none_or(|who| who.may(Class::Admin).is_ok())
    }

    pub fn may_key(&self, class: Class, table: &str, key: &[u8]) -> Result<()> {
        is_for_clients(table)?;
        let what = match class {
            Class::Read => "to read a key",
            Class::Write => "to write a key",
            Class::Admin => "administration",
            Class::Dangerous => "to remove everything",
        };
        self.may_if(what, |who| who.may_key(class, table, key))
    }

    /// A conditional write tells what was there: that is reading too.
    pub fn may_write(&self, op: &Operation) -> Result<()> {
        self.may_key(Class::Write, &op.table, &op.key)?;
        // All of these tell what is there; of a sum it is enough to know whether it overflows.
        let adds = matches!(&op.effect, Effect::Update(Update::Increment(_) | Update::IncrementDecimal(_)));
        let reads = adds || op.condition.value().is_some() || op.returns != Returns::Nothing;
        if reads { self.may_key(Class::Read, &op.table, &op.key) } else { Ok(()) }
    }

    pub fn may_scan(&self, table: &str, start: &[u8], end: &[u8]) -> Result<()> {
        is_for_clients(table)?;
        self.may_if("to read a range", |who| who.may_scan(table, start, end))
    }
}

/// Name and password, if the call has them.
fn credentials(header: Option<&[u8]>) -> Result<Option<(String, Vec<u8>)>> {
    let Some(header) = header else { return Ok(None) };
    let unreadable =
        || Error::new(ErrorKind::Unauthenticated, "authorization: Basic, and name:password in base64");
    let encoded = std::str::from_utf8(header).ok().and_then(|text| text.split_once(' '));
    let (_, encoded) =
        encoded.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("basic")).ok_or_else(unreadable)?;
    let said = BASE64_STANDARD.decode(encoded.trim()).map_err(|_| unreadable())?;
    let colon = said.iter().position(|byte| *byte == b':').ok_or_else(unreadable)?;
    let name = String::from_utf8(said[..colon].to_vec()).map_err(|_| unreadable())?;
    Ok(Some((name, said[colon + 1..].to_vec())))
}

#[cfg(test)]
pub(in crate::frontend) use tests::gate_of;

#[cfg(test)]
mod tests {
    use futures::future::BoxFuture;
    use parking_lot::Mutex;
    use prometheus_client::registry::Registry;
    use sextant_access::{Keeper, LimitsConfig, Outcomes, Stored};
    use sextant_environment::Env;
    use sextant_environment::env::Identity;

    use super::*;

    /// The list of users.
    #[derive(Default)]
    struct Memory(Mutex<Option<Stored>>);

    impl Keeper for Memory {
        fn load(&self) -> BoxFuture<'_, Result<Option<Stored>>> {
            Box::pin(std::future::ready(Ok(self.0.lock().clone())))
        }

        fn store(&self, text: String, expected: u64) -> BoxFuture<'_, Result<bool>> {
            *self.0.lock() = Some(Stored { text, version: expected + 1 });
            Box::pin(std::future::ready(Ok(true)))
        }
    }

    /// With a superuser `root` who has this hash, and a desk that knows no other yet.
    pub(in crate::frontend) fn gate_of(root: &str) -> (Gate, Arc<Desk>) {
        let (env, mut registry) = (Env::real(), Registry::default());
        let access = serde_json::from_value(serde_json::json!({ "superusers": { "root": root } })).unwrap();
        let outcomes = Outcomes::register(&mut registry);
        let desk = Desk::new(env.clone(), &access, Arc::new(Memory::default()), outcomes).unwrap();
        let allowances = Allowances::new(env.clock.clone(), LimitsConfig::default(), &mut registry);
        (Gate { desk: Some(desk.clone()), allowances }, desk)
    }

    #[tokio::test]
    async fn a_call_under_way_goes_on_as_long_as_its_caller_would_be_let_in_as_the_same() {
        let (gate, desk) = gate_of("");
        let set = async |name: &str, words: &str| {
            let words = words.split_whitespace().map(str::to_owned).collect();
            desk.set("root", name, words).await.unwrap();
        };
        set("default", "on nopass ~* +@read").await;
        let silent = Request::new(());
        let mut certified = Request::new(());
        let identity = Some(Arc::new(Identity::user("test", "default")));
        certified.extensions_mut().insert(Caller { identity, ..Caller::default() });
        let mut named = Request::new(());
        let said = format!("Basic {}", BASE64_STANDARD.encode("default:whatever"));
        named.metadata_mut().insert("authorization", said.parse().unwrap());
        let mut callers = Vec::new();
        for request in [silent, certified, named] {
            callers.push(gate.who(&request).await.unwrap());
        }
        let may = || {
            let may =
                |who: &Who| who.may_still_scan("", b"", b"").is_ok() && who.may_still(Class::Read).is_ok();
            callers.iter().map(may).collect::<Vec<_>>()
        };
        assert_eq!(may(), [true; 3]);
        for (name, words) in [("other", "on"), ("default", "+@write")] {
            set(name, words).await;
            assert_eq!(may(), [true; 3], "{name} {words}");
        }
        set("default", "-@read").await;
        assert_eq!(may(), [false; 3]);
        set("default", "+@read").await;
        assert_eq!(may(), [true; 3]);
        set("default", ">secret").await;
        assert_eq!(may(), [false, true, false], "nobody would be let in without a word");
        set("default", "nopass").await;
        assert_eq!(may(), [true, true, false]);
        set("default", "off").await;
        assert_eq!(may(), [false; 3]);
    }

    #[tokio::test]
    async fn where_a_call_comes_from_is_known_for_what_is_refused_to_it() {
        let (gate, _desk) = gate_of("");
        let addr = Some(SocketAddr::from(([192, 0, 2, 7], 4711)));
        let mut request = Request::new(());
        let identity = Some(Arc::new(Identity::user("test", "root")));
        request.extensions_mut().insert(Caller { addr, identity, hangup: None });
        let known = gate.know(&HeaderMap::new(), request.extensions()).await.unwrap().unwrap();
        assert_eq!(known.from, addr);
        assert_eq!(gate.who(&request).await.unwrap().from, addr);
        assert_eq!(gate.operator(&request).await.unwrap().from, addr);
    }

    #[test]
    fn credentials_are_basic_ones() {
        let read = |header: &str| credentials(Some(header.as_bytes()));
        assert_eq!(read("Basic YWxpY2U6YTpi").unwrap(), Some(("alice".into(), b"a:b".to_vec())));
        assert_eq!(read("basic YWxpY2U6").unwrap(), Some(("alice".into(), Vec::new())));
        for bad in ["Basic", "Bearer abc", "Basic !!", "Basic YWxpY2U=", "YWxpY2U6YTpi"] {
            assert_eq!(read(bad).unwrap_err().kind, ErrorKind::Unauthenticated, "{bad}");
        }
        assert_eq!(credentials(None).unwrap(), None);
    }
}
