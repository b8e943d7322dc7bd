//! The incremental parser: remembers how far it got, so that a long request that arrives in pieces is read once.

use bytes::{Buf, Bytes, BytesMut};
use sextant_common::limits;

use super::{ARGS_MAX, LINE_BYTES_MAX, ProtocolError, inline, parse_integer};

/// Room for arguments that is kept from one command to the next.
const ARGS_KEPT: usize = 1024;

/// Reads commands off the front of a buffer. After an error the input has no further meaning, but for
/// [`ProtocolError::TooBigArgument`]: that command may be [given up](Parser::give_up).
#[derive(Debug)]
pub struct Parser {
    max_request_bytes: usize,
    state: State,
    /// Everything before this offset is parsed.
    pos: usize,
    /// No line ends before this offset (from `pos` on).
    scanned: usize,
    /// Start and length of each argument, in the input or (inline) in `words`.
    args: Vec<(u32, u32)>,
    /// The unquoted words of an inline command.
    words: Vec<u8>,
    /// How much of a command that was given up is gone. None: none is.
    given_up: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// At the start of a command.
    Start,
    /// Before the `$` of an argument, so many still to come.
    Header { remaining: u32 },
    /// In the bytes of an argument.
    Body { remaining: u32, len: u32 },
    /// In an argument of a command that was given up, so many bytes before the next.
    Dropping { remaining: u32, left: u32 },
    /// A command is complete: it ends at `pos`.
    Done { inline: bool },
}

/// A complete command: its arguments are slices of one buffer.
#[derive(Debug)]
pub struct Command<'p> {
    bytes: Bytes,
    args: &'p [(u32, u32)],
}

impl Parser {
    pub fn new(max_request_bytes: usize) -> Self {
        Self {
            max_request_bytes,
            state: State::Start,
            pos: 0,
            scanned: 0,
            args: Vec::new(),
            words: Vec::new(),
            given_up: None,
        }
    }

    /// Reads on. True: a command is complete; look at it with [`Parser::arg`], then [`Parser::take`] or [`Parser::skip`] it.
    /// False: more input is needed. `input` must be the buffer of the last call with bytes appended.
    pub fn parse(&mut self, input: &mut BytesMut) -> Result<bool, ProtocolError> {
        loop {
            match self.state {
                State::Start => match input.first() {
                    None => return Ok(false),
                    Some(b'*') => {
                        let Some(end) = self.line_end(input, ProtocolError::TooBigCountString)? else {
                            return Ok(false);
                        };
                        let count = parse_integer(&input[1..end]).filter(|n| *n <= ARGS_MAX as i64);
                        let count = count.ok_or(ProtocolError::InvalidMultibulkLength)?;
                        terminated(input, end, ProtocolError::InvalidMultibulkLength)?;
                        if count <= 0 {
                            input.advance(end + 2);
                            self.reset();
                            continue;
                        }
                        self.move_to(end + 2);
                        self.state = State::Header { remaining: count as u32 };
                    }
                    Some(_) => {
                        let Some(newline) = self.find(input, b'\n') else {
                            if input.len() > LINE_BYTES_MAX {
                                return Err(ProtocolError::TooBigInlineRequest);
                            }
                            return Ok(false);
                        };
                        if newline > LINE_BYTES_MAX {
                            return Err(ProtocolError::TooBigInlineRequest);
                        }
                        let line = input[..newline].strip_suffix(b"\r").unwrap_or(&input[..newline]);
                        inline::split(line, &mut self.words, &mut self.args)?;
                        if self.args.is_empty() {
                            input.advance(newline + 1);
                            self.reset();
                            continue;
                        }
                        self.move_to(newline + 1);
                        self.state = State::Done { inline: true };
                    }
                },
                State::Header { remaining: 0 } if self.given_up.is_some() => self.reset(),
                State::Header { remaining: 0 } => self.state = State::Done { inline: false },
                State::Header { remaining } => {
                    match input.get(self.pos) {
                        None => return Ok(false),
                        Some(b'$') => {}
                        Some(other) => return Err(ProtocolError::ExpectedDollar(*other)),
                    }
                    let Some(end) = self.line_end(input, ProtocolError::TooBigBulkCountString)? else {
                        return Ok(false);
                    };
                    let len = parse_integer(&input[self.pos + 1..end]);
                    let len = len.filter(|n| (0..=self.max_request_bytes as i64).contains(n));
                    let len = len.ok_or(ProtocolError::InvalidBulkLength)? as usize;
                    terminated(input, end, ProtocolError::InvalidBulkLength)?;
                    let before = self.given_up.unwrap_or(0);
                    if before + end + 2 + len + 2 > self.max_request_bytes {
                        return Err(ProtocolError::TooBigRequest(self.max_request_bytes));
                    }
                    self.move_to(end + 2);
                    self.state = State::Body { remaining, len: len as u32 };
                    if self.given_up.is_some() {
                        self.give_up(input);
                    } else if len > limits::VALUE_BYTES_MAX {
                        return Err(ProtocolError::TooBigArgument(len));
                    }
                }
                State::Dropping { remaining, left: 0 } => {
                    self.state = State::Header { remaining: remaining - 1 };
                }
                State::Dropping { remaining, left } => {
                    let here = input.len().min(left as usize);
                    if here == 0 {
                        return Ok(false);
                    }
                    input.advance(here);
                    self.state = State::Dropping { remaining, left: left - here as u32 };
                }
                State::Body { remaining, len } => {
                    let end = self.pos + len as usize;
                    if input.len() < end + 2 {
                        return Ok(false);
                    }
                    if &input[end..end + 2] != b"\r\n" {
                        return Err(ProtocolError::MissingTerminator);
                    }
                    self.args.push((self.pos as u32, len));
                    self.move_to(end + 2);
                    self.state = State::Header { remaining: remaining - 1 };
                }
                State::Done { .. } => return Ok(true),
            }
        }
    }

