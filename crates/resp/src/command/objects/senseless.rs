//! A command whose arguments make no sense, which it says only if there is an object to use them on.

use bytes::Bytes;
use sextant_common::marks::Kind;

use super::super::draft::{Carried, Draft};
use crate::frame::Reply;
use crate::store::Store;

#[derive(Debug)]
pub(super) struct Senseless {
    pub kind: Kind,
    /// Its reply if there is none.
    pub absent: Reply,
    /// If there is one.
    pub error: Reply,
}

impl Senseless {
    /// A removal of what no object can have.
    pub fn of_nothing(kind: Kind) -> Self {
        let nothing = Reply::Integer(0);
        Self { kind, absent: nothing.clone(), error: nothing }
    }

    pub fn carry_out<S: Store>(&self, key: &Bytes, draft: &mut Draft<'_, S>) -> Carried<Reply> {
        Ok(match draft.object(key, self.kind)? {
            Some(_) => self.error.clone(),
            None => self.absent.clone(),
        })
    }
}
