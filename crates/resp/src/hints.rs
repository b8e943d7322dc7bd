//! Which objects this server has met: their kind and version, so that a write of an element need not read the header first. A hint
//! may be wrong: whoever decides about the write compares the version.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::Mutex;
use sextant_common::database::Database;
use sextant_common::key::filter_hash;
use sextant_common::marks::Kind;

/// Places; a key has one, and takes it from whoever was there.
const PLACES: usize = 16_384;
/// Longer keys are not remembered, in bytes.
const KEY_BYTES_MAX: usize = 256;

type Place = Mutex<Option<(Database, Bytes, Kind, u64)>>;

/// Of all databases.
type Places = OnceLock<Box<[Place]>>;

/// Those of one database; the others have the same places.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hints {
    places: Arc<Places>,
    database: Database,
}

impl Hints {
    pub fn of(&self, database: Database) -> Self {
        Self { places: self.places.clone(), database }
    }

    fn place(&self, key: &[u8]) -> &Place {
        let places = self.places.get_or_init(|| (0..PLACES).map(|_| Place::default()).collect());
        &places[(filter_hash(key) as usize).wrapping_add(self.database.number().into()) % PLACES]
    }

    /// The version of the object of this kind, as far as anybody here knows.
    pub fn find(&self, key: &[u8], kind: Kind) -> Option<u64> {
        let place = self.place(key).lock();
        let is_it = |(database, of, its, _): &&(Database, Bytes, Kind, u64)| {
            *database == self.database && of == key && *its == kind
        };
        place.as_ref().filter(is_it).map(|(.., version)| *version)
    }

    pub fn remember(&self, key: &[u8], kind: Kind, version: u64) {
        if key.len() <= KEY_BYTES_MAX {
            let mut place = self.place(key).lock();
            match &mut *place {
                Some((database, of, its, known)) if *database == self.database && of == key => {
                    (*its, *known) = (kind, version)
                }
                place => *place = Some((self.database, Bytes::copy_from_slice(key), kind, version)),
            }
        }
    }

    /// Whether there was something to forget.
    pub fn forget(&self, key: &[u8]) -> bool {
        if self.places.get().is_none() {
            return false;
        }
        let mut place = self.place(key).lock();
        let is_it = place.as_ref().is_some_and(|(database, of, ..)| *database == self.database && of == key);
        if is_it {
            *place = None;
        }
        is_it
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_known_until_it_is_forgotten() {
        let hints = Hints::default();
        assert!(!hints.forget(b"k"));
        hints.remember(b"k", Kind::Hash, 7);
        hints.remember(&[b'l'; KEY_BYTES_MAX + 1], Kind::Hash, 8);
        assert_eq!((hints.find(b"k", Kind::Hash), hints.find(b"k", Kind::Set)), (Some(7), None));
        assert_eq!(hints.find(&[b'l'; KEY_BYTES_MAX + 1], Kind::Hash), None);
        let others = hints.of(Database::new(1).unwrap());
        assert_eq!(others.find(b"k", Kind::Hash), None);
        assert!(!others.forget(b"k"));
        assert!(hints.forget(b"k") && !hints.forget(b"k"));
        assert_eq!(hints.find(b"k", Kind::Hash), None);
    }
}
