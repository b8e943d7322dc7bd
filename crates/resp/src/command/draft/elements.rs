//! Elements of objects: read as they are stored, and as the commands so far would leave them.

use bytes::Bytes;
use sextant_common::limits::{self, BATCH_BYTES_MAX};
use sextant_common::object::{ELEMENTS_TABLE, ElementKeys, Header, Tag, element_bytes_max};
use sextant_common::operation::{Condition, Lane, Operation, Returns, Told};
use sextant_common::{Error, Result};

use super::{Carried, Draft, MADE_BYTES_MAX, READ_BYTES_MAX};
use crate::command::execution::CHUNK_KEYS;
use crate::frame::Reply;
use crate::store::Store;

/// Most elements that are read together.
const ELEMENTS_MAX: usize = 1_000_000;
/// Most elements that are looked at together, whether they are read for it or were at hand.
const LOOKED_MAX: usize = 16 * ELEMENTS_MAX;
/// After so many of them others have their turn.
pub(super) const TURN_ELEMENTS: usize = 4096;
/// What an element takes beside its bytes.
const ELEMENT_BYTES: usize = 64;
/// Bytes of elements that are read and not kept: some seconds.
const DROPPED_BYTES_MAX: usize = 16 * READ_BYTES_MAX;
/// Elements that are asked for by their names at once, in bytes of their keys: each has the key of its object in it.
const CHUNK_BYTES: usize = 256 * 1024;

/// Names of which is remembered whether they are there, in bytes.
const KNOWN_BYTES_MAX: usize = 1024 * 1024;

/// What so many elements take beside their bytes.
pub(super) fn beside(elements: usize) -> usize {
    elements * ELEMENT_BYTES
}

impl<'s, S: Store> Draft<'s, S> {
    /// Whether what is asked for together is asked of the leader.
    pub fn is_of_leader(&self) -> bool {
        self.of_leader
    }

    pub async fn element(
        &mut self,
        key: &[u8],
        header: &Header,
        tag: Tag,
        name: &[u8],
    ) -> Carried<Option<Bytes>> {
        Ok(self.elements(key, header, tag, &[name]).await?.pop().flatten())
    }

    /// Elements that the commands may come back to. Under a name that is too long for any of this key there is nothing.
    pub async fn elements<N: AsRef<[u8]>>(
        &mut self,
        key: &[u8],
        header: &Header,
        tag: Tag,
        names: &[N],
    ) -> Carried<Vec<Option<Bytes>>> {
        self.elements_kept(key, header, tag, names, true).await
    }

    /// Elements that may be long: never all of them in one answer of the leader, which has a bound.
    pub async fn elements_apart<N: AsRef<[u8]>>(
        &mut self,
        key: &[u8],
        header: &Header,
        tag: Tag,
        names: &[N],
    ) -> Carried<Vec<Option<Bytes>>> {
        let of_leader = std::mem::take(&mut self.of_leader);
        let values = self.elements(key, header, tag, names).await;
        self.of_leader = of_leader;
        values
    }

    /// Elements that the command does not ask for again: others may.
    pub async fn elements_once<N: AsRef<[u8]>>(
        &mut self,
        key: &[u8],
        header: &Header,
        tag: Tag,
        names: &[N],
    ) -> Carried<Vec<Option<Bytes>>> {
        self.elements_kept(key, header, tag, names, self.is_of_one_moment).await
    }

    async fn elements_kept<N: AsRef<[u8]>>(
        &mut self,
        key: &[u8],
        header: &Header,
        tag: Tag,
        names: &[N],
        kept: bool,
    ) -> Carried<Vec<Option<Bytes>>> {
        let element_keys = ElementKeys::new(key, header.version, tag);
        let most = element_bytes_max(key);
        let mut values: Vec<Option<Bytes>> = Vec::with_capacity(names.len());
        let (mut missing, mut keys, mut missing_bytes) = (Vec::new(), Vec::new(), 0);
        self.look(names.len())?;
        for (at, name) in names.iter().enumerate() {
            if at > 0 && at.is_multiple_of(TURN_ELEMENTS) {
                tokio::task::yield_now().await;
            }
            if name.as_ref().len() > most {
                values.push(None);
                continue;
            }
            let element = element_keys.of(name.as_ref());
            let value = self.at_hand(header, tag, name.as_ref(), &element);
            if value.is_none() {
                missing_bytes += element.len();
                missing.push(at);
                keys.push(element);
            }
            values.push(value.flatten());
            // (No more keys at once than are asked for at once.)
            if missing.len() >= CHUNK_KEYS || missing_bytes >= CHUNK_BYTES {
                let found = self.read_elements(std::mem::take(&mut keys), missing_bytes).await?;
                if kept {
                    self.keep(header, tag, names, &missing, &found);
                }
                self.note(names, &missing, found, &mut values)?;
                missing.clear();
                missing_bytes = 0;
            }
        }
        if !missing.is_empty() {
            let found = self.read_elements(keys, missing_bytes).await?;
            if kept {
                self.keep(header, tag, names, &missing, &found);
            }
            self.note(names, &missing, found, &mut values)?;
        }
        Ok(values)
    }

