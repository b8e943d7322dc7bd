//! A private authority for one cluster, for tests and small set-ups: ECDSA on P-256, as every TLS library has it.
//!
//! Larger ones have an authority already: all that is needed of it is a URI among a certificate's names
//! ([`Identity`]).

use std::time::Duration;

use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use sextant_common::error::{Error, Result};
use sextant_environment::env::{Holder, Identity, PartyRole};

/// Whose clock is behind by less than this may use a certificate at once.
const BACKDATED: Duration = Duration::from_secs(3600);
const DAY: u64 = 86_400;
/// A hundred years.
pub const DAYS_MAX: u64 = 36_500;
/// A certificate's subject has at most 64 characters (RFC 5280, upper bounds).
const NAME_CHARACTERS_MAX: usize = 64;

/// A certificate and its private key, both PEM.
pub struct Issued {
    pub cert: String,
    pub key: String,
}

/// Issues certificates.
pub struct Authority {
    cluster: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// A new one, from `now_s` (seconds since 1970) on.
    pub fn create(cluster: &str, now_s: u64, days: u64) -> Result<Issued> {
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = authority_params(cluster, &key)?;
        set_validity(&mut params, now_s, days)?;
        let cert = params.self_signed(&key).map_err(failed)?;
        Ok(Issued { cert: cert.pem(), key: key.serialize_pem() })
    }

    /// One that [`Authority::create`] has made.
    pub fn load(cert: &str, key: &str) -> Result<Self> {
        let wrong = || Error::invalid("this is no certificate of an authority that `sextant cert` has made");
        let der = CertificateDer::from_pem_slice(cert.as_bytes()).map_err(|_| wrong())?;
        let Some(Identity { cluster, holder: Holder::User(user) }) = crate::certificate::identity_of(&der)
        else {
            return Err(wrong());
        };
        if user != AUTHORITY {
            return Err(wrong());
        }
        let key = KeyPair::from_pem(key).map_err(failed)?;
        let issuer = Issuer::new(authority_params(&cluster, &key)?, key);
        Ok(Self { cluster, issuer })
    }

    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// A certificate for who `holder` is. `hosts` are names and addresses under which clients reach a server; the local ones are always
    /// among them.
    pub fn issue(&self, holder: Holder, hosts: &[String], now_s: u64, days: u64) -> Result<Issued> {
        let identity = Identity { cluster: self.cluster.clone(), holder };
        let mut names = hosts.to_vec();
        if let Holder::Server(_) = identity.holder {
            names.extend(["localhost", "127.0.0.1", "::1"].map(str::to_owned));
        }
        names.sort();
        names.dedup();
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = CertificateParams::new(names).map_err(failed)?;
        params.distinguished_name = Default::default();
        let name = match &identity.holder {
            Holder::Server(party) => party.to_string(),
            Holder::User(name) => name.clone(),
        };
        params.distinguished_name.push(DnType::CommonName, shortened(&name));
        params.subject_alt_names.push(uri(&identity)?);
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = match &identity.holder {
            // What has no port shows itself as a client only.
            Holder::Server(party) if party.role != PartyRole::Tool => {
                vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth]
            }
            _ => vec![ExtendedKeyUsagePurpose::ClientAuth],
        };
        set_validity(&mut params, now_s, days)?;
        let cert = params.signed_by(&key, &self.issuer).map_err(failed)?;
        Ok(Issued { cert: cert.pem(), key: key.serialize_pem() })
    }
}

/// The name that says that a certificate is the authority's own. Nobody else gets it: it is not a user's.
const AUTHORITY: &str = "sextant authority";

/// Its name has a part of its key, so that two authorities of one cluster are told apart.
fn authority_params(cluster: &str, key: &KeyPair) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(Vec::new()).map_err(failed)?;
    params.distinguished_name = Default::default();
    params.distinguished_name.push(DnType::OrganizationName, "Sextant");
    params.distinguished_name.push(DnType::CommonName, shortened(&format!("authority of {cluster}")));
    let part: String =
        key.public_key_raw().iter().skip(1).take(8).map(|byte| format!("{byte:02x}")).collect();
    params.distinguished_name.push(DnType::OrganizationalUnitName, part);
    params.subject_alt_names.push(uri(&Identity::user(cluster, AUTHORITY))?);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

fn set_validity(params: &mut CertificateParams, now_s: u64, days: u64) -> Result<()> {
    if days == 0 || days > DAYS_MAX {
        return Err(Error::invalid(format!("days: 1 to {DAYS_MAX}")));
    }
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + Duration::from_secs(now_s.saturating_sub(BACKDATED.as_secs()));
    params.not_after = epoch + Duration::from_secs(now_s + days * DAY);
    Ok(())
}

fn uri(identity: &Identity) -> Result<SanType> {
    Ok(SanType::URI(Ia5String::try_from(identity.to_string()).map_err(failed)?))
}

fn shortened(name: &str) -> String {
    name.chars().take(NAME_CHARACTERS_MAX).collect()
}

fn failed(e: rcgen::Error) -> Error {
    Error::invalid(format!("certificate: {e}"))
}
