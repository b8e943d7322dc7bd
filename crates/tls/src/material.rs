//! What a server or a client shows and accepts, ready for handshakes: made of the files as a whole, or not at all.

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::UnixTime;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion};
use sextant_common::error::{Error, Result};
use sextant_environment::config::ClientCertificates;
use sextant_environment::env::{Door, Identity};

use crate::certificate::{check, identity_of, is_untimely};
use crate::files::{Contents, Files, Shown, bad, untimely};
use crate::verify::ChainVerifier;

const CLIENTS_VERSIONS: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];
/// Both ends are ours.
const MEMBERS_VERSIONS: &[&SupportedProtocolVersion] = &[&TLS13];

/// One generation of certificates.
pub(crate) struct Material {
    doors: Vec<(Door, Arc<ServerConfig>)>,
    /// For servers of the cluster, which are known by their certificates.
    pub members: Arc<ClientConfig>,
    /// For servers that are known by their hosts.
    pub hosts: Arc<ClientConfig>,
    /// Of the own certificate.
    pub identity: Option<Identity>,
    /// A server's, in seconds since 1970.
    pub expires: Option<u64>,
}

impl Material {
    /// `clients`: what is asked of clients, of which only a server has any.
    pub fn new(
        files: &Files,
        contents: &Contents,
        clients: Option<ClientCertificates>,
        now: UnixTime,
    ) -> Result<Self> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let roots = files.roots(contents)?;
        let shown = files.shown(contents)?;
        let algorithms = &provider.signature_verification_algorithms;
        let wrong = |e: rustls::Error| match is_untimely(&e) {
            true => untimely(files.cert(), &e),
            false => bad(files.cert(), &e),
        };
        let identity = shown.as_ref().and_then(|shown| identity_of(&shown.chain[0]));
        let expires = match (clients, &shown) {
            (Some(_), Some(shown)) => Some(check(&shown.chain, &roots, algorithms, now).map_err(wrong)?),
            _ => None,
        };
        let doors = match (clients, &shown) {
            (Some(clients), Some(shown)) => {
                let door = |door| Ok((door, Arc::new(listening(&provider, &roots, shown, door, clients)?)));
                Door::ALL.into_iter().map(door).collect::<Result<_, rustls::Error>>().map_err(wrong)?
            }
            _ => Vec::new(),
        };
        let verifier = ChainVerifier { roots: roots.clone(), algorithms: *algorithms };
        let members = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(MEMBERS_VERSIONS)
            .map_err(wrong)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let hosts = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(CLIENTS_VERSIONS)
            .map_err(wrong)?
            .with_root_certificates(roots);
        let [members, hosts] = [(members, true), (hosts, false)].map(|(builder, _)| {
            let mut config = match &shown {
                Some(Shown { chain, key }) => {
                    builder.with_client_auth_cert(chain.clone(), key.clone_key())?
                }
                None => builder.with_no_client_auth(),
            };
            config.resumption = Resumption::disabled();
            Ok(Arc::new(config))
        });
        let (members, hosts) = (members.map_err(wrong)?, hosts.map_err(wrong)?);
        Ok(Self { doors, members, hosts, identity, expires })
    }

    pub fn door(&self, door: Door) -> Result<Arc<ServerConfig>> {
        let found = self.doors.iter().find(|(of, _)| *of == door);
        found
            .map(|(_, config)| config.clone())
            .ok_or_else(|| Error::invalid("tls: a client listens at no port"))
    }
}

fn listening(
    provider: &Arc<CryptoProvider>,
    roots: &Arc<RootCertStore>,
    shown: &Shown,
    door: Door,
    clients: ClientCertificates,
) -> Result<ServerConfig, rustls::Error> {
    let is_optional = door != Door::Members && clients == ClientCertificates::Optional;
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone());
    let verifier = if is_optional { verifier.allow_unauthenticated() } else { verifier };
    let verifier = verifier.build().map_err(|e| rustls::Error::General(e.to_string()))?;
    let versions = if door == Door::Members { MEMBERS_VERSIONS } else { CLIENTS_VERSIONS };
    let mut config = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(shown.chain.clone(), shown.key.clone_key())?;
    // A session that is taken up again is not checked again: a certificate may have expired, an authority may be accepted no more.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.alpn_protocols = match door {
        Door::Members | Door::Grpc | Door::Admin => vec![b"h2".to_vec()],
        Door::Http => vec![b"http/1.1".to_vec()],
        Door::Resp => Vec::new(),
    };
    Ok(config)
}
