//! Files of tables that are arriving. One that broke off is kept for a while: whoever orders the same table again goes on with it.
//!
//! All replicas of a table are the same bytes, so what one source began another one may go on with. What came of it is judged
//! by the checksum of the whole.

use std::sync::Arc;

use parking_lot::Mutex;
use sextant_common::error::{Error, Result};
use sextant_common::ids::SstId;
use xxhash_rust::xxh3::Xxh3;

use super::Piece;
use crate::data_dir::Temporary;
use crate::table::footer::UNHASHED_BYTES;

/// Most that are kept, of all partitions: each takes room on the disk, until somebody needs it. Leaders break off what is slow, and ask
/// for it again after others.
const KEPT_MAX: usize = 32;
/// How long. A leader repeats its orders within seconds; what nobody asks for by then is not wanted any more.
const KEPT_NS: u64 = 300_000_000_000;

/// What the file must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub id: SstId,
    pub checksum: u64,
    pub file_bytes: u64,
}

/// A file that is arriving. It vanishes with this, unless it becomes a table.
pub struct Arriving {
    wanted: Wanted,
    so_far: Mutex<SoFar>,
}

struct SoFar {
    /// None: it is complete.
    temporary: Option<Temporary>,
    hasher: Xxh3,
    bytes: u64,
}

impl Arriving {
    pub fn new(wanted: Wanted, temporary: Temporary) -> Arc<Self> {
        let so_far = SoFar { temporary: Some(temporary), hasher: Xxh3::new(), bytes: 0 };
        Arc::new(Self { wanted, so_far: Mutex::new(so_far) })
    }

    /// How much of it is here.
    pub fn bytes(&self) -> u64 {
        self.so_far.lock().bytes
    }

    /// How much of it is here then.
    pub fn write(&self, piece: &Piece) -> Result<u64> {
        let mut so_far = self.so_far.lock();
        let end = so_far.bytes.saturating_add(piece.data.len() as u64);
        if piece.offset != so_far.bytes || end > self.wanted.file_bytes {
            return Err(Error::corrupt("the source sent other bytes than were asked for"));
        }
        let Some(temporary) = &so_far.temporary else { return Err(Error::internal("it is complete")) };
        temporary.file().write_all_at(&piece.data, so_far.bytes)?;
        let hashed = self.wanted.file_bytes - UNHASHED_BYTES as u64;
        let of_hashed = hashed.saturating_sub(so_far.bytes).min(piece.data.len() as u64);
        so_far.hasher.update(&piece.data[..of_hashed as usize]);
        so_far.bytes = end;
        Ok(end)
    }

    /// The file, verified and synced.
    pub fn complete(&self) -> Result<Temporary> {
        let Wanted { id, checksum, file_bytes } = self.wanted;
        let mut so_far = self.so_far.lock();
        if so_far.bytes != file_bytes {
            let bytes = so_far.bytes;
            return Err(Error::corrupt(format!("the source has {bytes} bytes, expected {file_bytes}")));
        }
        let got = so_far.hasher.digest();
        if got != checksum {
            return Err(Error::corrupt(format!(
                "SSTable {id}: checksum {got:#018x}, expected {checksum:#018x}"
            )));
        }
        let temporary = so_far.temporary.take().ok_or_else(|| Error::internal("it is complete"))?;
        temporary.file().sync_data()?;
        Ok(temporary)
    }
}

/// Files that broke off, the oldest first, and since when they are kept.
#[derive(Default)]
pub struct BrokenOff(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    files: Vec<(u64, Arc<Arriving>)>,
    /// The directory is closed: nothing is kept any more.
    is_over: bool,
}

impl BrokenOff {
    pub fn keep(&self, file: Arc<Arriving>, now_ns: u64) {
        let mut kept = self.0.lock();
        if kept.is_over {
            return;
        }
        if kept.files.len() >= KEPT_MAX {
            kept.files.remove(0);
        }
        kept.files.push((now_ns, file));
    }

    /// What is here of such a file, unless something of an earlier order is still being written, or waits to be.
    pub fn take(&self, wanted: Wanted) -> Option<Arc<Arriving>> {
        let files = &mut self.0.lock().files;
        let is_it = |file: &Arc<Arriving>| file.wanted == wanted && Arc::strong_count(file) == 1;
        let at = files.iter().position(|(_, file)| is_it(file))?;
        Some(files.remove(at).1)
    }

    /// Those that nobody asked for again.
    pub fn forget_old(&self, now_ns: u64) {
        self.0.lock().files.retain(|(since_ns, _)| now_ns.saturating_sub(*since_ns) < KEPT_NS);
    }

    /// Their room is needed.
    pub fn forget_all(&self) {
        self.0.lock().files.clear();
    }

