//! Messages with very many fields are refused while they come: in two bytes a client can name an operation that takes a hundred times
//! as many once it is decoded, and nobody knows yet who it is.
//!
//! Owns counting, in the bytes of a call, how many fields a message has at its top. Everything else about a message is judged when it is
//! decoded; what is no message is left to that, too.

use sextant_common::limits::BATCH_OPS_MAX;
use tonic::Status;

/// Of a message: as many as the longest batch or multi-get has, and what else such a message says.
const FIELDS_MAX: usize = BATCH_OPS_MAX + 16;
/// Before each message: whether it is compressed, and its length.
const PREFIX_BYTES: u32 = 5;

/// What is said of a message that has too many.
pub(super) fn too_many() -> Status {
    Status::invalid_argument(format!(
        "a message has groups, or more than {FIELDS_MAX} fields: the limit of a batch is {BATCH_OPS_MAX}"
    ))
}

/// A number of seven bits a byte that is coming in.
#[derive(Clone, Copy, Debug, Default)]
struct Number {
    value: u64,
    bits: u32,
}

enum Step {
    More,
    Whole(u64),
    TooLong,
}

impl Number {
    fn push(&mut self, byte: u8) -> Step {
        if self.bits > 63 {
            return Step::TooLong;
        }
        self.value |= u64::from(byte & 0x7f) << self.bits;
        self.bits += 7;
        if byte & 0x80 == 0 { Step::Whole(self.value) } else { Step::More }
    }
}

/// What the next bytes of a message are.
#[derive(Clone, Copy, Debug)]
enum At {
    Tag(Number),
    Value(Number),
    Length(Number),
    /// So many bytes of a field.
    Inside(u64),
    /// Nothing that could be decoded.
    Lost,
}

impl At {
    const FIELD: At = At::Tag(Number { value: 0, bits: 0 });

    fn after(bytes: u64) -> Self {
        if bytes == 0 { Self::FIELD } else { At::Inside(bytes) }
    }
}

#[derive(Debug)]
pub(super) struct Fields {
    /// Bytes of the prefix that have come, and the length that they say.
    prefix: u32,
    length: u32,
    /// Messages that have begun.
    begun: usize,
    /// Of the one that has begun last.
    announced: u32,
    /// Of the message.
    left: u32,
    at: At,
    count: usize,
}

impl Default for Fields {
    fn default() -> Self {
        Self { prefix: 0, length: 0, begun: 0, announced: 0, left: 0, at: At::FIELD, count: 0 }
    }
}

impl Fields {
    /// How long the last message is that has begun.
    pub fn announced(&self) -> usize {
        self.announced as usize
    }

    /// How many have.
    pub fn begun(&self) -> usize {
        self.begun
    }

    /// How much of it has come.
    pub fn come(&self) -> usize {
        (self.announced - self.left) as usize
    }

    /// Whether all of it has come.
    pub fn is_whole(&self) -> bool {
        self.left == 0
    }

    /// False: there are too many.
    pub fn pass(&mut self, mut data: &[u8]) -> bool {
        while let Some(byte) = data.first().copied() {
            if self.left == 0 {
                data = &data[1..];
                self.begin(byte);
                continue;
            }
            let whole = data.len().min(self.left as usize);
            let taken = match self.at {
                At::Lost => whole,
                At::Inside(bytes) => {
                    let taken = whole.min(usize::try_from(bytes).unwrap_or(usize::MAX));
                    self.at = At::after(bytes - taken as u64);
                    taken
                }
                At::Tag(mut tag) => {
                    self.at = match tag.push(byte) {
                        Step::More => At::Tag(tag),
                        Step::Whole(tag) => self.field(tag),
                        Step::TooLong => At::Lost,
                    };
                    1
                }
                At::Value(mut value) => {
                    self.at = match value.push(byte) {
                        Step::More => At::Value(value),
                        Step::Whole(_) => At::FIELD,
                        Step::TooLong => At::Lost,
                    };
                    1
                }
                At::Length(mut length) => {
                    self.at = match length.push(byte) {
                        Step::More => At::Length(length),
                        Step::Whole(bytes) => At::after(bytes),
                        Step::TooLong => At::Lost,
                    };
                    1
                }
            };
            data = &data[taken..];
            self.left -= taken as u32;
            if self.count > FIELDS_MAX {
                return false;
            }
        }
        true
    }

