//! Whose word is taken for who a store is: Mozilla's authorities, which are on board, as an image from scratch has none; and one's own.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use sextant_common::error::{Error, Result};

/// `ca`: a file with authorities (PEM), which count beside the others.
pub fn trusting(ca: Option<&Path>) -> Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    if let Some(path) = ca {
        add(&mut roots, path)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| Error::internal(format!("tls: {e}")))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

fn add(roots: &mut RootCertStore, path: &Path) -> Result<()> {
    let bad = |why: &dyn std::fmt::Display| Error::invalid(format!("--store-ca {}: {why}", path.display()));
    let found: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(|certificates| certificates.collect::<Result<_, _>>())
        .map_err(|e| bad(&e))?;
    if found.is_empty() {
        return Err(bad(&"no certificate in it"));
    }
    found.into_iter().try_for_each(|certificate| roots.add(certificate).map_err(|e| bad(&e)))
}