    /// Before the directory is somebody else's.
    pub fn close(&self) {
        let mut kept = self.0.lock();
        kept.is_over = true;
        kept.files.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use bytes::Bytes;
    use sextant_common::ErrorKind;
    use sextant_common::ids::NodeId;
    use sextant_environment::vfs::Vfs;
    use sextant_simulated::FaultyVfs;
    use xxhash_rust::xxh3::xxh3_64;

    use super::*;
    use crate::data_dir::DataDir;
    use crate::testing::sst_id;

    struct Directory {
        vfs: FaultyVfs,
        dir: DataDir,
    }

    impl Directory {
        fn new() -> Self {
            let vfs = FaultyVfs::new(1);
            let dir = DataDir::open(Arc::new(vfs.clone()), Path::new("/data"), "c", 4, NodeId(1)).unwrap();
            Self { vfs, dir }
        }

        fn begun(&self, wanted: Wanted) -> Arc<Arriving> {
            Arriving::new(wanted, self.dir.create_temporary(wanted.id).unwrap())
        }

        fn temporaries(&self) -> usize {
            let files = self.vfs.list(Path::new("/data")).unwrap();
            files.iter().filter(|path| path.extension().is_some_and(|e| e == "tmp")).count()
        }
    }

    fn wanted(n: u32, contents: &[u8]) -> Wanted {
        let hashed = &contents[..contents.len() - UNHASHED_BYTES];
        Wanted { id: sst_id(n), checksum: xxh3_64(hashed), file_bytes: contents.len() as u64 }
    }

    fn piece(contents: &[u8], from: usize, to: usize) -> Piece {
        Piece { offset: from as u64, data: Bytes::copy_from_slice(&contents[from..to]) }
    }

    #[test]
    fn a_file_in_pieces_is_complete_if_all_of_it_came_and_is_what_was_wanted() {
        let (directory, contents) = (Directory::new(), [7u8; 300]);
        let file = directory.begun(wanted(1, &contents));
        assert_eq!(file.write(&piece(&contents, 0, 120)).unwrap(), 120);
        for misplaced in [piece(&contents, 0, 10), piece(&contents, 130, 140)] {
            assert_eq!(file.write(&misplaced).unwrap_err().kind, ErrorKind::Corrupt);
        }
        assert_eq!(file.complete().map(drop).unwrap_err().kind, ErrorKind::Corrupt, "a part is missing");
        assert_eq!(file.write(&piece(&contents, 120, 300)).unwrap(), 300);
        let more = Piece { offset: 300, data: Bytes::from_static(b"x") };
        assert_eq!(file.write(&more).unwrap_err().kind, ErrorKind::Corrupt);
        directory.dir.publish(file.complete().unwrap()).unwrap();

        let other = directory.begun(Wanted { checksum: 5, ..wanted(2, &contents) });
        other.write(&piece(&contents, 0, 300)).unwrap();
        assert_eq!(other.complete().map(drop).unwrap_err().kind, ErrorKind::Corrupt);
        drop(other);
        assert_eq!(directory.temporaries(), 0);
    }

    #[test]
    fn what_broke_off_is_kept_for_the_same_file_only_and_for_a_while() {
        let (directory, contents) = (Directory::new(), [7u8; 300]);
        let (kept, wanted) = (BrokenOff::default(), wanted(1, &contents));
        let file = directory.begun(wanted);
        file.write(&piece(&contents, 0, 120)).unwrap();
        kept.keep(file, 1000);
        for other in [
            Wanted { checksum: 1, ..wanted },
            Wanted { file_bytes: 301, ..wanted },
            Wanted { id: sst_id(2), ..wanted },
        ] {
            assert!(kept.take(other).is_none());
        }
        let file = kept.take(wanted).unwrap();
        assert_eq!(file.bytes(), 120);
        assert!(kept.take(wanted).is_none(), "nobody else goes on with it");

        kept.keep(file, 1000);
        kept.forget_old(1000 + KEPT_NS - 1);
        assert_eq!(directory.temporaries(), 1);
        kept.forget_old(1000 + KEPT_NS);
        assert_eq!(directory.temporaries(), 0);

        for n in 0..KEPT_MAX as u32 + 2 {
            kept.keep(directory.begun(Wanted { id: sst_id(n), ..wanted }), 2000);
        }
        assert_eq!(directory.temporaries(), KEPT_MAX);
        assert!(kept.take(Wanted { id: sst_id(1), ..wanted }).is_none(), "the oldest are gone");
        kept.close();
        kept.keep(directory.begun(wanted), 2000);
        assert_eq!(directory.temporaries(), 0);
    }

    #[test]
    fn what_is_still_being_written_is_not_gone_on_with() {
        let (directory, contents) = (Directory::new(), [7u8; 300]);
        let (kept, wanted) = (BrokenOff::default(), wanted(1, &contents));
        let file = directory.begun(wanted);
        kept.keep(file.clone(), 1000);
        // (`file`: what writes has it.)
        assert!(kept.take(wanted).is_none());
        drop(file);
        assert!(kept.take(wanted).is_some());
    }
}
