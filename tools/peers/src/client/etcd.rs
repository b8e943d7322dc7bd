//! etcd's gRPC interface (v3), as little of it as is used: `KV.Range`, `KV.Put`, `Maintenance.Status`.

use bytes::Bytes;
use futures::future::join_all;
use sextant_common::error::{Error, Result};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use super::Answer;
use crate::load::{Operation, key, value};

/// Of `etcdserverpb.RangeRequest`; without the rest a linearizable read of one key.
#[derive(Clone, PartialEq, prost::Message)]
struct RangeRequest {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RangeResponse {
    #[prost(message, repeated, tag = "2")]
    kvs: Vec<KeyValue>,
}

/// Of `mvccpb.KeyValue`.
#[derive(Clone, PartialEq, prost::Message)]
struct KeyValue {
    #[prost(bytes = "bytes", tag = "5")]
    value: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PutRequest {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    value: Bytes,
}

/// Of `PutResponse`: nothing is of interest.
#[derive(Clone, PartialEq, prost::Message)]
struct PutResponse {}

#[derive(Clone, PartialEq, prost::Message)]
struct StatusRequest {}

#[derive(Clone, PartialEq, prost::Message)]
struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    header: Option<ResponseHeader>,
    #[prost(uint64, tag = "4")]
    leader: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ResponseHeader {
    #[prost(uint64, tag = "2")]
    member_id: u64,
}

/// Of a connection, which clones share.
#[derive(Clone)]
pub struct Client(Grpc<Channel>);

impl Client {
    pub async fn connect(url: &str) -> Result<Self> {
        let failed = |e| Error::unavailable(format!("{url}: {e}"));
        let endpoint = Endpoint::from_shared(url.to_owned()).map_err(failed)?;
        Ok(Self(Grpc::new(endpoint.connect().await.map_err(failed)?)))
    }

    async fn call<Q, A>(&self, path: &'static str, request: Q) -> std::result::Result<A, Status>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let mut grpc = self.0.clone();
        grpc.ready().await.map_err(|e| Status::unavailable(e.to_string()))?;
        let codec = ProstCodec::<Q, A>::default();
        let answer = grpc.unary(Request::new(request), PathAndQuery::from_static(path), codec).await?;
        Ok(answer.into_inner())
    }

    async fn operate(&self, operation: Operation) -> Answer {
        let answer = match operation {
            Operation::Get { number, .. } => {
                let key = Bytes::copy_from_slice(&key(number));
                self.call("/etcdserverpb.KV/Range", RangeRequest { key }).await.map(|range: RangeResponse| {
                    Answer::Value(range.kvs.first().map(|found| found.value.len()))
                })
            }
            Operation::Set { number } => {
                let key = Bytes::copy_from_slice(&key(number));
                let put = PutRequest { key, value: Bytes::copy_from_slice(&value(number)) };
                self.call("/etcdserverpb.KV/Put", put).await.map(|PutResponse {}| Answer::Written)
            }
        };
        answer.unwrap_or_else(|status| Answer::Refused(format!("{:?}", status.code())))
    }
}

impl super::Client for Client {
    async fn batch(&mut self, operations: &[Operation], answers: &mut Vec<Answer>) -> Result<()> {
        match operations {
            [operation] => answers.push(self.operate(*operation).await),
            many => answers.extend(join_all(many.iter().map(|operation| self.operate(*operation))).await),
        }
        Ok(())
    }
}

/// Which of these members leads; `None` if not all answer and agree yet.
pub async fn leader_of(urls: &[String]) -> Option<usize> {
    let status = async |url: &String| {
        let client = Client::connect(url).await.ok()?;
        client.call::<_, StatusResponse>("/etcdserverpb.Maintenance/Status", StatusRequest {}).await.ok()
    };
    let answers: Option<Vec<_>> = join_all(urls.iter().map(status)).await.into_iter().collect();
    let members: Vec<_> = answers?
        .into_iter()
        .map(|status| (status.header.unwrap_or_default().member_id, status.leader))
        .collect();
    agreed(&members)
}

/// Of each member its id and whom it takes for the leader.
fn agreed(members: &[(u64, u64)]) -> Option<usize> {
    let leader = members.first()?.1;
    let agree = leader != 0 && members.iter().all(|(_, theirs)| *theirs == leader);
    members.iter().position(|(id, _)| agree && *id == leader)
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn messages_have_etcd_s_bytes() {
        let put = PutRequest { key: Bytes::from_static(b"k"), value: Bytes::from_static(b"v") };
        assert_eq!(put.encode_to_vec(), b"\x0a\x01k\x12\x01v");
        // Header, one pair (key, versions, value), count: what is not used is skipped.
        let answer = b"\x0a\x02\x18\x07\x12\x0c\x0a\x01k\x10\x02\x18\x02\x20\x01\x2a\x01v\x20\x01";
        let answer = RangeResponse::decode(&answer[..]).unwrap();
        assert_eq!(answer.kvs, [KeyValue { value: Bytes::from_static(b"v") }]);
    }

    #[test]
    fn a_leader_is_one_that_all_agree_on() {
        assert_eq!(agreed(&[(7, 9), (8, 9), (9, 9)]), Some(2));
        assert_eq!(agreed(&[(7, 9), (8, 7), (9, 9)]), None);
        assert_eq!(agreed(&[(7, 0), (8, 0)]), None);
        assert_eq!(agreed(&[]), None);
    }
}
