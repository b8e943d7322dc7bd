//! A server's own ports: free, or its own already.

use std::io;
use std::time::Duration;

use sextant_environment::Env;
use sextant_environment::env::{Party, Whom};

use super::others::Shown;
use super::report::{Check, Finding};
use super::{Patient, others};
use crate::commands::health::{ask, reachable};

/// An answer from this host.
const ANSWER_MAX: Duration = Duration::from_secs(3);
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;

pub struct Ports {
    pub checks: Vec<Check>,
    /// A server whose disks are in use, as far as its ports tell.
    pub running: Option<Party>,
}

/// Who answers at the ports of a server.
enum Answers {
    Itself(Shown),
    /// Nobody, or somebody else: why it is not the server.
    Other(String),
    /// One could not ask.
    Untold(&'static str),
}

pub async fn check(patients: &[Patient]) -> Ports {
    let mut ports = Ports { checks: Vec::new(), running: None };
    for patient in patients {
        let mut answers = None;
        for (door, addr) in patient.file.doors() {
            let subject = format!("port {addr} ({}) of {}", door.name(), patient.party());
            let bound = Env::real().net.bind(addr, door).await.map(drop);
            let is_in_use = bound.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::AddrInUse);
            if is_in_use && answers.is_none() {
                answers = Some(who_answers(patient).await);
            }
            let found = judge(bound.map_err(|e| (e.kind(), e.to_string())), answers.as_ref());
            ports.checks.push(found.about(subject));
        }
        if answers.is_some() && !patient.file.directories().is_empty() {
            ports.running.get_or_insert(patient.party());
        }
    }
    ports
}

fn judge(bound: Result<(), (io::ErrorKind, String)>, answers: Option<&Answers>) -> Finding {
    match (bound, answers) {
        (Ok(()), _) => Finding::ok("free"),
        (Err((io::ErrorKind::AddrInUse, _)), Some(Answers::Itself(shown))) => {
            let version = shown.version.as_deref().unwrap_or("an older one");
            Finding::ok(format!("in use by this server, which runs (version {version})"))
        }
        (Err((io::ErrorKind::AddrInUse, _)), Some(Answers::Untold(why))) => {
            Finding::warning(format!("in use; whether by this server cannot be told: {why}"))
        }
        (Err((io::ErrorKind::AddrInUse, _)), Some(Answers::Other(why))) => {
            Finding::bad(format!("in use by another program ({why})"))
        }
        (Err((_, why)), _) => Finding::bad(why),
    }
}

async fn who_answers(patient: &Patient) -> Answers {
    if patient.way().is_err() {
        return Answers::Untold("its certificate is no good");
    }
    let asked = match patient.file.http() {
        Some(http) => tokio::time::timeout(ANSWER_MAX, status(patient, http)).await,
        // Members answer each other.
        None if !matches!(patient.file, crate::server_file::ServerFile::PNode(_)) => {
            let addr = reachable(patient.file.listen());
            tokio::time::timeout(ANSWER_MAX, others::status(patient, &addr, patient.party())).await
        }
        None => return Answers::Untold("its configuration has no http address"),
    };
    match asked {
        Err(_) => Answers::Other(format!("no answer within {} s", ANSWER_MAX.as_secs())),
        Ok(Err(why)) => Answers::Other(why),
        Ok(Ok(shown)) => match is_of(&shown, patient) {
            Ok(()) => Answers::Itself(shown),
            Err(why) => Answers::Other(why),
        },
    }
}

async fn status(patient: &Patient, http: &str) -> Result<Shown, String> {
    let addr = reachable(http);
    let whom = if patient.file.tls().is_some() { Whom::Member(None) } else { Whom::Host };
    let answer = ask(&patient.way()?.net, &addr, whom, "/status", ANSWER_BYTES_MAX).await;
    let (status, text) = answer.map_err(|e| format!("http at {addr}: {e}"))?;
    if !status.is_success() {
        return Err(format!("http at {addr}: {status}"));
    }
    serde_json::from_str(&text).map_err(|_| format!("http at {addr}: its status is none of Sextant's"))
}

/// Whether the status is the one of this server. (Older p-nodes do not say their number.)
fn is_of(shown: &Shown, patient: &Patient) -> Result<(), String> {
    let (role, id, cluster) = (patient.file.role().name(), patient.file.id(), &patient.file.cluster().id);
    // An sstable server calls itself `sstable-server`.
    let is_it = shown.role.starts_with(role)
        && shown.node.is_none_or(|node| node == id.0)
        && shown.cluster == *cluster;
    match is_it {
        true => Ok(()),
        false => {
            let node = shown.node.map_or(String::new(), |node| format!(" {node}"));
            Err(format!("it is {}{node} of cluster {:?}", shown.role, shown.cluster))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::report::Verdict::{Bad, Ok, Warning};

    #[test]
    fn a_port_is_free_or_its_own_or_somebody_elses() {
        let shown: Shown =
            serde_json::from_str(r#"{"role":"memtable","node":1,"cluster":"c","version":"9"}"#).unwrap();
        let in_use = || Err((io::ErrorKind::AddrInUse, "in use".to_owned()));
        let forbidden = Err((io::ErrorKind::PermissionDenied, "Permission denied".to_owned()));
        let cases = [
            (Result::Ok(()), None, Ok, "free"),
            (in_use(), Some(Answers::Itself(shown)), Ok, "this server, which runs (version 9)"),
            (in_use(), Some(Answers::Other("no answer".into())), Bad, "another program (no answer)"),
            (in_use(), Some(Answers::Untold("no http address")), Warning, "cannot be told: no http address"),
            (forbidden, None, Bad, "Permission denied"),
        ];
        for (bound, answers, verdict, why) in cases {
            let found = judge(bound, answers.as_ref());
            assert!(found.verdict == verdict && found.why.contains(why), "{found:?}");
        }
    }
}
