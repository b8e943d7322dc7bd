//! Servers of one cluster recognise each other: every internal connection names its cluster, and a server refuses calls that
//! name another one. (An address that was reused, or a mistake in a file, must not mix two clusters' data.)
//!
//! The name travels in the `user-agent` header, as `sextant-cluster/<fingerprint in hex>`. Calls that name none are served:
//! they are tools'.

use tonic::Status;
use tonic::metadata::MetadataMap;

use crate::config::ClusterConfig;
use crate::error::Error;

const PRODUCT: &str = "sextant-cluster/";

/// What a server of this cluster says in its calls.
pub(super) fn user_agent(cluster: &ClusterConfig) -> String {
    format!("{PRODUCT}{:016x}", cluster.fingerprint())
}

/// Checks the calls that a server of this cluster is to answer; for `tonic::service::InterceptorLayer`.
pub fn same_cluster(
    cluster: &ClusterConfig,
) -> impl Fn(tonic::Request<()>) -> Result<tonic::Request<()>, Status> + Clone + use<> {
    let mine = user_agent(cluster);
    move |request| match named(request.metadata()) {
        Some(other) if other != mine => Err(Error::invalid(
            "the caller is of another cluster, or has another number of partitions: check [cluster]",
        )
        .into()),
        _ => Ok(request),
    }
}

fn named(metadata: &MetadataMap) -> Option<&str> {
    metadata.get("user-agent")?.to_str().ok()?.split(' ').find(|word| word.starts_with(PRODUCT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{LeaseConfig, Server};
    use crate::ids::NodeId;

    fn cluster(id: &str) -> ClusterConfig {
        let server = Server { id: NodeId(1), addr: "a:1".into() };
        ClusterConfig {
            id: id.into(),
            partitions: 2,
            memtable: vec![server.clone()],
            sstable: vec![server],
            lease: LeaseConfig::default(),
        }
    }

    #[test]
    fn only_callers_that_name_another_cluster_are_refused() {
        let check = same_cluster(&cluster("a"));
        let call = |agent: Option<&str>| {
            let mut request = tonic::Request::new(());
            if let Some(agent) = agent {
                request.metadata_mut().insert("user-agent", agent.parse().unwrap());
            }
            check(request).map(|_| ())
        };
        assert!(call(None).is_ok());
        assert!(call(Some("tonic/0.14")).is_ok());
        assert!(call(Some(&format!("{} tonic/0.14", user_agent(&cluster("a"))))).is_ok());
        let refused = call(Some(&format!("{} tonic/0.14", user_agent(&cluster("b"))))).unwrap_err();
        assert!(refused.message().contains("another cluster"), "{refused}");
    }
}