    /// How many more bytes the command needs at least, as far as is known: what to make room for.
    pub fn missing(&self, input: &BytesMut) -> usize {
        match self.state {
            State::Body { len, .. } => (self.pos + len as usize + 2).saturating_sub(input.len()),
            _ => 1,
        }
    }

    /// How long the command is up to the end of the argument that is being read, as far as is known.
    pub fn announced(&self) -> usize {
        match self.state {
            State::Body { len, .. } => self.pos + len as usize + 2,
            _ => self.pos,
        }
    }

    /// Gives up the command that is being received: what is here of it goes, and so does the rest as it comes, without being kept.
    /// The next one that is complete is the one behind it.
    pub fn give_up(&mut self, input: &mut BytesMut) {
        let (remaining, left) = match self.state {
            State::Header { remaining } => (remaining, 0),
            State::Body { remaining, len } => (remaining, len + 2),
            State::Start | State::Dropping { .. } | State::Done { .. } => return,
        };
        *self.given_up.get_or_insert(0) += self.pos + left as usize;
        input.advance(self.pos);
        self.move_to(0);
        // (It may be long until the rest has come, if it ever does.)
        self.args = Vec::new();
        self.state = match left {
            0 => State::Header { remaining },
            left => State::Dropping { remaining, left },
        };
    }

    /// Number of arguments of the complete command, its name included; at least 1.
    pub fn len(&self) -> usize {
        self.args.len()
    }

    /// Whether no argument was read yet.
    pub fn is_empty(&self) -> bool {
        self.args.is_empty()
    }

    /// An argument of the complete command, where it lies.
    pub fn arg<'a>(&'a self, input: &'a BytesMut, index: usize) -> &'a [u8] {
        let (start, len) = self.args[index];
        let from: &[u8] =
            if matches!(self.state, State::Done { inline: true }) { &self.words } else { input };
        &from[start as usize..start as usize + len as usize]
    }

    /// How many commands as long as the complete one the input may hold, that one included.
    pub fn alike(&self, input: &BytesMut) -> usize {
        input.len() / self.pos.max(1)
    }

    /// Drops the complete command.
    pub fn skip(&mut self, input: &mut BytesMut) {
        input.advance(self.pos);
        self.reset();
    }

