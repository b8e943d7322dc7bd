//! Verification in the background: every table is read once in a while and compared with its checksum, so that damage is
//! found, and repaired from another replica, before the last good copy is gone.

use std::sync::Arc;
use std::time::Duration;

use sextant_common::error::{Error, ErrorKind, Result};
use sextant_common::ids::SstId;
use sextant_environment::vfs::IoKind;
use xxhash_rust::xxh3::Xxh3;

use crate::store::Store;
use crate::table::footer::{TRAILER_BYTES, Trailer, UNHASHED_BYTES};
use crate::table::{Caching, Direction, KeyRange, Table, TableIter};

/// Read at a time; the pace is kept between pieces.
const PIECE_BYTES: u64 = 1024 * 1024;
/// A disk may have had a bad moment: what it did not return is asked for once more, so much later.
const AGAIN: Duration = if cfg!(test) { Duration::from_millis(10) } else { Duration::from_secs(5) };
/// So many other tables are tried before a disk is said to return nothing.
const OTHERS: usize = 4;

/// What was found when all tables were verified on demand.
#[derive(Debug, Default)]
pub struct Verified {
    /// Sound ones.
    pub tables: u64,
    pub bytes: u64,
    /// A line each.
    pub damaged: Vec<String>,
}

/// What became of reading a piece.
enum Piece {
    Hashed(Box<Xxh3>),
    /// The file ends before it.
    End,
    Unreadable(Box<Xxh3>, String),
}

/// Whether the disk says that it does not have these bytes any more; not that it, or memory, is short of something.
fn is_of_the_medium(e: &std::io::Error) -> bool {
    // By disks and by file systems with checksums of their own.
    matches!(e.raw_os_error(), Some(libc::EIO | libc::EBADMSG | libc::EUCLEAN | libc::EILSEQ | libc::ENODATA))
}

fn is_away(e: &std::io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ENXIO | libc::ENODEV))
}

/// Whether the disk has a table's trailer, as it had when the table was opened.
fn returns_its_end(table: &Arc<Table>) -> bool {
    let (file, mut bytes) = (table.file(), [0; TRAILER_BYTES]);
    let at = table.trailer().file_bytes - TRAILER_BYTES as u64;
    file.forget_from(at);
    file.read_exact_at(&mut bytes, at).is_ok()
}

impl Store {
    /// Reads all tables, at the configured pace.
    pub async fn verify_all(self: &Arc<Self>) -> Verified {
        let mut all = Verified::default();
        for id in self.catalog.ids() {
            let Some(entry) = self.catalog.get(id) else { continue };
            let sound = match entry.table() {
                Ok(table) => self.verify(table).await,
                Err(e) => Err(e),
            };
            match sound {
                Ok(true) => {
                    all.tables += 1;
                    all.bytes += entry.file_bytes();
                }
                Ok(false) => {
                    self.metrics.scrub_failures.inc();
                    all.damaged.push(entry.damage().unwrap_or("damaged").to_owned());
                }
                Err(e) => {
                    let is_away = e.kind == ErrorKind::Unavailable;
                    all.damaged.push(format!("SSTable {id}: {e}"));
                    if is_away {
                        all.damaged.push("the others were not verified".to_owned());
                        break;
                    }
                }
            }
        }
        all
    }

    /// Verifies all tables, again and again. Ends when the server stops (or at once, if verification is off).
    pub async fn scrub(self: Arc<Self>) {
        let interval = Duration::from_secs(self.config.scrub_interval_s);
        if interval.is_zero() {
            return;
        }
        let mut shutdown = self.shutdown.clone();
        let rounds = async {
            loop {
                let started_ns = self.env.clock.holder_ns();
                self.scrub_all().await;
                let elapsed = Duration::from_nanos(self.elapsed_ns(started_ns));
                // A round that took longer than the interval is followed by the next one, after a breath.
                tokio::time::sleep(interval.saturating_sub(elapsed).max(Duration::from_secs(1))).await;
            }
        };
        tokio::select! {
            () = rounds => {}
            () = shutdown.wait() => {}
        }
    }

    /// One round over all tables; returns how many it found damaged.
    pub async fn scrub_all(self: &Arc<Self>) -> usize {
        let mut found = 0;
        for id in self.catalog.ids() {
            // Unreadable tables are known to be damaged; a table may have been deleted meanwhile.
            let Ok(table) = self.table(id) else { continue };
            match self.verify(&table).await {
                Ok(true) => {}
                Ok(false) => {
                    found += 1;
                    self.metrics.scrub_failures.inc();
                }
                Err(e) => {
                    tracing::warn!("SSTable {id} could not be verified: {e}");
                    if e.kind == ErrorKind::Unavailable {
                        break;
                    }
                }
            }
        }
        found
    }

