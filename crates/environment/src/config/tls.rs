//! Where a server's certificate is, and whose certificates it accepts.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The section `[tls]`. All files are PEM, and are read again when they change. A relative path starts where the file with this
/// section is. With it, every port of the server speaks TLS and nothing else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// The authorities whose certificates are accepted, of servers and of clients.
    pub ca: PathBuf,
    /// This server's certificate, and after it those that lead from it to an authority.
    pub cert: PathBuf,
    /// Its private key (PKCS #8, PKCS #1 or SEC 1), readable for the server only.
    pub key: PathBuf,
    /// Whether clients have to show a certificate. (Servers always have to.)
    #[serde(default)]
    pub clients: ClientCertificates,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientCertificates {
    #[default]
    Required,
    /// Who shows none may come in all the same; one that is shown must be good.
    Optional,
}

impl TlsConfig {
    /// With paths from where the process is, if they are from `dir` now.
    pub fn within(self, dir: &Path) -> Self {
        let from = |path: PathBuf| dir.join(path);
        Self { ca: from(self.ca), cert: from(self.cert), key: from(self.key), ..self }
    }
}
