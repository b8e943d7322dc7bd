//! The PEM files: what is in them, as far as it was readable.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sextant_common::error::{Error, Result};
use sextant_environment::config::TlsConfig;

/// More than any chain, bundle or key has; a device or a log that was named by mistake is not read to its end.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// What a client needs: an authority, and what it shows, if anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientFiles {
    pub ca: PathBuf,
    /// Certificate and key.
    pub shown: Option<(PathBuf, PathBuf)>,
}

/// Where everything is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    ca: PathBuf,
    shown: Option<(PathBuf, PathBuf)>,
}

/// The bytes of all files, to see whether they changed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Contents {
    ca: Vec<u8>,
    shown: Option<(Vec<u8>, Vec<u8>)>,
}

/// A certificate with its chain, and its key.
pub(crate) struct Shown {
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
}

impl From<&TlsConfig> for Files {
    fn from(config: &TlsConfig) -> Self {
        Self { ca: config.ca.clone(), shown: Some((config.cert.clone(), config.key.clone())) }
    }
}

impl From<ClientFiles> for Files {
    fn from(files: ClientFiles) -> Self {
        Self { ca: files.ca, shown: files.shown }
    }
}

impl Files {
    pub(crate) fn read(&self) -> Result<Contents> {
        let shown = match &self.shown {
            Some((cert, key)) => Some((read(cert)?, read(key)?)),
            None => None,
        };
        Ok(Contents { ca: read(&self.ca)?, shown })
    }

    pub(crate) fn roots(&self, contents: &Contents) -> Result<Arc<RootCertStore>> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.ca, &contents.ca)? {
            roots.add(certificate).map_err(|e| bad(&self.ca, &e))?;
        }
        Ok(Arc::new(roots))
    }

    pub(crate) fn shown(&self, contents: &Contents) -> Result<Option<Shown>> {
        let (Some((cert, key)), Some((cert_pem, key_pem))) = (&self.shown, &contents.shown) else {
            return Ok(None);
        };
        let chain = certificates(cert, cert_pem)?;
        let key = PrivateKeyDer::from_pem_slice(key_pem).map_err(|e| bad(key, &e))?;
        Ok(Some(Shown { chain, key }))
    }

    /// The certificate's file, for messages.
    pub(crate) fn cert(&self) -> &Path {
        self.shown.as_ref().map_or(&self.ca, |(cert, _)| cert)
    }
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let certificates: Vec<_> =
        CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|e| bad(path, &e))?;
    if certificates.is_empty() {
        return Err(bad(path, &"no certificate in it"));
    }
    Ok(certificates)
}

#[allow(clippy::disallowed_methods, reason = "configuration, read at start and on a thread of its own")]
fn read(path: &Path) -> Result<Vec<u8>> {
    let length = std::fs::metadata(path).map_err(|e| bad(path, &e))?.len();
    if length > FILE_BYTES_MAX {
        return Err(bad(path, &format!("{length} bytes are more than a certificate or a key has")));
    }
    std::fs::read(path).map_err(|e| bad(path, &e))
}

pub(crate) fn bad(path: &Path, why: &dyn std::fmt::Display) -> Error {
    Error::invalid(format!("tls: {}: {why}", path.display()))
}

/// Not the time of the file: that may be another one soon, by the file or by the clock.
pub(crate) fn untimely(path: &Path, why: &dyn std::fmt::Display) -> Error {
    Error::unavailable(format!("tls: {}: {why}, by this machine's clock", path.display()))
}