    /// What is known of an element, which `element` is the key of; None: it has to be asked for.
    fn at_hand(&self, header: &Header, tag: Tag, name: &[u8], element: &Bytes) -> Option<Option<Bytes>> {
        let known = || self.known.get(&(header.version, tag))?.get(name);
        let value = self.elements.get(element).or_else(known).cloned();
        value.or_else(|| self.fresh.contains(&header.version).then_some(None))
    }

    async fn read_elements(&mut self, keys: Vec<Bytes>, bytes: usize) -> Carried<Vec<Option<Bytes>>> {
        self.make_room(bytes)?;
        let several = keys.len() > 1;
        let _turn = self.turns.turn(keys.len() as u64).await?;
        if self.of_leader && several {
            return self.elements_at_one_moment(keys).await;
        }
        self.read.moments += if several { 2 } else { 1 };
        let records = self.store.elements(keys).await?;
        Ok(records.into_iter().map(|record| record.map(|record| record.value)).collect())
    }

    /// So that it is at hand when it is asked for again.
    fn keep<N: AsRef<[u8]>>(
        &mut self,
        header: &Header,
        tag: Tag,
        names: &[N],
        missing: &[usize],
        found: &[Option<Bytes>],
    ) {
        let names = missing.iter().map(|at| Bytes::copy_from_slice(names[*at].as_ref()));
        let known = self.known.entry((header.version, tag)).or_default();
        known.extend(names.zip(found.iter().cloned()));
    }

    /// What was found of stored elements.
    fn note<N: AsRef<[u8]>>(
        &mut self,
        names: &[N],
        missing: &[usize],
        found: Vec<Option<Bytes>>,
        values: &mut [Option<Bytes>],
    ) -> Result<()> {
        let mut bytes = 0;
        for (at, value) in missing.iter().zip(found) {
            self.read.rests_on_header |= value.is_none();
            bytes += names[*at].as_ref().len() + value.as_ref().map_or(0, Bytes::len);
            values[*at] = value;
        }
        self.count_read(missing.len(), bytes)
    }

    /// Whether elements are there. Their values, which may be long, are not read.
    pub async fn exist<N: AsRef<[u8]>>(
        &mut self,
        key: &[u8],
        header: &Header,
        tag: Tag,
        names: &[N],
    ) -> Carried<Vec<bool>> {
        let mut exist = Vec::with_capacity(names.len());
        let (mut missing, mut missing_bytes) = (Vec::new(), 0);
        let element_keys = ElementKeys::new(key, header.version, tag);
        for (at, name) in names.iter().enumerate() {
            let element = element_keys.of(name.as_ref());
            let was_asked = || self.known_to_exist.get(&(header.version, tag))?.get(name.as_ref()).copied();
            let is_there = match self.at_hand(header, tag, name.as_ref(), &element) {
                None if was_asked().is_some() => was_asked(),
                None => self.store.look_element(&element).transpose()?.map(|record| {
                    self.read.moments += 1;
                    self.read.rests_on_header = true;
                    record.is_some()
                }),
                known => known.map(|value| value.is_some()),
            };
            exist.push(is_there.unwrap_or_default());
            if is_there.is_none() {
                missing_bytes += element.len();
                missing.push((at, element));
            }
            if missing.len() >= CHUNK_KEYS || missing_bytes >= CHUNK_BYTES {
                self.ask_whether_they_exist(&mut missing, missing_bytes, &mut exist).await?;
                missing_bytes = 0;
            }
        }
        self.ask_whether_they_exist(&mut missing, missing_bytes, &mut exist).await?;
        if self.is_of_one_moment {
            self.keep_existence((header.version, tag), names, &exist);
        }
        Ok(exist)
    }

    /// As far as there is room: they are asked for again otherwise.
    fn keep_existence<N: AsRef<[u8]>>(&mut self, of: (u64, Tag), names: &[N], exist: &[bool]) {
        let known = self.known_to_exist.entry(of).or_default();
        for (name, is_there) in names.iter().zip(exist) {
            let name = name.as_ref();
            self.known_bytes += name.len() + ELEMENT_BYTES;
            if self.known_bytes > KNOWN_BYTES_MAX {
                return;
            }
            known.insert(Bytes::copy_from_slice(name), *is_there);
        }
    }

