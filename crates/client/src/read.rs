//! Point reads.

use bytes::Bytes;
use futures::future::BoxFuture;
use sextant_common::error::{Error, Result};
use sextant_common::limits;
use sextant_common::operation::Record;
use sextant_proto::v1;

use crate::client::{Client, kv};
use crate::retry::{Repeat, timed};

impl Client {
    /// The record of a key, or `None`. Linearizable. `table`: `""` is the default table.
    pub fn get<'a>(&'a self, table: &'a str, key: impl Into<Bytes>) -> BoxFuture<'a, Result<Option<Record>>> {
        self.get_key(table, key.into())
    }

    /// Without a type parameter: compiled here, once.
    fn get_key<'a>(&'a self, table: &'a str, key: Bytes) -> BoxFuture<'a, Result<Option<Record>>> {
        Box::pin(async move {
            limits::check_key(&key)?;
            let request = v1::KvGetRequest {
                table: table.to_owned(),
                key,
                mode: v1::ReadMode::from(self.mode()).into(),
            };
            let reply = self
                .call(Repeat::Harmless, self.deadline(), async |channel, limit| {
                    Ok(kv(channel).get(timed(request.clone(), limit)).await?.into_inner())
                })
                .await?;
            Ok(reply.into())
        })
    }

    /// The records of several keys, in their order. Linearizable for each key by itself; the keys are not read at one
    /// instant.
    pub fn multi_get<'a>(
        &'a self,
        table: &'a str,
        keys: Vec<Bytes>,
    ) -> BoxFuture<'a, Result<Vec<Option<Record>>>> {
        Box::pin(async move {
            for key in &keys {
                limits::check_key(key)?;
            }
            limits::check_batch(keys.len(), keys.iter().map(Bytes::len).sum())?;
            let expected = keys.len();
            let request = v1::KvMultiGetRequest {
                table: table.to_owned(),
                keys,
                mode: v1::ReadMode::from(self.mode()).into(),
            };
            let reply = self
                .call(Repeat::Harmless, self.deadline(), async |channel, limit| {
                    Ok(kv(channel).multi_get(timed(request.clone(), limit)).await?.into_inner())
                })
                .await?;
            if reply.replies.len() != expected {
                return Err(Error::internal(format!("{} answers for {expected} keys", reply.replies.len())));
            }
            Ok(reply.replies.into_iter().map(Into::into).collect())
        })
    }
}
