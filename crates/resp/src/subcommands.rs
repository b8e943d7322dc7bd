//! Subcommands: what a command that has several uses is called in full, where clients are listed and rights are refused.

use crate::command_table::{Id, Spec};
use crate::frame::Command;

/// Full names, also of those that are refused: of commands that are there.
pub(crate) const SUBCOMMANDS: [&str; 57] = [
    "acl|cat",
    "acl|deluser",
    "acl|getuser",
    "acl|help",
    "acl|list",
    "acl|setuser",
    "acl|users",
    "acl|whoami",
    "client|caching",
    "client|getname",
    "client|getredir",
    "client|help",
    "client|id",
    "client|info",
    "client|kill",
    "client|list",
    "client|no-evict",
    "client|no-touch",
    "client|order",
    "client|pause",
    "client|reply",
    "client|setinfo",
    "client|setname",
    "client|tracking",
    "client|trackinginfo",
    "client|unblock",
    "client|unpause",
    "command|count",
    "command|docs",
    "command|getkeys",
    "command|help",
    "command|info",
    "command|list",
    "config|get",
    "config|help",
    "config|resetstat",
    "config|rewrite",
    "config|set",
    "latency|doctor",
    "latency|help",
    "latency|histogram",
    "latency|history",
    "latency|latest",
    "latency|reset",
    "memory|doctor",
    "memory|help",
    "memory|purge",
    "memory|stats",
    "memory|usage",
    "object|encoding",
    "object|freq",
    "object|help",
    "object|idletime",
    "object|refcount",
    "slowlog|get",
    "slowlog|len",
    "slowlog|reset",
];

/// The place of what a command asks for among [`SUBCOMMANDS`]. None: it has no subcommands, or not this one.
#[inline]
pub(crate) fn find(spec: &Spec, command: &Command<'_>) -> Option<usize> {
    let has_some = matches!(
        spec.id,
        Id::Acl | Id::Client | Id::Command | Id::Config | Id::Latency | Id::Memory | Id::Object | Id::Slowlog
    );
    if !has_some || command.len() < 2 {
        return None;
    }
    SUBCOMMANDS.iter().position(|name| {
        let (of, name) = name.split_once('|').unwrap_or_default();
        of == spec.name && command.arg(1).eq_ignore_ascii_case(name.as_bytes())
    })
}

/// With the subcommand, if there is one.
pub(crate) fn full_name(spec: &Spec, command: &Command<'_>) -> &'static str {
    find(spec, command).map_or(spec.name, |at| SUBCOMMANDS[at])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::command_table::COMMANDS;

    #[test]
    fn each_is_named_once_and_of_a_command() {
        assert_eq!(SUBCOMMANDS.iter().collect::<BTreeSet<_>>().len(), SUBCOMMANDS.len());
        for name in SUBCOMMANDS {
            let (of, _) = name.split_once('|').unwrap();
            assert!(COMMANDS.iter().any(|spec| spec.name == of), "{name}");
        }
    }
}
