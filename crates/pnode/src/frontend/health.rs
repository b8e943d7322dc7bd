//! Whether the p-node can serve, as `grpc.health.v1` says it: for load balancers and orchestrators, which are no users.
//!
//! Invariant: SERVING is what `/health/ready` calls ready.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use sextant_common::{Error, ErrorKind};
use sextant_environment::env::status_of;
use sextant_environment::shutdown::Shutdown;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::pnode::PNode;

/// How soon a change is told to who watches.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Anybody may watch: so many at a time, of a listener.
const WATCHERS_MAX: usize = 256;

#[derive(Clone)]
pub(crate) struct HealthService {
    pnode: PNode,
    stopping: Shutdown,
    /// What is asked for by name; the empty name is the p-node as a whole.
    services: &'static [&'static str],
    watchers: Arc<Semaphore>,
}

impl HealthService {
    pub fn new(pnode: PNode, stopping: Shutdown, services: &'static [&'static str]) -> Self {
        Self { pnode, stopping, services, watchers: Arc::new(Semaphore::new(WATCHERS_MAX)) }
    }

    fn knows(&self, service: &str) -> bool {
        service.is_empty() || self.services.contains(&service)
    }

    fn status(&self) -> ServingStatus {
        match !self.stopping.is_triggered() && self.pnode.check_ready().is_ok() {
            true => ServingStatus::Serving,
            false => ServingStatus::NotServing,
        }
    }
}

/// One who watches.
struct Watch {
    health: HealthService,
    is_known: bool,
    told: Option<ServingStatus>,
    _place: OwnedSemaphorePermit,
}

impl Watch {
    /// What is new; None: the server stops.
    async fn next(mut self) -> Option<(Result<HealthCheckResponse, Status>, Self)> {
        loop {
            let status = if self.is_known { self.health.status() } else { ServingStatus::ServiceUnknown };
            if self.told != Some(status) {
                self.told = Some(status);
                return Some((Ok(answer(status)), self));
            }
            if self.health.stopping.is_triggered() {
                return None;
            }
            let mut stopping = self.health.stopping.clone();
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = stopping.wait() => {}
            }
        }
    }
}

#[tonic::async_trait]
impl Health for HealthService {
    type WatchStream = BoxStream<'static, Result<HealthCheckResponse, Status>>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        match self.knows(&request.get_ref().service) {
            true => Ok(Response::new(answer(self.status()))),
            // As the protocol has it: no kind of ours.
            false => Err(Status::not_found("no such service here")),
        }
    }

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let place = self.watchers.clone().try_acquire_owned().map_err(|_| {
            status_of(Error::new(ErrorKind::Overloaded, "too many watch this p-node's health already"))
        })?;
        let is_known = self.knows(&request.get_ref().service);
        let watch = Watch { health: self.clone(), is_known, told: None, _place: place };
        Ok(Response::new(stream::unfold(watch, Watch::next).boxed()))
    }
}

fn answer(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}