    async fn ask_whether_they_exist(
        &mut self,
        missing: &mut Vec<(usize, Bytes)>,
        bytes: usize,
        exist: &mut [bool],
    ) -> Result<()> {
        if missing.is_empty() {
            return Ok(());
        }
        self.make_room(bytes)?;
        let is_there = |element: &Bytes| {
            let check = Operation::check_only(ELEMENTS_TABLE, element.clone());
            check.only_if(Condition::Present).skip_on_failure()
        };
        let _turn = self.turns.turn(missing.len() as u64).await?;
        let ops = missing.iter().map(|(_, element)| is_there(element)).collect();
        let outcome = self.store.execute(ops, Lane::Single).await?;
        self.read.moments += 1;
        self.read.rests_on_header = true;
        for ((at, _), result) in missing.drain(..).zip(outcome.results) {
            exist[at] = result.applied;
        }
        Ok(())
    }

    /// The leader is asked, which says what all of them are when it has come to the request.
    async fn elements_at_one_moment(&mut self, keys: Vec<Bytes>) -> Carried<Vec<Option<Bytes>>> {
        let peek = |key| Operation::check_only(ELEMENTS_TABLE, key).returning(Returns::Before);
        let outcome = self.store.execute(keys.into_iter().map(peek).collect(), Lane::Single).await?;
        self.read.moments += 1;
        self.read.rests_on_header = true;
        let value = |told: Told| match told {
            Told::Value(value) => Ok(Some(value)),
            Told::Nothing => Ok(None),
            Told::Length(_) | Told::Forgotten | Told::Misfit(_) => {
                Err(Error::invalid("the elements are longer together than an answer may be").into())
            }
        };
        outcome.results.into_iter().map(|result| value(result.told)).collect()
    }

    /// The reply goes by the header too, not only by elements: they have to be of the same moment.
    pub fn rests_on_header(&mut self) {
        self.read.moments += 2;
        self.read.rests_on_header = true;
    }

    /// For what was read and made, and so many bytes more.
    pub(super) fn make_room(&mut self, more_bytes: usize) -> Result<()> {
        let beside = beside(self.read.elements);
        self.gathered.make_room(self.read.bytes + beside + self.made + more_bytes)
    }

    /// What costs no read costs time: it is bounded all the same.
    pub(super) fn look(&mut self, elements: usize) -> Result<()> {
        self.looked += elements;
        if self.looked > LOOKED_MAX {
            return Err(Error::invalid(format!(
                "nothing took effect: it looks at more than {LOOKED_MAX} elements"
            )));
        }
        Ok(())
    }

    /// What was read and is not kept takes no room, but time.
    pub(super) fn drop_read(&mut self, bytes: usize) -> Result<()> {
        self.read.dropped_bytes += bytes;
        if self.read.dropped_bytes > DROPPED_BYTES_MAX {
            return Err(Error::invalid(format!(
                "nothing took effect: the elements that it passes over are longer than {DROPPED_BYTES_MAX} bytes"
            )));
        }
        Ok(())
    }

    pub(super) fn count_read(&mut self, elements: usize, bytes: usize) -> Result<()> {
        self.read.elements += elements;
        self.read.bytes += bytes;
        self.make_room(0)?;
        if self.read.elements > ELEMENTS_MAX || self.read.bytes > READ_BYTES_MAX {
            return Err(Error::invalid(format!(
                "nothing took effect: it reads more than {ELEMENTS_MAX} elements, or {READ_BYTES_MAX} bytes"
            )));
        }
        Ok(())
    }

    /// Why an object under `key` cannot get so many elements, each with so many records, of so many bytes in all beside the key: no
    /// batch carries them.
    pub fn too_many(key: &Bytes, elements: usize, records: usize, bytes: usize) -> Option<Reply> {
        let records = elements.saturating_mul(records);
        let bytes = records.saturating_mul(key.len()).saturating_add(bytes);
        (records > limits::BATCH_OPS_MAX || bytes > BATCH_BYTES_MAX).then(|| {
            Reply::error(format!(
                "ERR nothing took effect: it writes more than {} records, or {} bytes",
                limits::BATCH_OPS_MAX,
                BATCH_BYTES_MAX
            ))
        })
    }

    pub fn put(&mut self, element: Bytes, value: Bytes) -> Result<()> {
        self.made += element.len() + value.len();
        self.elements.insert(element, Some(value));
        self.check_made()
    }

    pub fn remove(&mut self, element: Bytes) -> Result<()> {
        self.made += element.len();
        self.elements.insert(element, None);
        self.check_made()
    }

    pub(super) fn check_made(&mut self) -> Result<()> {
        if self.made > MADE_BYTES_MAX {
            return Err(Error::invalid(format!(
                "nothing took effect: the values that it makes are longer than {MADE_BYTES_MAX} bytes"
            )));
        }
        self.make_room(0)
    }

    /// Whether something was refused because there is no room for what others and it read and make.
    pub fn lacks_room(&self) -> bool {
        self.gathered.lacks_room()
    }
}
