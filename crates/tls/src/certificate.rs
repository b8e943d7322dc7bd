//! What a certificate says, beyond what TLS itself looks at.

use std::time::Duration;

use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, RootCertStore};
use sextant_common::error::{Error, Result};
use sextant_environment::env::Identity;

/// Of whom it is, if it names somebody of a cluster. The chain is not looked at.
pub(crate) fn identity_of(certificate: &CertificateDer<'_>) -> Option<Identity> {
    let names = webpki::EndEntityCert::try_from(certificate).ok()?;
    let mut names = names.valid_uri_names();
    names.find_map(Identity::parse)
}

/// The host names of the first certificate of a PEM file. (Not its addresses, which whoever verifies certificates does not tell.)
pub fn host_names(pem: &str) -> Result<Vec<String>> {
    let unreadable =
        |e: &dyn std::fmt::Display| Error::invalid(format!("no certificate that can be read: {e}"));
    let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|e| unreadable(&e))?;
    let names = webpki::EndEntityCert::try_from(&certificate).map_err(|e| unreadable(&e))?;
    Ok(names.valid_dns_names().map(str::to_owned).collect())
}

/// Whether a certificate was refused because of the time only: the clock may be set soon, or the files renewed.
pub(crate) fn is_untimely(e: &rustls::Error) -> bool {
    use CertificateError::{Expired, ExpiredContext, NotValidYet, NotValidYetContext};
    matches!(
        e,
        rustls::Error::InvalidCertificate(
            Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. }
        )
    )
}

/// Whether a server's chain leads to an authority, now; and when the first certificate of it expires, in seconds since 1970.
pub(crate) fn check(
    chain: &[CertificateDer<'_>],
    roots: &RootCertStore,
    algorithms: &WebPkiSupportedAlgorithms,
    now: UnixTime,
) -> Result<u64, rustls::Error> {
    let Some((leaf, between)) = chain.split_first() else {
        return Err(rustls::Error::NoCertificatesPresented);
    };
    let parsed = ParsedCertificate::try_from(leaf)?;
    let at = |time| verify_server_cert_signed_by_trust_anchor(&parsed, roots, between, time, algorithms.all);
    at(now)?;
    // Asked whether it is good at the end of all days, a verifier says until when it is.
    match at(UnixTime::since_unix_epoch(Duration::from_secs(u64::from(u32::MAX) * 64))) {
        Err(rustls::Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. })) => {
            Ok(not_after.as_secs())
        }
        _ => Ok(u64::MAX),
    }
}
