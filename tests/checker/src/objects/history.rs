//! Histories of commands, by group.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::{Command, Reply};
use crate::history::UNKNOWN;

/// Commands that took effect together, if they did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Commands {
    pub client: u64,
    pub commands: Vec<Command>,
    /// Of all commands; if the outcome is unknown, of those whose replies are known if they took effect.
    pub replies: Vec<Reply>,
    pub call: u64,
    /// [`UNKNOWN`]: they may take effect at any time after `call`, or never.
    pub ret: u64,
    pub line: u32,
}

/// As it stands in the file.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ObjectLine {
    pub client: u64,
    pub group: String,
    pub commands: Vec<Command>,
    pub replies: Vec<Reply>,
    pub call: u64,
    pub ret: Option<u64>,
}

/// Groups in the order of their first appearance.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    names: Vec<String>,
    ops: Vec<Vec<Commands>>,
    ids: HashMap<String, usize>,
}

impl Groups {
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[Commands])> {
        self.names.iter().map(String::as_str).zip(self.ops.iter().map(Vec::as_slice))
    }

    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// # Errors
    /// What is wrong with the line.
    pub fn push(&mut self, line: ObjectLine, number: u32) -> Result<(), String> {
        let ObjectLine { client, group, commands, replies, call, ret } = line;
        if ret == Some(UNKNOWN) || ret.is_some_and(|ret| ret < call) {
            return Err("it returned before it was called".into());
        }
        if replies.len() > commands.len() || ret.is_some() && replies.len() < commands.len() {
            return Err(format!("{} replies to {} commands", replies.len(), commands.len()));
        }
        let canonical = |(command, reply): (&Command, Reply)| {
            let name = command.first().map_or("", String::as_str);
            reply.canonical(name)
        };
        let replies = commands.iter().zip(replies).map(canonical).collect();
        let id = *self.ids.entry(group).or_insert_with_key(|group| {
            self.names.push(group.clone());
            self.ops.push(Vec::new());
            self.ops.len() - 1
        });
        let op = Commands { client, commands, replies, call, ret: ret.unwrap_or(UNKNOWN), line: number };
        self.ops[id].push(op);
        Ok(())
    }
}

impl Commands {
    pub fn is_unknown(&self) -> bool {
        self.ret == UNKNOWN
    }

    /// For people.
    pub fn describe(&self) -> String {
        let describe = |(at, command): (usize, &Command)| match self.replies.get(at) {
            Some(reply) => format!("{} -> {reply}", command.join(" ")),
            None => command.join(" "),
        };
        self.commands.iter().enumerate().map(describe).collect::<Vec<_>>().join("; ")
    }
}
