//! What is known of a command before it is executed.

/// The keys that it names.
pub(crate) fn keys_of(command: &[String]) -> &[String] {
    match (command.first().map(String::as_str), command.len()) {
        (Some("RENAME" | "COPY" | "LMOVE"), 3..) => &command[1..3],
        (Some("DEL"), _) => &command[1..],
        (_, 2..) => &command[1..2],
        _ => &[],
    }
}

/// Whether it changes nothing, whatever it meets.
pub(crate) fn is_pure(command: &[String]) -> bool {
    let name = command.first().map_or("", String::as_str);
    match name.as_bytes().first() {
        Some(b'H') => matches!(name, "HGET" | "HMGET" | "HEXISTS" | "HLEN" | "HGETALL"),
        Some(b'S') => matches!(name, "SISMEMBER" | "SCARD" | "SMEMBERS"),
        Some(b'Z') => matches!(name, "ZSCORE" | "ZCARD" | "ZRANGE"),
        Some(b'L') => matches!(name, "LLEN" | "LRANGE"),
        _ => matches!(name, "GET" | "EXISTS" | "TYPE" | "PTTL"),
    }
}
