//! Who a certificate says that its holder is: a URI among its subject alternative names (RFC 5280, section 4.2.1.6),
//! `sextant://<cluster>/<role>/<id>` for a server and `sextant://<cluster>/user/<name>` for a client.
//!
//! Not the host's name: servers move between hosts and addresses, and one host may carry several.

use std::fmt;

use sextant_common::ids::NodeId;

use super::handshake::{Party, PartyRole};

const SCHEME: &str = "sextant://";
const USER: &str = "user";

/// What one certificate states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Name of the cluster.
    pub cluster: String,
    pub holder: Holder,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    Server(Party),
    User(String),
}

impl Identity {
    pub fn server(cluster: &str, party: Party) -> Self {
        Self { cluster: cluster.to_owned(), holder: Holder::Server(party) }
    }

    pub fn user(cluster: &str, name: &str) -> Self {
        Self { cluster: cluster.to_owned(), holder: Holder::User(name.to_owned()) }
    }

    /// `None` for a URI of another kind.
    pub fn parse(uri: &str) -> Option<Self> {
        let mut parts = uri.strip_prefix(SCHEME)?.split('/');
        let (cluster, kind, name) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() || cluster.is_empty() || name.is_empty() {
            return None;
        }
        let holder = match kind {
            USER => Holder::User(unescaped(name)?),
            role => Holder::Server(Party { role: PartyRole::named(role)?, id: NodeId(name.parse().ok()?) }),
        };
        Some(Self { cluster: unescaped(cluster)?, holder })
    }
}

/// The URI.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/", escaped(&self.cluster))?;
        match &self.holder {
            Holder::Server(party) => write!(f, "{}/{}", party.role, party.id),
            Holder::User(name) => write!(f, "{USER}/{}", escaped(name)),
        }
    }
}

/// Percent-encoded (RFC 3986): all but unreserved characters.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => escaped.push(byte as char),
            other => escaped.push_str(&format!("%{other:02X}")),
        }
    }
    escaped
}

fn unescaped(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let mut digit = || (rest.next()? as char).to_digit(16);
        bytes.push(if byte == b'%' { (digit()? * 16 + digit()?) as u8 } else { byte });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again_whatever_the_names() {
        for identity in [
            Identity::server("prod", Party::memtable(NodeId(1))),
            Identity::server("a b/ü%", Party::pnode(NodeId(0))),
            Identity::user("prod", "alice"),
            Identity::user("prod", "../x y/é%2F"),
        ] {
            let uri = identity.to_string();
            assert!(uri.is_ascii() && uri.matches('/').count() == 4, "{uri}");
            assert_eq!(Identity::parse(&uri), Some(identity));
        }
        assert_eq!(
            Identity::server("prod", Party::sstable(NodeId(3))).to_string(),
            "sextant://prod/sstable/3"
        );
    }

    #[test]
    fn other_uris_name_nobody() {
        for uri in [
            "",
            "https://prod/memtable/1",
            "sextant://prod/memtable",
            "sextant://prod/memtable/",
            "sextant:///memtable/1",
            "sextant://prod/memtable/1/2",
            "sextant://prod/memtable/x",
            "sextant://prod/leader/1",
            "sextant://prod/user/%",
            "sextant://prod/user/%zz",
            "sextant://prod/user/%ff",
        ] {
            assert_eq!(Identity::parse(uri), None, "{uri}");
        }
    }
}
