//! A client: one turn after the other over a connection of its own, each written down.

use std::io;
use std::time::Duration;

use sextant_checker::{Command, PendingCommands, Recorder, Reply};
use sextant_environment::Env;

use crate::generate::{Generator, Turn, whole_of_type};
use crate::groups::{Group, Groups};
use crate::wire::Wire;

/// How long a client waits for a connection, and for an answer.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    pub connect: Duration,
    pub answer: Duration,
}

/// What became of commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    Done,
    /// Nothing took effect, and why.
    Refused(String),
    /// They may have taken effect, or may still do so.
    Unknown(String),
}

/// What a client has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Act {
    /// A command, or what it was with others.
    pub name: &'static str,
    pub known: Known,
}

/// One client. It goes on at the next p-node when a connection fails.
pub struct Client {
    env: Env,
    addrs: Vec<String>,
    patience: Patience,
    at: usize,
    wire: Option<Wire>,
    /// In the history. After an unknown outcome it needs another.
    pub id: u64,
    values: u64,
}

/// Replies, if they were given.
type Answer = Result<Vec<Reply>, Known>;

impl Client {
    /// `addrs`: RESP listeners; the first is preferred.
    pub fn new(env: Env, addrs: Vec<String>, patience: Patience, id: u64) -> Self {
        Self { env, addrs, patience, at: 0, wire: None, id, values: 0 }
    }

    /// One turn. What became of it, and of what it read for that before.
    pub async fn act(&mut self, recorder: &Recorder, groups: &Groups, rng: &mut fastrand::Rng) -> Vec<Act> {
        let (group, is_look) = groups.pick();
        if is_look {
            return self.look_at(recorder, &group).await;
        }
        let acts = self.turn(recorder, &group, rng).await;
        let is_unknown = |act: &&Act| matches!(act.known, Known::Unknown(_));
        acts.iter().filter(is_unknown).for_each(|_| groups.note_unknown(&group));
        acts
    }

    async fn turn(&mut self, recorder: &Recorder, group: &Group, rng: &mut fastrand::Rng) -> Vec<Act> {
        let turn = Generator { rng, client: self.id, values: &mut self.values }.turn(group);
        match turn {
            Turn::One(command) => vec![self.one(recorder, group, command).await.0],
            Turn::Transaction(commands) => {
                let pending = recorder.call_commands(self.id, &group.name, commands.clone(), vec![]);
                let answer = self.transaction(&commands).await;
                vec![settle("transaction", pending, answer)]
            }
            Turn::Watched(key, read, then) => self.watched(recorder, group, key, read, then).await,
        }
    }

    /// Reads all of a group, key by key.
    pub async fn look_at(&mut self, recorder: &Recorder, group: &Group) -> Vec<Act> {
        let mut acts = Vec::new();
        for (key, _) in &group.keys {
            let (act, reply) = self.one(recorder, group, vec!["TYPE".into(), key.clone()]).await;
            acts.push(act);
            let whole = match reply {
                Some(Reply::Text(name)) => whole_of_type(key, &name),
                _ => None,
            };
            if let Some(whole) = whole {
                acts.push(self.one(recorder, group, whole).await.0);
            }
        }
        acts
    }

    async fn one(&mut self, recorder: &Recorder, group: &Group, command: Command) -> (Act, Option<Reply>) {
        let pending = recorder.call_commands(self.id, &group.name, vec![command.clone()], vec![]);
        let answer = self.ask(std::slice::from_ref(&command)).await.and_then(understand);
        let reply = answer.as_ref().ok().and_then(|replies| replies.first().cloned());
        (settle("command", pending, answer), reply)
    }