    /// Reads a whole file at the configured pace. False: it is damaged, and marked so.
    async fn verify(self: &Arc<Self>, table: &Arc<Table>) -> Result<bool> {
        let hashed = table.trailer().file_bytes - UNHASHED_BYTES as u64;
        let started_ns = self.env.clock.holder_ns();
        let (mut hasher, mut at) = (Box::new(Xxh3::new()), 0);
        while at < hashed {
            let piece_bytes = PIECE_BYTES.min(hashed - at);
            let mut piece = self.piece(table, at, piece_bytes, hasher).await?;
            if let Piece::Unreadable(so_far, _) = piece {
                tokio::time::sleep(AGAIN).await;
                piece = self.piece(table, at, piece_bytes, so_far).await?;
            }
            hasher = match piece {
                Piece::Hashed(hasher) => hasher,
                Piece::End => {
                    let end = self.file_len(table).await.unwrap_or(at);
                    table.corrupt(end, "the file ends here");
                    return Ok(false);
                }
                // What the disk does not return is no copy: it is made again from another server's.
                Piece::Unreadable(_, why) => {
                    self.check_disk(table.id()).await?;
                    table.corrupt(at, &format!("the disk does not return what is here: {why}"));
                    return Ok(false);
                }
            };
            at += piece_bytes;
            self.metrics.scrubbed_bytes.inc_by(piece_bytes);
            let due_ns =
                (u128::from(at) * 1_000_000_000 / u128::from(self.config.scrub_bytes_per_s.max(1))) as u64;
            let wait_ns = due_ns.saturating_sub(self.elapsed_ns(started_ns));
            if wait_ns > 0 {
                tokio::time::sleep(Duration::from_nanos(wait_ns)).await;
            }
        }
        let has_its_checksum = hasher.digest() == table.trailer().file_checksum;
        if !has_its_checksum && self.find_damaged_frame(table).await? {
            return Ok(false);
        }
        let (trailer_at, id) = (table.trailer().file_bytes - TRAILER_BYTES as u64, table.id());
        if !self.trailer_is_sound(table).await? {
            table.corrupt(trailer_at, "trailer: not what it was when the table was opened");
            return Ok(false);
        }
        if !has_its_checksum {
            // Bytes between frames do not exist: the walk was shown others than the first read.
            table.mark_damaged(&format!("SSTable {id}: the file did not have its checksum when it was read"));
            return Ok(false);
        }
        let catalog = self.catalog.clone();
        if self.disk(IoKind::Read, move || Ok(catalog.has_lost_its_file(id))).await? {
            table.mark_damaged(&format!("SSTable {id}: the file has no name any more: somebody removed it"));
            return Ok(false);
        }
        Ok(true)
    }

    /// Reads a piece.
    async fn piece(
        self: &Arc<Self>,
        table: &Arc<Table>,
        at: u64,
        piece_bytes: u64,
        mut hasher: Box<Xxh3>,
    ) -> Result<Piece> {
        let file = table.file().clone();
        let read = move || {
            let mut piece = vec![0; piece_bytes as usize];
            match file.read_exact_at(&mut piece, at) {
                Ok(()) => hasher.update(&piece),
                Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(Piece::End),
                Err(e) if is_of_the_medium(&e) => return Ok(Piece::Unreadable(hasher, e.to_string())),
                Err(e) => return Err(e.into()),
            }
            Ok(Piece::Hashed(hasher))
        };
        self.disk(IoKind::Read, read).await
    }

    /// Whether the disk is there (`Unavailable`): it takes something, or returns something else; one that only returns what it has (at its
    /// end, or as the file system saw errors) is. One that is away (a path that was lost, a device that is reset) says of all that is on it
    /// what a bad sector says of one table, and has all of it when it comes back.
    async fn check_disk(self: &Arc<Self>, id: SstId) -> Result<()> {
        let catalog = self.catalog.clone();
        let tried = move || {
            let Err(e) = catalog.disk_answers(id) else { return Ok(()) };
            let others = catalog.ids().into_iter().filter(|other| *other != id);
            let others = others.filter_map(|other| catalog.get(other)?.table().ok().cloned()).take(OTHERS);
            let others: Vec<Arc<Table>> = others.collect();
            if others.iter().any(returns_its_end) {
                return Ok(());
            }
            if !others.is_empty() || is_of_the_medium(&e) || is_away(&e) {
                return Err(Error::unavailable(format!("the disk returns nothing, and takes nothing: {e}")));
            }
            if e.kind() == std::io::ErrorKind::ReadOnlyFilesystem { Ok(()) } else { Err(e.into()) }
        };
        self.disk(IoKind::Sync, tried).await
    }

    /// Walks over all frames; true: one is wrong, and the table is marked with its offset.
    async fn find_damaged_frame(self: &Arc<Self>, table: &Arc<Table>) -> Result<bool> {
        let table = table.clone();
        let walk = move || {
            let (range, forward) = (KeyRange::all(), Direction::Forward);
            let mut records = TableIter::new(table.clone(), range, forward, Caching::Bypass)?;
            while !records.is_at_end() {
                records.advance()?;
            }
            table.check_sections()
        };
        match self.disk(IoKind::Read, walk).await {
            Ok(()) => Ok(false),
            Err(e) if e.kind == ErrorKind::Corrupt => Ok(true),
            Err(e) => Err(e),
        }
    }

    async fn file_len(self: &Arc<Self>, table: &Arc<Table>) -> Result<u64> {
        let file = table.file().clone();
        self.disk(IoKind::Read, move || Ok(file.len()?)).await
    }

    /// The trailer holds the file checksum, which therefore does not cover all of it.
    async fn trailer_is_sound(self: &Arc<Self>, table: &Arc<Table>) -> Result<bool> {
        let (file, expected) = (table.file().clone(), *table.trailer());
        let read = move || {
            let mut bytes = vec![0; TRAILER_BYTES];
            match file.read_exact_at(&mut bytes, expected.file_bytes - TRAILER_BYTES as u64) {
                Ok(()) => {}
                Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(false),
                Err(e) => return Err(e.into()),
            }
            Ok(Trailer::parse(&bytes, expected.file_bytes).is_ok_and(|found| found == expected))
        };
        self.disk(IoKind::Read, read).await
    }
}