    /// Takes the complete command off the input without copying it, and hands it to `look`.
    pub fn take<T>(&mut self, input: &mut BytesMut, look: impl FnOnce(&Command<'_>) -> T) -> T {
        let bytes = if matches!(self.state, State::Done { inline: true }) {
            input.advance(self.pos);
            Bytes::from(std::mem::take(&mut self.words))
        } else {
            input.split_to(self.pos).freeze()
        };
        let result = look(&Command { bytes, args: &self.args });
        self.reset();
        result
    }

    fn reset(&mut self) {
        self.state = State::Start;
        self.pos = 0;
        self.scanned = 0;
        self.args.clear();
        self.args.shrink_to(ARGS_KEPT);
        self.words.clear();
        self.given_up = None;
    }

    fn move_to(&mut self, pos: usize) {
        self.pos = pos;
        self.scanned = pos;
    }

    /// Where the `\r` of the line at `pos` is, once the byte after it is here too.
    fn line_end(&mut self, input: &BytesMut, too_big: ProtocolError) -> Result<Option<usize>, ProtocolError> {
        let end = self.find(input, b'\r');
        match end {
            Some(end) if end - self.pos > LINE_BYTES_MAX => Err(too_big),
            Some(end) if input.len() > end + 1 => Ok(Some(end)),
            Some(_) => Ok(None),
            None if input.len() - self.pos > LINE_BYTES_MAX => Err(too_big),
            None => Ok(None),
        }
    }

    fn find(&mut self, input: &BytesMut, byte: u8) -> Option<usize> {
        match input[self.scanned..].iter().position(|b| *b == byte) {
            Some(offset) => {
                self.scanned += offset;
                Some(self.scanned)
            }
            None => {
                self.scanned = input.len();
                None
            }
        }
    }
}

fn terminated(input: &BytesMut, cr: usize, error: ProtocolError) -> Result<(), ProtocolError> {
    if input[cr + 1] == b'\n' { Ok(()) } else { Err(error) }
}

impl Command<'_> {
    /// Number of arguments, the name included; at least 1.
    #[allow(clippy::len_without_is_empty, reason = "a command is never empty")]
    pub fn len(&self) -> usize {
        self.args.len()
    }

    pub fn arg(&self, index: usize) -> &[u8] {
        let (start, len) = self.args[index];
        &self.bytes[start as usize..start as usize + len as usize]
    }

    /// The argument as a slice that shares the command's buffer.
    pub fn bytes(&self, index: usize) -> Bytes {
        let (start, len) = self.args[index];
        self.bytes.slice(start as usize..start as usize + len as usize)
    }

    /// The same, in a buffer of its own: what is kept of it holds nothing else.
    pub fn copied(&self) -> Self {
        Self { bytes: Bytes::copy_from_slice(&self.bytes), args: self.args }
    }

    /// The command that begins with its argument `first`.
    pub fn from(&self, first: usize) -> Self {
        Self { bytes: self.bytes.clone(), args: &self.args[first..] }
    }

    /// The arguments from `first` on.
    pub fn bytes_from(&self, first: usize) -> impl Iterator<Item = Bytes> + '_ {
        (first..self.len()).map(|i| self.bytes(i))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: usize = 1024 * 1024;

    /// Everything that a parser makes of input that arrives in these pieces.
    fn parse_all(pieces: &[&[u8]]) -> (Vec<Vec<Vec<u8>>>, Option<ProtocolError>) {
        let mut parser = Parser::new(LIMIT);
        let mut input = BytesMut::new();
        let mut commands = Vec::new();
        for piece in pieces {
            input.extend_from_slice(piece);
            loop {
                match parser.parse(&mut input) {
                    Ok(true) => {
                        let peeked: Vec<_> =
                            (0..parser.len()).map(|i| parser.arg(&input, i).to_vec()).collect();
                        let taken: Vec<_> =
                            parser.take(&mut input, |c| c.bytes_from(0).map(|b| b.to_vec()).collect());
                        assert_eq!(peeked, taken);
                        commands.push(taken);
                    }
                    Ok(false) => break,
                    Err(e) => return (commands, Some(e)),
                }
            }
        }
        (commands, None)
    }

    fn encode(args: &[Vec<u8>]) -> Vec<u8> {
        let mut out = format!("*{}\r\n", args.len()).into_bytes();
        for arg in args {
            out.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
            out.extend_from_slice(arg);
            out.extend_from_slice(b"\r\n");
        }
        out
    }

    fn error(input: &[u8]) -> String {
        let error = parse_all(&[input]).1.unwrap_or_else(|| panic!("accepted {input:?}"));
        String::from_utf8_lossy(&error.message()).into_owned()
    }

