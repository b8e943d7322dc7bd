//! A small disk of a server's own: a file with an ext4 file system, mounted at the server's data directory.

use std::io;
use std::path::{Path, PathBuf};

use sextant_common::error::{Error, Result};

use super::shell;

/// Named so that no server takes it for its own.
const BALLAST: &str = ".ballast";

/// A mounted volume.
#[derive(Debug)]
pub struct Volume {
    at: PathBuf,
}

impl Volume {
    /// Makes and mounts one of `mebibytes` at `at`; its image lies beside it.
    pub async fn make(at: &Path, mebibytes: u64) -> Result<Self> {
        let image = at.with_extension("img");
        std::fs::create_dir_all(at)?;
        std::fs::File::create(&image)?.set_len(mebibytes << 20)?;
        let (image, path) = (text(&image)?, text(at)?);
        shell::run(&["mkfs.ext4", "-q", "-F", "-m", "0", image]).await?;
        shell::run(&["mount", "-o", "loop", image, path]).await?;
        Ok(Self { at: at.to_owned() })
    }

    pub fn path(&self) -> &Path {
        &self.at
    }

    /// Takes all space that is left.
    pub fn fill(&self) -> Result<()> {
        use std::io::Write;
        let mut ballast = std::fs::File::create(self.at.join(BALLAST))?;
        let mut piece = vec![0x5a; 1 << 20];
        while !piece.is_empty() {
            match ballast.write_all(&piece).and_then(|()| ballast.sync_data()) {
                Ok(()) => {}
                // The last bytes in ever smaller pieces.
                Err(e) if e.kind() == io::ErrorKind::StorageFull => piece.truncate(piece.len() / 4),
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Gives it back.
    pub fn free(&self) -> Result<()> {
        match std::fs::remove_file(self.at.join(BALLAST)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e.into()),
            _ => Ok(()),
        }
    }

    /// Every write hangs until [`Volume::thaw`].
    pub async fn freeze(&self) -> Result<()> {
        shell::run(&["fsfreeze", "--freeze", text(&self.at)?]).await.map(|_| ())
    }

    pub async fn thaw(&self) -> Result<()> {
        shell::run(&["fsfreeze", "--unfreeze", text(&self.at)?]).await.map(|_| ())
    }

    /// Takes it out of sight, whoever still uses it.
    pub async fn detach(self) {
        if let Ok(at) = text(&self.at) {
            let _ = shell::run(&["umount", "--lazy", at]).await;
        }
    }

    /// Unmounts and removes it.
    pub async fn remove(self) -> Result<()> {
        shell::run(&["umount", text(&self.at)?]).await?;
        std::fs::remove_file(self.at.with_extension("img"))?;
        std::fs::remove_dir(&self.at)?;
        Ok(())
    }
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().ok_or_else(|| Error::invalid(format!("{} is not UTF-8", path.display())))
}

/// Whether volumes can be made, filled and frozen here.
pub async fn probe(dir: &Path) -> Result<()> {
    let volume = Volume::make(&dir.join("probe-volume"), 16).await?;
    let used = async {
        volume.fill()?;
        volume.free()?;
        volume.freeze().await?;
        volume.thaw().await
    }
    .await;
    volume.remove().await?;
    used
}
