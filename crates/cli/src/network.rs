//! Encrypted or not: the network that a server or a client is given.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sextant_client::Credentials;
use sextant_common::Error;
use sextant_environment::Env;
use sextant_environment::config::{ClientCertificates, TlsConfig, is_loopback};
use sextant_environment::env::{Network, Party, PartyRole};
use sextant_tls::{ClientFiles, TlsNetwork};

use crate::args::{TlsArgs, UserOptions};
use crate::exit::Failure;

/// What a server's configuration says about who may come in.
pub struct Posture<'a> {
    pub path: &'a Path,
    pub tls: Option<&'a TlsConfig>,
    pub cluster: &'a str,
    pub me: Party,
    /// Where it listens.
    pub listens: Vec<&'a str>,
    /// Whether its clients have to be users.
    pub has_users: bool,
    /// Whether an operator wants it open.
    pub insecure: bool,
}

impl Posture<'_> {
    /// The server's network. Its certificates are looked after from now on, in the background.
    pub fn network(self) -> Result<Arc<dyn Network>, Failure> {
        self.check()?;
        let env = Env::real();
        let Some(tls) = self.tls else { return Ok(env.net) };
        let tls = tls.clone().within(self.path.parent().unwrap_or(Path::new("")));
        let net = TlsNetwork::server(env, &tls, self.cluster, self.me).map_err(|e| of_tls(self.path, &e))?;
        tokio::spawn(net.watch());
        Ok(Arc::new(net))
    }

    /// Whoever can reach a port of a server can read and write everything, unless somebody has to show who they are.
    fn check(&self) -> Result<(), Failure> {
        let Some(open) = self.listens.iter().find(|addr| !is_loopback(addr)) else { return Ok(()) };
        let why = match self.tls {
            None if self.has_users => "passwords can be read on their way: add [tls]",
            None => "anybody who can reach it may read and write everything: add [tls]",
            Some(tls)
                if self.me.role == PartyRole::PNode
                    && tls.clients == ClientCertificates::Optional
                    && !self.has_users =>
            {
                "its clients need not show who they are: set clients = \"required\" in [tls], or add [access]"
            }
            Some(_) => return Ok(()),
        };
        if self.insecure {
            tracing::warn!("{} listens on {open}, and {why}", self.me);
            return Ok(());
        }
        let path = self.path.display();
        Err(Failure::usage(format!(
            "{path}: it listens on {open}, and {why} (docs/security.md), or start it with --insecure"
        )))
    }
}

/// Wrong files are a mistake; a certificate outside of its time is tried again: the clock may not be set yet.
fn of_tls(path: &Path, e: &Error) -> Failure {
    Failure::from(Error::new(e.kind, format!("{}: {}", path.display(), e.message)))
}

/// A file that an option names, or else a variable.
fn said(option: &Option<PathBuf>, variable: &str) -> Option<PathBuf> {
    let named = || std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    option.clone().or_else(named)
}

/// Whether a client command is to connect with TLS.
pub fn is_encrypted(args: &TlsArgs) -> bool {
    said(&args.tls_ca, "SEXTANT_TLS_CA").is_some()
}

/// What a client command runs in.
pub fn client(args: &TlsArgs) -> Result<Env, Failure> {
    let cert = said(&args.tls_cert, "SEXTANT_TLS_CERT");
    let key = said(&args.tls_key, "SEXTANT_TLS_KEY");
    let shown = match (cert, key) {
        (Some(cert), Some(key)) => Some((cert, key)),
        (None, None) => None,
        _ => return Err(Failure::usage("--tls-cert and --tls-key belong together")),
    };
    let Some(ca) = said(&args.tls_ca, "SEXTANT_TLS_CA") else {
        return match shown {
            None => Ok(Env::real()),
            Some(_) => Err(Failure::usage("--tls-cert without --tls-ca: which authority is the server's?")),
        };
    };
    let net = TlsNetwork::client(Env::real(), ClientFiles { ca, shown }, "")
        .map_err(|e| Failure::usage(e.message))?;
    Ok(Env { net: Arc::new(net), ..Env::real() })
}

/// Who a client command is, if it is somebody by a password.
pub fn credentials(options: &UserOptions) -> Result<Option<Credentials>, Failure> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let Some(user) = options.user.clone().or_else(|| variable("SEXTANT_USER")) else {
        return match options.password_file {
            None => Ok(None),
            Some(_) => Err(Failure::usage("--password-file without --user: whose is it?")),
        };
    };
    let password = match &options.password_file {
        Some(path) => {
            let text = std::fs::read_to_string(path);
            let text = text.map_err(|e| Failure::usage(format!("{}: {e}", path.display())))?;
            text.lines().next().unwrap_or_default().to_owned()
        }
        None => variable("SEXTANT_PASSWORD").ok_or_else(|| {
            Failure::usage(format!(
                "user {user}: where is the password? --password-file, or SEXTANT_PASSWORD"
            ))
        })?,
    };
    Ok(Some(Credentials { user, password }))
}

#[cfg(test)]
mod tests {
    use sextant_common::ids::NodeId;

    use super::*;

    fn refused(tls: Option<&TlsConfig>, me: Party, listens: &[&str], insecure: bool) -> Option<String> {
        asked(tls, me, listens, false, insecure)
    }

    fn asked(
        tls: Option<&TlsConfig>,
        me: Party,
        listens: &[&str],
        has_users: bool,
        insecure: bool,
    ) -> Option<String> {
        let posture = Posture {
            path: Path::new("c.toml"),
            tls,
            cluster: "c",
            me,
            listens: listens.to_vec(),
            has_users,
            insecure,
        };
        posture.check().err().map(|e| format!("{e:?}"))
    }

    #[test]
    fn what_others_can_reach_is_not_open_by_mistake() {
        let tls = |clients| TlsConfig { ca: "ca".into(), cert: "c".into(), key: "k".into(), clients };
        let (required, optional) = (tls(ClientCertificates::Required), tls(ClientCertificates::Optional));
        let (memtable, pnode) = (Party::memtable(NodeId(1)), Party::pnode(NodeId(1)));
        let (here, everywhere) = (["127.0.0.1:1", "[::1]:2"], ["127.0.0.1:1", "0.0.0.0:2"]);
        for me in [memtable, pnode] {
            assert_eq!(refused(None, me, &here, false), None);
            assert_eq!(refused(None, me, &everywhere, true), None);
            assert_eq!(refused(Some(&required), me, &everywhere, false), None);
            let why = refused(None, me, &everywhere, false).unwrap();
            assert!(why.contains("0.0.0.0:2") && why.contains("--insecure"), "{why}");
        }
        // Members show a certificate whatever is asked of clients.
        assert_eq!(refused(Some(&optional), memtable, &everywhere, false), None);
        assert!(refused(Some(&optional), pnode, &everywhere, false).unwrap().contains("clients = "));
        assert_eq!(asked(Some(&optional), pnode, &everywhere, true, false), None);
        assert!(asked(None, pnode, &everywhere, true, false).unwrap().contains("passwords can be read"));
    }
}
