//! What every gRPC server is expected to have: health, reflection, and patience with callers that have no manners.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use sextant_common::ErrorKind;
use sextant_common::ids::NodeId;
use sextant_environment::env::{KIND_HEADER, error_of, grpc_channel};
use sextant_proto::v1;
use sextant_proto::v1::kv_client::KvClient;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

use crate::testing::{Cluster, PATIENCE_MS, until};
use crate::{PNodeConfig, PNodeServer};

fn config(cluster: &Cluster) -> PNodeConfig {
    PNodeConfig {
        default_deadline_ms: PATIENCE_MS,
        ..PNodeConfig::new(NodeId(1), cluster.config.clone(), "127.0.0.1:0")
    }
}

async fn start(cluster: &Cluster, config: PNodeConfig) -> (PNodeServer, Channel, Channel) {
    let server = PNodeServer::start(cluster.env.clone(), config).await.unwrap();
    let to = |addr: std::net::SocketAddr| grpc_channel(&cluster.env.net, &addr.to_string());
    let (clients, operators) = (to(server.grpc_addr()), to(server.admin_addr()));
    (server, clients, operators)
}

async fn health_of(channel: &Channel, service: &str) -> Result<ServingStatus, Status> {
    let asked = HealthCheckRequest { service: service.into() };
    let answer = HealthClient::new(channel.clone()).check(asked).await?;
    Ok(answer.into_inner().status())
}

async fn reflected(
    channel: &Channel,
    question: MessageRequest,
    as_root: bool,
) -> Result<ServerReflectionResponse, Status> {
    let question = ServerReflectionRequest { host: String::new(), message_request: Some(question) };
    let mut request = Request::new(futures::stream::iter([question]));
    if as_root {
        let said = format!("Basic {}", BASE64_STANDARD.encode("root:secret"));
        request.metadata_mut().insert("authorization", said.parse().unwrap());
    }
    let mut answers =
        ServerReflectionClient::new(channel.clone()).server_reflection_info(request).await?.into_inner();
    answers.message().await.map(Option::unwrap)
}

fn list() -> MessageRequest {
    MessageRequest::ListServices(String::new())
}

async fn services(channel: &Channel) -> Vec<String> {
    let answer = reflected(channel, list(), false).await.unwrap();
    let Some(MessageResponse::ListServicesResponse(listed)) = answer.message_response else {
        panic!("{answer:?}")
    };
    listed.service.into_iter().map(|service| service.name).collect()
}

