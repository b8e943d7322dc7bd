//! The certificates of the cluster, as an operator makes them: by `deploy/docker/certificates`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sextant_common::error::Result;
use sextant_environment::Env;
use sextant_tls::{ClientFiles, TlsNetwork};

use crate::host::shell::run;

const SCRIPT: &str = "deploy/docker/certificates";
/// A user's, among the directories of servers.
const CLIENT: &str = "client";

#[derive(Debug)]
pub struct Certificates(PathBuf);

impl Certificates {
    /// In a new directory. `host`: where clients on this machine reach the p-nodes.
    pub async fn make(root: &Path, dir: &Path, image: &str, host: &str) -> Result<Self> {
        let (script, image) = (root.join(SCRIPT), format!("SEXTANT_IMAGE={image}"));
        run(&["env", &image, &script.to_string_lossy(), &dir.to_string_lossy(), host]).await?;
        Ok(Self(dir.to_owned()))
    }

    pub fn dir(&self) -> &Path {
        &self.0
    }

    /// What clients on this machine show and expect.
    pub fn network(&self, env: &Env) -> Result<Env> {
        let file = |name: &str| self.0.join(CLIENT).join(name);
        let files = ClientFiles { ca: file("ca.pem"), shown: Some((file("user.pem"), file("user.key"))) };
        let net = TlsNetwork::client(env.clone(), files, "")?;
        Ok(Env { net: Arc::new(net), ..env.clone() })
    }

    /// What a client's container gets: words of `docker`.
    pub fn mounted(&self) -> Vec<String> {
        let mut words =
            vec!["--volume".to_owned(), format!("{}:/etc/sextant-tls:ro", self.0.join(CLIENT).display())];
        for (name, file) in [("CA", "ca.pem"), ("CERT", "user.pem"), ("KEY", "user.key")] {
            words.extend(["--env".to_owned(), format!("SEXTANT_TLS_{name}=/etc/sextant-tls/{file}")]);
        }
        words
    }
}
