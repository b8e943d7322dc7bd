//! The one line that a run prints.

use std::collections::BTreeMap;

use serde::Serialize;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    #[default]
    Ok,
    Violation,
    /// The search for an order gave up. Not a pass.
    Undecided,
    Panic,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    pub seed: u64,
    pub verdict: Verdict,
    pub text: String,
    #[serde(serialize_with = "as_hex")]
    pub trace_hash: u64,
    pub trace_events: u64,
    pub intensity: String,
    pub sim_seconds: f64,
    /// Operations answered, refused (certainly not executed), and of unknown outcome.
    pub ok: u64,
    pub failed: u64,
    pub unknown: u64,
    /// Keys that their versions prove linearizable.
    pub certified: u64,
    /// Keys for which no legal order exists, whatever their versions say.
    pub illegal_keys: u64,
    /// Faults injected, by kind.
    pub faults: BTreeMap<&'static str, u64>,
    pub coverage: BTreeMap<&'static str, u64>,
    /// Servers that ended by themselves, and why.
    pub ends: Vec<String>,
    pub elapsed_ms: u64,
}

fn as_hex<S: serde::Serializer>(hash: &u64, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&format!("{hash:016x}"))
}

impl Report {
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|e| format!("{{\"error\":\"{e}\"}}"))
    }
}
