//! Whether a server's certificates are good, and for how long.

use std::path::Path;

use sextant_environment::Env;
use sextant_tls::TlsNetwork;

use super::Patient;
use super::report::{Check, Finding};

const DAY_S: u64 = 86_400;
/// Time to notice, and to issue new ones.
const DAYS_LEFT_MIN: u64 = 30;

/// The network that a server with this configuration would have over that of `below`; none: it is not encrypted.
pub fn network(patient: &Patient, below: &Env) -> Result<Option<TlsNetwork>, String> {
    let file = &patient.file;
    let Some(tls) = file.tls() else { return Ok(None) };
    let tls = tls.clone().within(patient.path.parent().unwrap_or(Path::new("")));
    let net = TlsNetwork::server(below.clone(), &tls, &file.cluster().id, patient.party());
    net.map(Some).map_err(|e| e.message.into_owned())
}

/// None: it needs none.
pub fn check(patient: &Patient) -> Option<Check> {
    let now_s = patient.env.clock.wall_guess_ns() / 1_000_000_000;
    let subject = format!("certificate of {}", patient.party());
    match network(patient, &patient.env) {
        Ok(None) => None,
        Ok(Some(net)) => {
            let expires_s = net.expires_s();
            Some(judge(expires_s, now_s).about(subject).with("expires_unix_s", expires_s))
        }
        Err(why) => Some(Finding::bad(why).about(subject)),
    }
}

fn judge(expires_s: u64, now_s: u64) -> Finding {
    let days = expires_s.saturating_sub(now_s) / DAY_S;
    match days {
        _ if expires_s <= now_s => Finding::bad("it has expired"),
        0..DAYS_LEFT_MIN => {
            Finding::warning(format!("it expires in {days} days: `sextant cert server --renew`"))
        }
        _ => Finding::ok(format!("it is good for {days} days")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::report::Verdict;

    #[test]
    fn a_certificate_that_expires_soon_is_worth_a_warning() {
        let verdict = |days: u64| judge(1_000 + days * DAY_S, 1_000).verdict;
        assert_eq!(
            [0, 1, 29, 30].map(verdict),
            [Verdict::Bad, Verdict::Warning, Verdict::Warning, Verdict::Ok]
        );
        assert_eq!(judge(5, 1_000).verdict, Verdict::Bad);
    }
}