#[tokio::test]
async fn health_is_what_ready_says_and_watchers_are_told_until_the_server_stops() {
    let cluster = Cluster::start(2).await;
    // Nobody leads the second.
    let unled = cluster.memtables[0].state.lock().partitions.remove(&1).unwrap();
    let (server, clients, operators) = start(&cluster, config(&cluster)).await;
    assert_eq!(health_of(&clients, "").await.unwrap(), ServingStatus::NotServing);
    let asked = HealthCheckRequest { service: "sextant.v1.Kv".into() };
    let mut watched = HealthClient::new(clients.clone()).watch(asked).await.unwrap().into_inner();
    assert_eq!(watched.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    cluster.memtables[0].state.lock().partitions.insert(1, unled);
    until("readiness", || server.local().check_ready().is_ok()).await;
    assert_eq!(watched.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    for (channel, service) in
        [(&clients, ""), (&clients, "sextant.v1.Kv"), (&operators, ""), (&operators, "sextant.v1.Admin")]
    {
        assert_eq!(health_of(channel, service).await.unwrap(), ServingStatus::Serving, "{service}");
    }
    for (channel, service) in [(&clients, "sextant.v1.Admin"), (&operators, "x"), (&clients, "sextant")] {
        assert_eq!(health_of(channel, service).await.unwrap_err().code(), Code::NotFound, "{service}");
    }
    let asked = HealthCheckRequest { service: "x".into() };
    let mut unknown = HealthClient::new(clients).watch(asked).await.unwrap().into_inner();
    assert_eq!(unknown.message().await.unwrap().unwrap().status(), ServingStatus::ServiceUnknown);

    let (stopped, last) = tokio::join!(server.shutdown(), watched.message());
    let () = stopped;
    assert_eq!(last.unwrap().unwrap().status(), ServingStatus::NotServing);
    assert!(!matches!(watched.message().await, Ok(Some(_))), "nothing comes after that");
}

#[tokio::test]
async fn reflection_tells_what_a_listener_has_and_its_messages() {
    let cluster = Cluster::start(1).await;
    let (_server, clients, operators) = start(&cluster, config(&cluster)).await;
    let listed = services(&clients).await;
    assert!(listed.contains(&"sextant.v1.Kv".into()) && listed.contains(&"grpc.health.v1.Health".into()));
    assert!(!listed.contains(&"sextant.v1.Admin".into()), "{listed:?}");
    assert!(services(&operators).await.contains(&"sextant.v1.Admin".into()));
    // All that a listed file imports is there.
    let mut wanted = vec![MessageRequest::FileContainingSymbol("sextant.v1.Kv.CompareAndSet".into())];
    let mut seen = Vec::new();
    while let Some(question) = wanted.pop() {
        let answer = reflected(&clients, question.clone(), false).await.unwrap();
        let Some(MessageResponse::FileDescriptorResponse(files)) = answer.message_response else {
            panic!("{question:?}: {answer:?}")
        };
        for file in files.file_descriptor_proto {
            let text = String::from_utf8_lossy(&file).into_owned();
            for name in ["kv.proto", "rows.proto", "types.proto"] {
                if text.contains(name) && !seen.contains(&name) {
                    seen.push(name);
                    wanted.push(MessageRequest::FileByFilename(name.into()));
                }
            }
        }
    }
    assert_eq!(seen.len(), 3, "{seen:?}");
    let nobody = MessageRequest::FileContainingSymbol("sextant.v1.Nobody".into());
    let answer = reflected(&clients, nobody, false).await;
    let is_refused = |answer: &ServerReflectionResponse| {
        matches!(answer.message_response, Some(MessageResponse::ErrorResponse(_)))
    };
    assert!(answer.as_ref().map_or_else(|e| e.code() == Code::NotFound, is_refused), "{answer:?}");
}

#[tokio::test]
async fn who_is_nobody_learns_whether_the_server_is_well_and_nothing_else() {
    let cluster = Cluster::start(1).await;
    let hash = sextant_access::hash(b"secret", &*cluster.env.rng).unwrap();
    let access = serde_json::json!({ "superusers": { "root": hash } });
    let config = PNodeConfig { access: serde_json::from_value(access).unwrap(), ..config(&cluster) };
    let (server, clients, operators) = start(&cluster, config).await;
    until("readiness", || server.local().check_ready().is_ok()).await;
    for channel in [&clients, &operators] {
        assert_eq!(health_of(channel, "").await.unwrap(), ServingStatus::Serving);
        let refused = reflected(channel, list(), false).await.unwrap_err();
        assert_eq!(
            (refused.code(), error_of(refused).kind),
            (Code::Unauthenticated, ErrorKind::Unauthenticated)
        );
        reflected(channel, list(), true).await.unwrap();
    }
    let long = v1::KvPutRequest { key: "k".into(), value: vec![0; 8 << 20].into(), ..Default::default() };
    let refused = KvClient::new(clients).put(long).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
}

#[tokio::test]
async fn callers_without_manners_are_refused_and_others_are_served() {
    let cluster = Cluster::start(1).await;
    let (server, clients, _) = start(&cluster, config(&cluster)).await;
    until("readiness", || server.local().check_ready().is_ok()).await;
    let mut kv = KvClient::new(clients);
    let get = || v1::KvGetRequest { key: "k".into(), ..Default::default() };
    let mut huge = Request::new(get());
    huge.metadata_mut().insert("x-huge", "x".repeat(1 << 20).parse().unwrap());
    assert!(kv.get(huge).await.is_err());
    let mut odd = Request::new(get());
    odd.metadata_mut().insert("authorization", "Basic !!".parse().unwrap());
    odd.metadata_mut().insert("grpc-timeout", "soon".parse().unwrap());
    odd.metadata_mut().insert("x-request-id", "y".repeat(4096).parse().unwrap());
    // Neither is asked for here.
    drop(kv.get(odd).await);
    assert!(!kv.get(get()).await.unwrap().into_inner().found);
    let none = kv.get(v1::KvGetRequest::default()).await.unwrap_err();
    assert_eq!(none.metadata().get(KIND_HEADER).unwrap(), "invalid");
}
