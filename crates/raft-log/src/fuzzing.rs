//! Doors for the fuzz targets: what they need of the format and cannot reach from outside. Not part of the interface.

use crate::format::batch::{BATCH_HEADER_BYTES, BatchHeader, BatchKind};
use crate::format::checkpoint::Checkpoint;
use crate::format::identity::Identity;
use crate::format::record::{RECORD_HEADER_BYTES, RecordHeader, fold_crc, read_records};
use crate::format::segment::{FoundHeader, SEGMENT_HEADER_BYTES, SegmentHeader};

/// The salt that an IDENTITY file states.
pub fn salt_of(identity: &[u8]) -> Option<u32> {
    Identity::decode(identity).ok().map(|identity| identity.salt)
}

/// Makes the checksums of an IDENTITY file right, whatever else it says.
pub fn sign_identity(bytes: &mut [u8]) {
    if let Some((head, crc)) = bytes.split_at_mut_checked(96)
        && let Some(crc) = crc.get_mut(..4)
    {
        crc.copy_from_slice(&crc32c::crc32c(head).to_le_bytes());
    }
}

/// Makes the checksums of a segment right, whatever else it says: of its header, and of every batch from the first on as far
/// as their lengths lead. What is behind the checks can be reached only so.
pub fn sign_segment(bytes: &mut [u8], salt: u32) {
    if let Some(head) = bytes.get_mut(..256) {
        let crc = crc32c::crc32c_append(salt, &head[..252]);
        head[252..].copy_from_slice(&crc.to_le_bytes());
    }
    let mut at = SEGMENT_HEADER_BYTES as usize;
    while let Some(batch) = bytes.get_mut(at..) {
        let Some(length) = sign_batch(batch, salt, at as u32) else { return };
        at = (at + BATCH_HEADER_BYTES + length).next_multiple_of(64);
    }
}

/// The length of the batch's body, if it lies within the bytes.
fn sign_batch(bytes: &mut [u8], salt: u32, offset: u32) -> Option<usize> {
    let (header, rest) = bytes.split_at_mut_checked(BATCH_HEADER_BYTES)?;
    let field = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap_or_default());
    let length = field(24) as usize;
    let body = rest.get_mut(..length)?;
    let body_crc = if header[4] == 1 {
        crc32c::crc32c_append(salt, body)
    } else {
        let (mut at, mut folded) = (0, salt);
        for _ in 0..field(28) {
            let Some(record) = body.get_mut(at..).filter(|record| record.len() >= RECORD_HEADER_BYTES) else {
                break;
            };
            let payload = u32::from_le_bytes(record[4..8].try_into().unwrap_or_default()) as usize;
            let Some(end) = RECORD_HEADER_BYTES.checked_add(payload).filter(|end| *end <= record.len())
            else {
                break;
            };
            let crc = crc32c::crc32c_append(salt, &record[4..end]);
            record[..4].copy_from_slice(&crc.to_le_bytes());
            folded = fold_crc(folded, crc);
            at += end;
        }
        folded
    };
    header[20..24].copy_from_slice(&offset.to_le_bytes());
    header[44..48].copy_from_slice(&body_crc.to_le_bytes());
    let crc = crc32c::crc32c_append(salt, &header[..60]);
    header[60..].copy_from_slice(&crc.to_le_bytes());
    Some(length)
}

/// Decodes the bytes as every part of the format. What is accepted must encode to what decodes equally.
pub fn decode_parts(bytes: &[u8], salt: u32) {
    if let Ok(identity) = Identity::decode(bytes) {
        assert_eq!(Identity::decode(&identity.encode()), Ok(identity));
    }
    if let FoundHeader::Valid(header) = SegmentHeader::decode(bytes, salt) {
        let encoded = header.encode(salt);
        assert!(
            matches!(SegmentHeader::decode(&encoded, salt), FoundHeader::Valid(again) if again == header)
        );
    }
    let offset = bytes.get(20..24).map_or(0, |at| u32::from_le_bytes(at.try_into().unwrap_or_default()));
    if let Some(header) = BatchHeader::decode(bytes, salt, u64::from(offset)) {
        let (next, end) = (header.next_lsn(), header.end());
        assert!(next >= header.first_lsn && end >= header.body_start());
        assert_eq!(BatchHeader::decode(&header.encode(salt), salt, u64::from(offset)), Some(header));
        let body = bytes.get(BATCH_HEADER_BYTES..).unwrap_or_default();
        let body = &body[..body.len().min(header.length as usize)];
        if header.kind == BatchKind::Records {
            let mut seen = 0;
            let whole = read_records(body, header.records, header.body_crc, salt, |_, _| seen += 1);
            assert!(!whole || seen == header.records);
        }
    }
    if let Some((header, crc)) = RecordHeader::read(bytes, salt) {
        let payload = &bytes[RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + header.length as usize];
        let mut encoded = Vec::new();
        assert_eq!(header.write(payload, salt, &mut encoded), crc);
        assert_eq!(encoded, bytes[..encoded.len()]);
    }
    if let Some(checkpoint) = Checkpoint::decode(bytes) {
        assert_eq!(Checkpoint::decode(&checkpoint.encode()), Some(checkpoint));
    }
}
