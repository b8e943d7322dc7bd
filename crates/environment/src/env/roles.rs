//! What each kind of server may ask the others for. Pure.
//!
//! A certificate opens the ports between servers; whose it is decides what for. Whoever got hold of a p-node's key can do what clients
//! and operators can, and neither vote nor delete tables.

use sextant_common::error::{Error, ErrorKind};

use super::handshake::{Party, PartyRole};

/// How paths of our services begin.
const PACKAGE: &str = "/sextant.v1.";

/// The callers of a method; None: there is no such method between servers.
pub fn callers(service: &str, method: &str) -> Option<&'static [PartyRole]> {
    use PartyRole::{Memtable, PNode, Sstable};
    let callers: &[PartyRole] = match (service, method) {
        // Before it starts a server asks whether another has its name; so does `sextant doctor`.
        ("Admin", "Status") => &[Memtable, Sstable, PNode],
        ("Admin" | "Rows" | "Lease", _) => &[PNode],
        ("Raft", _) => &[Memtable],
        ("Sst", "GetStream" | "Get" | "Scan" | "FetchFilter") => &[PNode],
        // Copies go from server to server; a backup is read through a p-node.
        ("Sst", "Fetch") => &[Sstable, PNode],
        // A p-node may ask, and not order: [`may_order`].
        ("Sst", "Inventory") => &[Memtable, PNode],
        (
            "Sst",
            "Ingest" | "Compact" | "CompactWatched" | "Copy" | "CopyWatched" | "Count" | "Holdings"
            | "Delete" | "ReleaseTables",
        ) => &[Memtable],
        _ => return None,
    };
    Some(callers)
}

/// Whether this caller may call a method. (What no server has is answered as such, to whomever: a newer server asks an older one.)
///
/// Tools are those of tests: no certificate is issued to one, so they come in where nobody has to show who it is.
pub(super) fn check(path: &str, from: Party, shows_certificate: bool) -> Result<(), Error> {
    let named = path.strip_prefix(PACKAGE).and_then(|rest| rest.split_once('/'));
    let Some((service, method)) = named else { return Ok(()) };
    let Some(callers) = callers(service, method) else { return Ok(()) };
    match from.role {
        PartyRole::Tool if !shows_certificate => Ok(()),
        role if callers.contains(&role) => Ok(()),
        _ => Err(Error::new(ErrorKind::Denied, format!("{from} may not call {service}.{method}"))),
    }
}

/// Whether what this caller says of tables is the leader's word, which decides what an sstable server keeps.
pub fn may_order(from: Option<Party>) -> bool {
    from.is_none_or(|from| matches!(from.role, PartyRole::Memtable | PartyRole::Tool))
}

#[cfg(test)]
mod tests {
    use sextant_common::ids::NodeId;

    use super::*;

    #[test]
    fn each_role_may_call_what_it_needs_and_nothing_else() {
        let id = NodeId(1);
        let (memtable, sstable, pnode) = (Party::memtable(id), Party::sstable(id), Party::pnode(id));
        let may = |method: &str| {
            let path = format!("/sextant.v1.{method}");
            [memtable, sstable, pnode].map(|from| check(&path, from, true).is_ok())
        };
        assert_eq!(may("Admin/Status"), [true, true, true]);
        for method in ["Admin/Recover", "Admin/ChangeVoters", "Rows/WriteStream", "Rows/Read", "Lease/Pull"] {
            assert_eq!(may(method), [false, false, true], "{method}");
        }
        for method in ["Raft/Vote", "Raft/StreamAppend", "Raft/InstallSnapshot"] {
            assert_eq!(may(method), [true, false, false], "{method}");
        }
        for method in ["Sst/Delete", "Sst/Ingest", "Sst/CopyWatched", "Sst/Holdings", "Sst/ReleaseTables"] {
            assert_eq!(may(method), [true, false, false], "{method}");
        }
        assert_eq!(may("Sst/Get"), [false, false, true]);
        assert_eq!(may("Sst/Fetch"), [false, true, true]);
        assert_eq!(may("Sst/Inventory"), [true, false, true]);
        // Unknown: whoever serves says so.
        for method in ["Sst/Later", "Later/Get", "Later"] {
            assert_eq!(may(method), [true, true, true], "{method}");
        }
        let refused = check("/sextant.v1.Raft/Vote", pnode, true).unwrap_err();
        assert_eq!((refused.kind, &*refused.message), (ErrorKind::Denied, "pnode-1 may not call Raft.Vote"));
    }

    #[test]
    fn a_tool_may_do_everything_where_nobody_shows_who_it_is_and_nothing_else() {
        check("/sextant.v1.Raft/Vote", Party::TOOL, false).unwrap();
        check("/sextant.v1.Raft/Vote", Party::TOOL, true).unwrap_err();
    }
}
