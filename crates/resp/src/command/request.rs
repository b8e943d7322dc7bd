//! Commands on keys, decoded: what they touch.

use bytes::Bytes;

use crate::command_table::Access;
use crate::store::SetCondition;

/// How a conditional `SET` says what happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetReply {
    /// `+OK` or nil.
    Status,
    /// `:1` or `:0`.
    Number,
}

#[derive(Debug)]
pub(crate) enum Request {
    Get(Bytes),
    Strlen(Bytes),
    MultiGet(Vec<Bytes>),
    Exists(Vec<Bytes>),
    Set {
        key: Bytes,
        value: Bytes,
        condition: SetCondition,
        reply: SetReply,
    },
    /// Distinct keys.
    MultiSet(Vec<(Bytes, Bytes)>),
    /// Distinct keys.
    Delete(Vec<Bytes>),
}

impl Request {
    /// Key and value of a `SET` without a condition; any other request comes back.
    pub fn into_put(self) -> Result<(Bytes, Bytes), Self> {
        match self {
            Self::Set { key, value, condition: SetCondition::Always, reply: SetReply::Status } => {
                Ok((key, value))
            }
            other => Err(other),
        }
    }

    pub fn access(&self) -> Access {
        match self {
            Self::Get(_) | Self::Strlen(_) | Self::MultiGet(_) | Self::Exists(_) => Access::Read,
            Self::Set { .. } | Self::MultiSet(_) | Self::Delete(_) => Access::Write,
        }
    }

    /// For the slow log.
    pub fn first_key(&self) -> Option<Bytes> {
        match self {
            Self::Get(key) | Self::Strlen(key) | Self::Set { key, .. } => Some(key.clone()),
            Self::MultiGet(keys) | Self::Exists(keys) | Self::Delete(keys) => keys.first().cloned(),
            Self::MultiSet(pairs) => pairs.first().map(|(key, _)| key.clone()),
        }
    }

    /// The only key, if there is just one.
    pub fn single_key(&self) -> Option<&[u8]> {
        match self {
            Self::Get(key) | Self::Strlen(key) | Self::Set { key, .. } => Some(key),
            Self::MultiGet(keys) | Self::Exists(keys) | Self::Delete(keys) if keys.len() == 1 => {
                Some(&keys[0])
            }
            _ => None,
        }
    }

    pub fn for_each_key(&self, mut each: impl FnMut(&[u8])) {
        match self {
            Self::Get(key) | Self::Strlen(key) | Self::Set { key, .. } => each(key),
            Self::MultiGet(keys) | Self::Exists(keys) | Self::Delete(keys) => {
                keys.iter().for_each(|k| each(k))
            }
            Self::MultiSet(pairs) => pairs.iter().for_each(|(k, _)| each(k)),
        }
    }
}