    /// A transaction that takes effect only if what it has read still is so.
    async fn watched(
        &mut self,
        recorder: &Recorder,
        group: &Group,
        key: String,
        read: Command,
        then: Vec<Command>,
    ) -> Vec<Act> {
        if let Err(known) = self.ask(&[vec!["WATCH".into(), key]]).await.and_then(understand) {
            // (It changes nothing.)
            let known = match known {
                Known::Unknown(why) => Known::Refused(why),
                known => known,
            };
            return vec![Act { name: "watch", known }];
        }
        let (act, met) = self.one(recorder, group, read.clone()).await;
        let (Some(met), true) = (met, self.wire.is_some()) else {
            // What is watched stays so until the connection is gone.
            self.wire = None;
            return vec![act];
        };
        let commands = [vec![read], then.clone()].concat();
        let pending = recorder.call_commands(self.id, &group.name, commands, vec![met.clone()]);
        let answer = self.transaction(&then).await.map(|replies| [vec![met], replies].concat());
        vec![act, settle("watched transaction", pending, answer)]
    }

    async fn transaction(&mut self, commands: &[Command]) -> Answer {
        let word = |word: &str| vec![word.to_owned()];
        let all = [vec![word("MULTI")], commands.to_vec(), vec![word("EXEC")]].concat();
        let executed = self.ask(&all).await?.pop();
        match understand(executed.into_iter().collect())?.pop() {
            Some(Reply::List(replies)) => match understand(replies) {
                // Some of the others may have taken effect.
                Err(Known::Refused(why)) => Err(Known::Unknown(why)),
                answer => answer,
            },
            _ => Err(Known::Refused("what it watched has changed".into())),
        }
    }

    async fn ask(&mut self, commands: &[Command]) -> Answer {
        let mut wire = match self.wire.take() {
            Some(wire) => wire,
            None => {
                let addr = &self.addrs[self.at % self.addrs.len()];
                let connecting = tokio::time::timeout(self.patience.connect, Wire::connect(&self.env, addr));
                match connecting.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                    Ok(wire) => wire,
                    Err(e) => {
                        self.at += 1;
                        return Err(Known::Refused(format!("no connection: {}", e.kind())));
                    }
                }
            }
        };
        let answering = tokio::time::timeout(self.patience.answer, wire.exchange(commands));
        match answering.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(replies) => {
                self.wire = Some(wire);
                Ok(replies)
            }
            Err(e) => {
                self.at += 1;
                Err(Known::Unknown(format!("no answer: {}", e.kind())))
            }
        }
    }
}

fn settle(name: &'static str, pending: PendingCommands<'_>, answer: Answer) -> Act {
    let known = match answer {
        Ok(replies) => {
            pending.returned(replies);
            Known::Done
        }
        Err(known) => {
            match &known {
                Known::Refused(_) => pending.not_executed(),
                _ => pending.unknown(),
            }
            known
        }
    };
    Act { name, known }
}

/// Replies that say what commands came to; errors that do not are about the servers. Those say that nothing happened, and are taken at
/// their word, unless they say that nobody knows.
fn understand(replies: Vec<Reply>) -> Answer {
    let understand = |reply: Reply| {
        let Reply::Error { error } = reply else { return Ok(reply) };
        let (code, _) = error.split_once(' ').unwrap_or((&error, ""));
        match code {
            "WRONGTYPE" => Ok(Reply::error(code)),
            "ERR" if error == "ERR no such key" => Ok(Reply::error(code)),
            "OUTCOMEUNKNOWN" => Err(Known::Unknown(error)),
            "ERR" if error.starts_with("ERR internal error") => Err(Known::Unknown(error)),
            _ => Err(Known::Refused(error)),
        }
    };
    replies.into_iter().map(understand).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_what_became_of_a_command() {
        let of = |error: &str| understand(vec![Reply::Int(1), Reply::error(error)]);
        assert_eq!(of("WRONGTYPE Operation against"), Ok(vec![Reply::Int(1), Reply::error("WRONGTYPE")]));
        assert_eq!(of("ERR no such key"), Ok(vec![Reply::Int(1), Reply::error("ERR")]));
        for error in ["OUTCOMEUNKNOWN no answer", "ERR internal error: x"] {
            assert_eq!(of(error), Err(Known::Unknown(error.into())));
        }
        for error in ["TRYAGAIN busy", "CLUSTERDOWN no leader", "EXECABORT", "ERR unknown command"] {
            assert_eq!(of(error), Err(Known::Refused(error.into())));
        }
    }
}
