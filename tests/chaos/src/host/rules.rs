//! A server's packet filter: what is dropped, as a set of rules, and as the text that `nft` takes. Pure.

use std::fmt::Write as _;

/// Of the server whose filter it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    In,
    Out,
}

/// Packets that are dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub direction: Direction,
    /// The other end's address; `None`: anybody's.
    pub peer: Option<String>,
    /// How many of a hundred.
    pub percent: u8,
}

impl Rule {
    pub fn cut(direction: Direction, peer: &str) -> Self {
        Self { direction, peer: Some(peer.to_owned()), percent: 100 }
    }

    pub fn loss(direction: Direction, percent: u8) -> Self {
        Self { direction, peer: None, percent }
    }
}

/// The whole filter, as one transaction: it replaces what was there.
pub fn ruleset(rules: &[Rule]) -> String {
    // Declared first, so that deleting it never fails.
    let mut text = String::from("table ip chaos\ndelete table ip chaos\n");
    if rules.is_empty() {
        return text;
    }
    text.push_str("table ip chaos {\n");
    for (direction, hook, address) in [(Direction::In, "input", "saddr"), (Direction::Out, "output", "daddr")]
    {
        let _ = writeln!(text, " chain {hook} {{\n  type filter hook {hook} priority 0; policy accept;");
        // A server talks to itself over its own address, too.
        let _ = writeln!(text, "  {} lo accept", if direction == Direction::In { "iif" } else { "oif" });
        for rule in rules.iter().filter(|r| r.direction == direction) {
            let peer = rule.peer.as_ref().map_or_else(String::new, |peer| format!("ip {address} {peer} "));
            let part = match rule.percent {
                100.. => String::new(),
                percent => format!("numgen random mod 100 < {percent} "),
            };
            let _ = writeln!(text, "  {peer}{part}drop");
        }
        text.push_str(" }\n");
    }
    text.push_str("}\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_replaces_the_one_before() {
        assert_eq!(ruleset(&[]), "table ip chaos\ndelete table ip chaos\n");
        let text = ruleset(&[Rule::cut(Direction::In, "10.0.0.1"), Rule::loss(Direction::Out, 30)]);
        assert!(text.starts_with("table ip chaos\ndelete table ip chaos\ntable ip chaos {\n"), "{text}");
        assert!(text.contains("hook input"), "{text}");
        assert!(text.contains("  ip saddr 10.0.0.1 drop\n"), "{text}");
        assert!(text.contains("  numgen random mod 100 < 30 drop\n"), "{text}");
    }
}
