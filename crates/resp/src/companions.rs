//! Commands on one object that have come while another one on it is under way, which go together then.
//!
//! Each reads the object and writes it if it has not changed meanwhile: side by side, all but one would have to try again. So the
//! first one of a key goes alone, those that come meanwhile wait, and then go as one batch, each with a reply of its own.
//!
//! Invariant: a key has a line only while somebody leads it; whoever leads, and is gone, has passed that on.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use sextant_common::Result;
use tokio::sync::oneshot;

use crate::command::Object;
use crate::frame::Reply;

/// Most commands that go together, and bytes of their arguments.
const TOGETHER_MAX: usize = 128;
const TOGETHER_BYTES_MAX: usize = 1024 * 1024;

#[derive(Debug, Default)]
pub(crate) struct Companions {
    lines: Lines,
}

type Lines = Arc<Mutex<HashMap<Bytes, VecDeque<Companion>>>>;

/// A command, and where its client waits.
#[derive(Debug)]
pub(crate) struct Companion {
    object: Box<Object>,
    turn: oneshot::Sender<Turn>,
}

/// What one who waits is told.
#[derive(Debug)]
pub(crate) enum Turn {
    /// It is to be done now, with those that have come after it.
    Lead(Lead, Box<Object>, Vec<Companion>),
    Done(Result<Reply>),
}

/// Whoever has it leads the line of its key.
#[derive(Debug)]
pub(crate) struct Lead {
    /// None: it has passed that on.
    lines: Option<Lines>,
    key: Bytes,
}

/// Of a command that goes with others.
#[derive(Debug)]
pub(crate) struct Client(oneshot::Sender<Turn>);

impl Client {
    pub fn done(self, reply: Result<Reply>) {
        // (It may be gone.)
        let _ = self.0.send(Turn::Done(reply));
    }
}

impl Companion {
    pub fn parts(self) -> (Box<Object>, Client) {
        (self.object, Client(self.turn))
    }
}

impl Companions {
    /// Err: another one leads; this is where it is told what becomes of the command.
    pub fn enter(
        &self,
        object: Box<Object>,
    ) -> std::result::Result<(Lead, Box<Object>), oneshot::Receiver<Turn>> {
        // (A copy: the key would hold on to the whole input of its client.)
        let key = Bytes::copy_from_slice(&object.keys[0]);
        let mut lines = self.lines.lock();
        if let Some(line) = lines.get_mut(&key) {
            let (turn, told) = oneshot::channel();
            line.push_back(Companion { object, turn });
            return Err(told);
        }
        lines.insert(key.clone(), VecDeque::new());
        Ok((Lead { lines: Some(self.lines.clone()), key }, object))
    }
}

/// Those that go next.
fn taken(line: &mut VecDeque<Companion>) -> Vec<Companion> {
    let mut bytes = 0;
    let fits = |companion: &&Companion| {
        bytes += companion.object.bytes;
        bytes <= TOGETHER_BYTES_MAX
    };
    let count = line.iter().take(TOGETHER_MAX).take_while(fits).count();
    line.drain(..count.max(1).min(line.len())).collect()
}

impl Drop for Lead {
    fn drop(&mut self) {
        let Some(all) = self.lines.take() else { return };
        let mut lines = all.lock();
        loop {
            let Some(line) = lines.get_mut(&self.key) else { return };
            let mut next = taken(line).into_iter();
            let Some(Companion { object, turn }) = next.next() else {
                lines.remove(&self.key);
                return;
            };
            let lead = Lead { lines: Some(all.clone()), key: self.key.clone() };
            match turn.send(Turn::Lead(lead, object, next.collect())) {
                // It is gone; those after it are not.
                Err(Turn::Lead(mut lead, _, others)) => {
                    lead.lines = None;
                    others.into_iter().rev().for_each(|companion| line.push_front(companion));
                }
                _ => return,
            }
        }
    }
}