    fn begin(&mut self, byte: u8) {
        if self.prefix > 0 {
            self.length = self.length << 8 | u32::from(byte);
        }
        self.prefix += 1;
        if self.prefix == PREFIX_BYTES {
            let (begun, length) = (self.begun + 1, self.length);
            *self = Self { begun, announced: length, left: length, ..Self::default() };
        }
    }

    fn field(&mut self, tag: u64) -> At {
        self.count += 1;
        match tag & 7 {
            0 => At::Value(Number::default()),
            1 => At::Inside(8),
            2 => At::Length(Number::default()),
            5 => At::Inside(4),
            // A group: no message of ours has one, and what follows it would be decoded.
            3 => {
                self.count = FIELDS_MAX + 1;
                At::Lost
            }
            _ => At::Lost,
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use prost::Message as _;
    use sextant_proto::v1;

    use super::*;

    fn framed(message: &[u8]) -> Vec<u8> {
        [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat()
    }

    fn passes(bytes: &[u8], piece: usize) -> bool {
        let mut fields = Fields::default();
        bytes.chunks(piece).all(|piece| fields.pass(piece))
    }

    fn empty_operations(count: usize) -> Vec<u8> {
        [0x0a, 0x00].repeat(count)
    }

    #[test]
    fn a_message_with_as_many_fields_as_a_batch_may_have_passes_and_one_with_more_does_not() {
        for piece in [1, 7, 16_384, usize::MAX] {
            assert!(passes(&framed(&empty_operations(FIELDS_MAX)), piece));
            assert!(!passes(&framed(&empty_operations(FIELDS_MAX + 1)), piece));
        }
        let two = [framed(&empty_operations(FIELDS_MAX)), framed(&empty_operations(FIELDS_MAX))].concat();
        assert!(passes(&two, 1000), "each for itself");
    }

    #[test]
    fn what_is_inside_of_fields_is_not_counted() {
        let op = v1::KvBatchOp { ..Default::default() };
        let mut batch = v1::KvBatchRequest { ops: vec![op; 3], ..Default::default() };
        let keys = vec![Bytes::from(vec![0x0a; 300]); 4];
        let get = v1::KvMultiGetRequest { table: "t".repeat(200), keys, ..Default::default() };
        batch.request = Some(v1::RequestId { ..Default::default() });
        for (message, expected) in [(batch.encode_to_vec(), 4), (get.encode_to_vec(), 5)] {
            for piece in [1, 3, 1000] {
                let mut fields = Fields::default();
                let framed = framed(&message);
                assert!(framed.chunks(piece).all(|piece| fields.pass(piece)));
                assert_eq!((fields.count, fields.left), (expected, 0));
            }
        }
    }

    #[test]
    fn a_group_is_refused_whatever_follows_it() {
        let group = [&[0x9b, 0x06, 0x9c, 0x06][..], &empty_operations(10)].concat();
        for piece in [1, 3, 1000] {
            assert!(!passes(&framed(&group), piece));
        }
    }

    #[test]
    fn what_is_no_message_does_no_harm() {
        let mut state = 1u64;
        for length in 0..2_000usize {
            let noise: Vec<u8> = (0..length)
                .map(|_| {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    (state >> 56) as u8
                })
                .collect();
            for bytes in [framed(&noise), noise] {
                assert_eq!(passes(&bytes, 13), passes(&bytes, 1), "{bytes:?}");
            }
        }
    }
}
