//! The p-node as a server.

use std::net::SocketAddr;

use sextant_common::{Env, Result};

use crate::config::PNodeConfig;
use crate::engine::PNode;

/// A p-node with its listeners.
pub struct PNodeServer {
    engine: PNode,
    grpc: SocketAddr,
    resp: Option<SocketAddr>,
    http: Option<SocketAddr>,
}

impl PNodeServer {
    pub async fn start(env: Env, config: PNodeConfig) -> Result<PNodeServer> {
        config.validate()?;
        let engine = PNode::start(env, config.engine()).await?;
        Ok(PNodeServer { engine, grpc: SocketAddr::from(([127, 0, 0, 1], 0)), resp: None, http: None })
    }

    pub fn grpc_addr(&self) -> SocketAddr {
        self.grpc
    }

    pub fn resp_addr(&self) -> Option<SocketAddr> {
        self.resp
    }

    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.http
    }

    pub fn engine(&self) -> &PNode {
        &self.engine
    }

    pub async fn shutdown(self) {
        self.engine.shutdown().await;
    }
}
