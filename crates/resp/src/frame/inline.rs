//! Inline commands: a line of words, quoted as in Redis' `sdssplitargs`.

use super::ProtocolError;

/// Splits a line (without its terminator) into words, appended to `words`; their places in it go to `ranges`.
///
/// In double quotes `\n \r \t \b \a \xHH` and a backslash before any other character are escapes; in single quotes only
/// `\'` is. A closing quote must be followed by a space or the end.
pub fn split(line: &[u8], words: &mut Vec<u8>, ranges: &mut Vec<(u32, u32)>) -> Result<(), ProtocolError> {
    let mut rest = line;
    loop {
        while let [first, tail @ ..] = rest
            && is_space(*first)
        {
            rest = tail;
        }
        if rest.is_empty() {
            return Ok(());
        }
        let start = words.len();
        rest = word(rest, words)?;
        ranges.push((start as u32, (words.len() - start) as u32));
    }
}

fn word<'a>(mut rest: &'a [u8], out: &mut Vec<u8>) -> Result<&'a [u8], ProtocolError> {
    loop {
        match rest {
            [] => return Ok(rest),
            [b'"', tail @ ..] => return closed(double_quoted(tail, out)?),
            [b'\'', tail @ ..] => return closed(single_quoted(tail, out)?),
            [c, tail @ ..] => {
                if is_space(*c) || *c == 0 {
                    return Ok(tail);
                }
                out.push(*c);
                rest = tail;
            }
        }
    }
}

fn closed(rest: &[u8]) -> Result<&[u8], ProtocolError> {
    match rest {
        [c, ..] if !is_space(*c) => Err(ProtocolError::UnbalancedQuotes),
        _ => Ok(rest),
    }
}

fn double_quoted<'a>(mut rest: &'a [u8], out: &mut Vec<u8>) -> Result<&'a [u8], ProtocolError> {
    loop {
        rest = match rest {
            [] => return Err(ProtocolError::UnbalancedQuotes),
            [b'"', tail @ ..] => return Ok(tail),
            [b'\\', b'x', high, low, tail @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                out.push(hex(*high) << 4 | hex(*low));
                tail
            }
            [b'\\', c, tail @ ..] => {
                out.push(match c {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                });
                tail
            }
            [c, tail @ ..] => {
                out.push(*c);
                tail
            }
        }
    }
}

fn single_quoted<'a>(mut rest: &'a [u8], out: &mut Vec<u8>) -> Result<&'a [u8], ProtocolError> {
    loop {
        rest = match rest {
            [] => return Err(ProtocolError::UnbalancedQuotes),
            [b'\'', tail @ ..] => return Ok(tail),
            [b'\\', b'\'', tail @ ..] => {
                out.push(b'\'');
                tail
            }
            [c, tail @ ..] => {
                out.push(*c);
                tail
            }
        }
    }
}

/// C's `isspace`.
fn is_space(c: u8) -> bool {
    matches!(c, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => digit - b'A' + 10,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &[u8]) -> Result<Vec<Vec<u8>>, ProtocolError> {
        let (mut out, mut ranges) = (Vec::new(), Vec::new());
        split(line, &mut out, &mut ranges)?;
        Ok(ranges
            .iter()
            .map(|(start, len)| out[*start as usize..(*start + *len) as usize].to_vec())
            .collect())
    }

    #[test]
    fn words_and_quotes() {
        for (line, expected) in [
            (&b"set a b"[..], vec![&b"set"[..], b"a", b"b"]),
            (b"  set\t a  ", vec![b"set", b"a"]),
            (b"", vec![]),
            (b"   ", vec![]),
            (br#"echo "a b\x41\n\q\"""#, vec![b"echo", b"a bA\nq\""]),
            (br"echo 'a \n\' b'", vec![b"echo", br"a \n' b"]),
            (br#"set "" ''"#, vec![b"set", b"", b""]),
            (br#"pre"fix""#, vec![b"prefix"]),
            (br#""\xzz""#, vec![b"xzz"]),
        ] {
            assert_eq!(words(line).unwrap(), expected, "{:?}", String::from_utf8_lossy(line));
        }
    }

    #[test]
    fn unbalanced_quotes_are_an_error() {
        for line in [r#"a "b"#, "a 'b", r#""a"b"#, "'a'b", r#"""#, r#""\"#, r"'\'"] {
            assert_eq!(words(line.as_bytes()), Err(ProtocolError::UnbalancedQuotes), "{line}");
        }
    }
}
