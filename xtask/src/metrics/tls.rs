//! Metrics that only servers with certificates have. A cluster for development has none, so they stand here as in `crates/tls`.

use super::families::{Families, Family};

pub const TITLE: &str = "Every server with `[tls]`";

const DOORS: [&str; 5] = ["members", "grpc", "resp", "admin", "http"];

pub fn families() -> Families {
    let family =
        |kind: &str, help: &str| Family { kind: kind.to_owned(), help: help.to_owned(), labels: [].into() };
    let mut handshakes =
        family("counter", "TLS handshakes of connections that came in, by port and how they ended");
    handshakes.labels.insert("door".to_owned(), DOORS.map(str::to_owned).into());
    handshakes.labels.insert("outcome".to_owned(), [].into());
    let expires =
        family("gauge", "When the first certificate of this server's chain expires, in seconds since 1970");
    let failed = family(
        "gauge",
        "1 if the certificates' files have changed and cannot be used; those read before stay in use",
    );
    [
        ("sextant_tls_handshakes", handshakes),
        ("sextant_tls_certificate_expires_seconds", expires),
        ("sextant_tls_reload_failed", failed),
    ]
    .map(|(name, family)| (name.to_owned(), family))
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root;

    #[test]
    fn these_are_the_metrics_of_the_source() {
        let read = |path: &str| std::fs::read_to_string(format!("{}/crates/{path}", root())).unwrap();
        let source = read("tls/src/network.rs") + &read("tls/src/refusals.rs");
        let families = families();
        for (name, family) in &families {
            for text in [name, &family.help] {
                assert!(source.contains(&format!("\"{text}\"")), "crates/tls has no {text:?}");
            }
        }
        for name in source.split("\"sextant_tls_").skip(1).filter_map(|rest| rest.split('"').next()) {
            assert!(families.contains_key(&format!("sextant_tls_{name}")), "sextant_tls_{name} is not here");
        }
        let doors = read("environment/src/env/net.rs");
        for door in DOORS {
            assert!(doors.contains(&format!("=> \"{door}\"")), "no door {door:?}");
        }
    }
}
