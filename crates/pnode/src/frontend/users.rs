//! Where the list of users is kept: one record in a table of the database's own, written as any other.

use futures::FutureExt;
use futures::future::BoxFuture;
use sextant_access::{Keeper, Stored};
use sextant_common::ids::Seq;
use sextant_common::manifest::TableOptions;
use sextant_common::operation::{Condition, Operation};
use sextant_common::{Error, ErrorKind, Result};

use crate::api::{ReadOptions, WriteOptions};
use crate::pnode::PNode;

const TABLE: &str = "sextant.access";
const KEY: &[u8] = b"users";

pub(crate) struct UserRecord(pub PNode);

impl Keeper for UserRecord {
    fn load(&self) -> BoxFuture<'_, Result<Option<Stored>>> {
        self.0.get(TABLE, KEY, ReadOptions::default()).map(stored).boxed()
    }

    fn store(&self, text: String, expected: u64) -> BoxFuture<'_, Result<bool>> {
        async move {
            // There is none before the first user.
            self.0.create_table(TABLE, TableOptions::default()).await?;
            let op = Operation::put(TABLE, KEY, text).only_if(Condition::SeqEquals(Seq(expected)));
            let outcome = self.0.write(vec![op], WriteOptions::default()).await?;
            Ok(outcome.results.iter().all(|result| result.applied))
        }
        .boxed()
    }
}

fn stored(read: Result<Option<sextant_common::operation::Record>>) -> Result<Option<Stored>> {
    match read {
        Ok(None) => Ok(None),
        Ok(Some(record)) => {
            let text = String::from_utf8(record.value.to_vec());
            let text =
                text.map_err(|_| Error::corrupt("the list of users cannot be read: it is not UTF-8"))?;
            Ok(Some(Stored { text, version: record.seq.0 }))
        }
        Err(e) if e.kind == ErrorKind::UnknownTable => Ok(None),
        Err(e) => Err(e),
    }
}
