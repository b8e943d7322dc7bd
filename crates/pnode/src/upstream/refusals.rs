//! Memtable servers that answer, and will have nothing to do with this p-node: a mistake in a configuration or a certificate. Nobody
//! can be served before somebody has changed something, so somebody has to be told: once, not with every question.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use sextant_common::error::{Error, ErrorKind};
use sextant_common::ids::NodeId;

#[derive(Default)]
pub(crate) struct Refusals(Mutex<BTreeMap<NodeId, String>>);

impl Refusals {
    /// A server's answer failed. Whether that is a refusal which is not known yet.
    pub fn is_news(&self, node: NodeId, e: &Error) -> bool {
        let is_final = matches!(e.kind, ErrorKind::Invalid | ErrorKind::Denied | ErrorKind::Unauthenticated);
        let mut refusals = self.0.lock();
        if !is_final || refusals.get(&node).is_some_and(|known| *known == e.message) {
            return false;
        }
        refusals.insert(node, e.message.to_string());
        true
    }

    /// A server answered. Whether it refused before.
    pub fn is_over(&self, node: NodeId) -> bool {
        self.0.lock().remove(&node).is_some()
    }

    /// One of them, for people.
    pub fn shown(&self) -> Option<String> {
        let refusals = self.0.lock();
        refusals.iter().next().map(|(node, why)| format!("memtable server {node} refuses this p-node: {why}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_news_once_until_it_is_over_or_another_one() {
        let refusals = Refusals::default();
        let (a, b) = (NodeId(1), NodeId(2));
        assert!(!refusals.is_news(a, &Error::unavailable("gone")) && refusals.shown().is_none());
        assert!(refusals.is_news(a, &Error::invalid("another cluster")));
        assert!(!refusals.is_news(a, &Error::invalid("another cluster")));
        assert!(refusals.is_news(b, &Error::invalid("another cluster")));
        assert!(refusals.is_news(a, &Error::new(ErrorKind::Denied, "not yours")));
        assert_eq!(refusals.shown().unwrap(), "memtable server 1 refuses this p-node: not yours");
        assert!(refusals.is_over(a) && !refusals.is_over(a));
        assert!(refusals.is_news(a, &Error::invalid("another cluster")));
    }
}
