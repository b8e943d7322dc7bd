//! What every run needs: the image, certificates, a place for files; and how it ends.

use sextant_common::error::{Error, Result};
use sextant_environment::Env;

use super::compose::{Compose, IMAGE};
use super::{clients, image};
use crate::args::ContainersArgs;
use crate::run::{Place, interrupted};

/// Of a binary that is not the deployed one.
const IMAGE_OF_BINARY: &str = "sextant:hosts";

pub struct Stage {
    /// With the certificates of a client, if there are some.
    pub env: Env,
    pub compose: Compose,
    pub place: Place,
}

impl Stage {
    pub async fn set(args: &ContainersArgs) -> Result<Self> {
        let root = std::path::absolute(args.root.clone().unwrap_or_else(|| ".".into()))?;
        let mut image = IMAGE;
        if let Some(binary) = &args.binary {
            image = IMAGE_OF_BINARY;
            image::of_program(image, binary, "sextant").await?;
        }
        let mut compose = Compose::probe(&root, image).await?;
        let place = Place::new(args.keep.as_ref())?;
        let mut env = Env::real();
        if args.tls {
            compose.encrypt(&place.dir.join("certificates")).await?;
        }
        if let Some(certificates) = &compose.certificates {
            env = certificates.network(&env)?;
        }
        Ok(Self { env, compose, place })
    }

    /// Removes the containers; what Docker does not let go of is told, and no verdict on the cluster. `well`: their logs are not
    /// of interest.
    pub async fn strike(mut self, well: bool) -> Result<()> {
        if !well {
            self.place.keep();
            let logs = self.place.dir.join("containers.log");
            std::fs::write(&logs, self.compose.logs().await.unwrap_or_default())?;
            println!("kept: {} (history.jsonl: `sextant check`; containers.log)", self.place.dir.display());
        }
        let removed = clients::remove_all(&self.compose).await;
        if let Err(error) = self.compose.down().await.and(removed) {
            eprintln!("left behind: {error}");
        }
        Ok(())
    }
}

pub async fn until_interrupted<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::select! {
        done = work => done,
        () = interrupted() => Err(Error::retry("interrupted")),
    }
}
