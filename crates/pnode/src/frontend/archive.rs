//! A partition's log, read on and on for an archive: of whoever leads, and of another replica where the leader has purged more.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt};
use sextant_access::Class;
use sextant_common::{Error, Result};
use sextant_environment::env::{error_of, status_of};
use sextant_environment::shutdown::Shutdown;
use sextant_proto::v1;
use sextant_proto::v1::admin_client::AdminClient;
use tonic::transport::Channel;
use tonic::{Response, Status};

use super::admin::AdminService;
use super::gate::Who;

/// How often it is looked whether there is more.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A page is read from a log, perhaps from its disk.
const PAGE_MAX: Duration = Duration::from_secs(20);

/// Where the reading of a log has come to. None: it ends here.
type Next = Option<(v1::ReadLogRequest, bool)>;

/// Pages, until what comes next is gone, an error, the end of this server, or that of the rights of who asked. A page without entries
/// tells how late it is.
pub(super) fn follow(
    service: AdminService,
    who: Who,
    request: v1::ReadLogRequest,
    stopping: Shutdown,
) -> BoxStream<'static, Result<v1::LogPage, Status>> {
    let first: Next = Some((v1::ReadLogRequest { having: None, ..request }, false));
    let who = Arc::new(who);
    let pages = stream::unfold(first, move |next| {
        let (service, who, mut stopping) = (service.clone(), who.clone(), stopping.clone());
        async move {
            let (request, waits) = next?;
            let asked = async {
                if waits {
                    tokio::time::sleep(LOOK_EVERY).await;
                }
                who.may_still(Class::Admin)?;
                page(&service, request).await
            };
            let read = tokio::select! {
                read = asked => read,
                () = stopping.wait() => Err(Error::retry("the server is stopping")),
            };
            let next = read.as_ref().ok().and_then(|page| following(request.partition, page));
            Some((read.map_err(status_of), next))
        }
    });
    pages.boxed()
}

fn following(partition: u32, page: &v1::LogPage) -> Next {
    let goes_on = !page.gone && page.to.is_some();
    let request = v1::ReadLogRequest { partition, after: page.to, having: None };
    goes_on.then_some((request, page.after == page.to))
}

async fn page(service: &AdminService, request: v1::ReadLogRequest) -> Result<v1::LogPage> {
    let of_leader = service.ask_leader(PAGE_MAX, |admin| first_page(admin, request)).await;
    let of_leader = of_leader.map_err(error_of)?.into_inner();
    if !of_leader.gone || request.after.is_none() {
        return Ok(of_leader);
    }
    let lineage = of_leader.lineage;
    for peer in service.memtables() {
        let request = v1::ReadLogRequest { having: of_leader.first, ..request };
        let read = tokio::time::timeout(PAGE_MAX, first_page(peer, request)).await;
        if let Ok(Ok(page)) = read
            && !page.get_ref().gone
            && page.get_ref().lineage == lineage
        {
            return Ok(page.into_inner());
        }
    }
    Ok(of_leader)
}

async fn first_page(
    mut admin: AdminClient<Channel>,
    request: v1::ReadLogRequest,
) -> Result<Response<v1::LogPage>, Status> {
    let page = admin.read_log(request).await?.into_inner().message().await?;
    page.map(Response::new).ok_or_else(|| Status::internal("a page of the log is missing"))
}