    #[test]
    fn errors_have_the_texts_of_redis() {
        for (input, text) in [
            (&b"*abc\r\n"[..], "invalid multibulk length"),
            (b"*01\r\n", "invalid multibulk length"),
            (b"*+1\r\n", "invalid multibulk length"),
            (b"* 1\r\n", "invalid multibulk length"),
            (b"*\r\n", "invalid multibulk length"),
            (b"*-0\r\n", "invalid multibulk length"),
            (b"*1000000000\r\n", "invalid multibulk length"),
            (b"*1048577\r\n", "invalid multibulk length"),
            (b"*1\r\n$999999999999\r\n", "invalid bulk length"),
            (b"*1\r\n$99999999999999999999999\r\n", "invalid bulk length"),
            (b"*1\r\n$-1\r\n", "invalid bulk length"),
            (b"*1\r\n$abc\r\n", "invalid bulk length"),
            (b"*1\r\n$04\r\n", "invalid bulk length"),
            (b"*1\r\nx3\r\n", "expected '$', got 'x'"),
            (b"*1\r\n:3\r\n", "expected '$', got ':'"),
            (b"set \"a\"b c\r\n", "unbalanced quotes in request"),
            (&[b'a'; 70_000], "too big inline request"),
        ] {
            assert_eq!(error(input), format!("ERR Protocol error: {text}"));
        }
        let mut long = b"*".to_vec();
        long.resize(70_000, b'1');
        assert_eq!(error(&long), "ERR Protocol error: too big mbulk count string");
        let mut long = b"*1\r\n$".to_vec();
        long.resize(70_000, b'1');
        assert_eq!(error(&long), "ERR Protocol error: too big bulk count string");
        assert_eq!(
            ProtocolError::ExpectedDollar(0xff).message()[..],
            b"ERR Protocol error: expected '$', got '\xff'"[..]
        );
    }

    #[test]
    fn empty_requests_are_skipped() {
        let (commands, error) = parse_all(&[b"\r\n\n*0\r\n*-1\r\n*-5\r\nPING\r\n*1\r\n$0\r\n\r\n"]);
        assert_eq!(commands, [vec![b"PING".to_vec()], vec![b"".to_vec()]]);
        assert_eq!(error, None);
    }

    #[test]
    fn announcements_allocate_nothing() {
        let mut parser = Parser::new(64 * 1024 * 1024);
        let mut input = BytesMut::from(&b"*1048576\r\n$8000000\r\nabc"[..]);
        let before = input.capacity();
        assert_eq!(parser.parse(&mut input), Ok(false));
        assert_eq!(input.capacity(), before);
        assert!(parser.args.capacity() < 16);
        assert_eq!(parser.missing(&input), 8_000_002 - 3);
    }

    #[test]
    fn an_argument_that_no_value_can_be_is_refused_when_it_is_announced() {
        let mut parser = Parser::new(64 * 1024 * 1024);
        let mut input = BytesMut::from(&b"*3\r\n$3\r\nset\r\n$1\r\nk\r\n$8388608\r\n"[..]);
        assert_eq!(parser.parse(&mut input), Ok(false), "the longest there is");
        let mut parser = Parser::new(64 * 1024 * 1024);
        let mut input = BytesMut::from(&b"*3\r\n$3\r\nset\r\n$1\r\nk\r\n$8388609\r\n"[..]);
        let error = parser.parse(&mut input).unwrap_err();
        assert_eq!(error, ProtocolError::TooBigArgument(8_388_609));
        assert!(error.message().ends_with(b"the limit is 8388608 bytes (8 MiB)"));
        // Its command may be given up; what is too long in that is not said again.
        parser.give_up(&mut input);
        input.extend_from_slice(&vec![b'v'; 8_388_609]);
        input.extend_from_slice(b"\r\n*2\r\n$3\r\nget\r\n$8388609\r\n");
        assert_eq!(
            parser.parse(&mut input),
            Err(ProtocolError::TooBigArgument(8_388_609)),
            "the next command"
        );
        parser.give_up(&mut input);
        assert_eq!((parser.parse(&mut input), input.len()), (Ok(false), 0));
    }

    #[test]
    fn an_argument_that_is_longer_than_a_command_may_be_is_no_argument_of_one_that_is_given_up() {
        let refused = |max: usize, len: usize| {
            let mut input = BytesMut::from(format!("*2\r\n$3\r\nget\r\n${len}\r\n").as_bytes());
            Parser::new(max).parse(&mut input).unwrap_err()
        };
        let max = limits::VALUE_BYTES_MAX + 1000;
        assert_eq!(refused(max, max - 100), ProtocolError::TooBigArgument(max - 100));
        assert_eq!(refused(max, max - 10), ProtocolError::TooBigRequest(max), "with what is before it");
        assert_eq!(refused(max, max + 1), ProtocolError::InvalidBulkLength);
    }

