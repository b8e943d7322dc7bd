//! Who was refused, and why: counted, and logged at a bounded rate.

use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use rustls::CertificateError;
use sextant_environment::clock::Clock;

/// At most one line in so long: whoever knocks a thousand times a second must not fill a disk with lines.
const LINE_EVERY_NS: u64 = 1_000_000_000;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Knock {
    door: &'static str,
    outcome: &'static str,
}

pub(crate) struct Refusals {
    clock: Arc<dyn Clock>,
    handshakes: Family<Knock, Counter>,
    lines: Mutex<Lines>,
}

#[derive(Default)]
struct Lines {
    last_ns: Option<u64>,
    left_out: u64,
}

impl Refusals {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, handshakes: Family::default(), lines: Mutex::default() }
    }

    pub fn register(&self, registry: &mut Registry) {
        let help = "TLS handshakes of connections that came in, by port and how they ended";
        registry.register("sextant_tls_handshakes", help, self.handshakes.clone());
    }

    pub fn let_in(&self, door: &'static str) {
        self.handshakes.get_or_create(&Knock { door, outcome: "ok" }).inc();
    }

    pub fn refused(&self, door: &'static str, peer: &str, error: &std::io::Error) {
        let outcome = reason(error);
        self.handshakes.get_or_create(&Knock { door, outcome }).inc();
        let left_out = {
            let mut lines = self.lines.lock();
            let now_ns = self.clock.holder_ns();
            if lines.last_ns.is_some_and(|last_ns| now_ns.saturating_sub(last_ns) < LINE_EVERY_NS) {
                lines.left_out += 1;
                return;
            }
            lines.last_ns = Some(now_ns);
            std::mem::take(&mut lines.left_out)
        };
        tracing::warn!(
            target: "audit",
            "refused at {door}: {outcome}: {error} (from {peer}; {left_out} more since the last such line)"
        );
    }
}

/// A word for what went wrong: the label of the metric.
pub(crate) fn reason(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::TimedOut => return "timeout",
        std::io::ErrorKind::QuotaExceeded => return "too_many",
        _ => {}
    }
    let Some(tls) = error.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>()) else {
        return if error.kind() == std::io::ErrorKind::PermissionDenied {
            "not_of_the_cluster"
        } else {
            "closed"
        };
    };
    match tls {
        rustls::Error::NoCertificatesPresented => "no_certificate",
        rustls::Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        ) => "expired",
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => "unknown_authority",
        rustls::Error::InvalidCertificate(_) => "bad_certificate",
        rustls::Error::AlertReceived(_) => "refused_by_peer",
        rustls::Error::InvalidMessage(_) => "not_tls",
        _ => "protocol",
    }
}