    #[test]
    fn the_sum_of_the_arguments_is_bounded() {
        let big = vec![b'x'; LIMIT / 2];
        assert_eq!(parse_all(&[&encode(&[b"set".to_vec(), big.clone()])]).1, None);
        let sum = encode(&[b"set".to_vec(), big.clone(), big]);
        assert_eq!(parse_all(&[&sum]).1, Some(ProtocolError::TooBigRequest(LIMIT)));
        // Small arguments in great number meet the same bound.
        let many = encode(&vec![Vec::new(); LIMIT / 6 + 2]);
        assert_eq!(parse_all(&[&many]).1, Some(ProtocolError::TooBigRequest(LIMIT)));
    }

    #[test]
    fn a_command_that_is_given_up_is_dropped_as_it_comes_and_nothing_behind_it() {
        let big =
            encode(&[b"set".to_vec(), b"k".to_vec(), vec![b'x'; 100_000], b"EX".to_vec(), b"9".to_vec()]);
        let all = [big, encode(&[b"get".to_vec(), b"k".to_vec()])].concat();
        for at in [9, 20, 30, 70_000, 100_030] {
            for step in [1, 7, 4096, all.len()] {
                let (mut parser, mut input) = (Parser::new(LIMIT), BytesMut::from(&all[..at]));
                assert_eq!(parser.parse(&mut input), Ok(false));
                parser.give_up(&mut input);
                let mut args = None;
                for piece in all[at..].chunks(step) {
                    input.extend_from_slice(piece);
                    if parser.parse(&mut input).unwrap() {
                        args = Some(parser.take(&mut input, |c| (c.arg(0).to_vec(), c.arg(1).to_vec())));
                    }
                    assert!(
                        input.len() < step + 32 && parser.announced() < 32,
                        "it is not kept: {}",
                        input.len()
                    );
                }
                assert_eq!(args, Some((b"get".to_vec(), b"k".to_vec())), "{at} {step}");
                assert!(input.is_empty());
            }
        }
    }

    #[test]
    fn a_command_that_is_given_up_still_has_to_be_one() {
        let given_up = |rest: &[u8]| {
            let (mut parser, mut input) =
                (Parser::new(LIMIT), BytesMut::from(&b"*3\r\n$3\r\nset\r\n$5\r\nab"[..]));
            assert_eq!(parser.parse(&mut input), Ok(false));
            parser.give_up(&mut input);
            input.extend_from_slice(rest);
            parser.parse(&mut input)
        };
        assert_eq!(given_up(b"cde\r\n"), Ok(false));
        assert_eq!(given_up(b"cde\r\nfg"), Err(ProtocolError::ExpectedDollar(b'f')));
        let larger = format!("cde\r\n${}\r\n", LIMIT - 20);
        assert_eq!(
            given_up(larger.as_bytes()),
            Err(ProtocolError::TooBigRequest(LIMIT)),
            "with what is gone"
        );
        assert_eq!(given_up(b"cde\r\n$1\r\nx\r\n*1\r\n$4\r\nping\r\n"), Ok(true));
    }

    /// Input that is worth parsing: commands, inline lines, and damage.
    fn input() -> impl Strategy<Value = Vec<u8>> {
        let arg = prop::collection::vec(any::<u8>(), 0..12);
        let piece = prop_oneof![
            6 => prop::collection::vec(arg, 1..5).prop_map(|args| encode(&args)),
            2 => "[a-z \"'\\\\x0-9]{0,20}\r?\n".prop_map(String::into_bytes),
            1 => "[*$:+-]?[0-9-]{0,4}\r\n".prop_map(String::into_bytes),
            1 => prop::collection::vec(any::<u8>(), 0..6),
        ];
        prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same(input in input(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..10)) {
            let whole = parse_all(&[&input]);
            let bytewise: Vec<&[u8]> = input.chunks(1).collect();
            prop_assert_eq!(&parse_all(&bytewise), &whole);
            let mut at: Vec<usize> = cuts.iter().map(|c| c.index(input.len() + 1)).collect();
            at.sort_unstable();
            let mut pieces = Vec::new();
            let mut from = 0;
            for cut in at {
                pieces.push(&input[from..cut]);
                from = cut;
            }
            pieces.push(&input[from..]);
            prop_assert_eq!(&parse_all(&pieces), &whole);
        }

        #[test]
        fn what_is_encoded_is_parsed(commands in prop::collection::vec(
            prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..6), 0..6)) {
            let bytes: Vec<u8> = commands.iter().flat_map(|c| encode(c)).collect();
            prop_assert_eq!(parse_all(&[&bytes]), (commands, None));
        }

        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            parse_all(&[&bytes]);
        }
    }
}
