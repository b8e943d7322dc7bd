//! The cluster of `deploy/compose.yaml`, under a project name of its own, and what can be done to its containers.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sextant_common::error::{Error, Result};

use super::addresses::Addresses;
use super::certificates::Certificates;
use crate::host::shell::run;

/// The files, from the repository's root. The second only with TLS.
const FILE: &str = "deploy/compose.yaml";
const TLS_FILE: &str = "deploy/compose.tls.yaml";
/// What `deploy/docker/build` makes.
pub const IMAGE: &str = "sextant:latest";
/// Containers are stopped for so long before they are killed.
const STOP_SECONDS: &str = "30";
const HEALTHY_WITHIN: Duration = Duration::from_secs(180);
const DOWN_ATTEMPTS: u32 = 20;
const LOOK_AGAIN: Duration = Duration::from_millis(200);

pub struct Compose {
    /// `docker-compose`, or `docker compose`.
    program: Vec<&'static str>,
    root: PathBuf,
    pub project: String,
    pub image: String,
    addresses: Addresses,
    /// Without, everything is open.
    pub certificates: Option<Certificates>,
    /// Further files, which change what those of the repository say.
    pub overrides: Vec<PathBuf>,
}

impl Compose {
    /// Whether there is a Docker that can be used, and the image.
    pub async fn probe(root: &Path, image: &str) -> Result<Self> {
        run(&["docker", "info"])
            .await
            .map_err(|e| Error::unavailable(format!("no Docker: {}", e.message)))?;
        run(&["docker", "image", "inspect", image])
            .await
            .map_err(|_| Error::unavailable(format!("no image {image}: run deploy/docker/build first")))?;
        let plugin = run(&["docker", "compose", "version"]).await.is_ok();
        let program = if plugin { vec!["docker", "compose"] } else { vec!["docker-compose"] };
        let project = format!("sextant-hosts-{}", std::process::id());
        let addresses = Addresses::claim().await?;
        let (root, image) = (root.to_owned(), image.to_owned());
        Ok(Self { program, root, project, image, addresses, certificates: None, overrides: Vec::new() })
    }

    /// Certificates on everything from now on, which are made here.
    pub async fn encrypt(&mut self, dir: &Path) -> Result<()> {
        self.certificates =
            Some(Certificates::make(&self.root, dir, &self.image, &self.addresses.bind()).await?);
        Ok(())
    }

    async fn compose(&self, words: &[&str]) -> Result<String> {
        let file = |name: &str| self.root.join(name).display().to_string();
        let mut variables = vec![
            format!("SEXTANT_BIND={}", self.addresses.bind()),
            format!("SEXTANT_SUBNET={}", self.addresses.subnet()),
            format!("SEXTANT_IMAGE={}", self.image),
        ];
        let mut files = vec![file(FILE)];
        if let Some(certificates) = &self.certificates {
            variables.push(format!("SEXTANT_CERTIFICATES={}", certificates.dir().display()));
            files.push(file(TLS_FILE));
        }
        files.extend(self.overrides.iter().map(|path| path.display().to_string()));
        let mut all = vec!["env"];
        all.extend(variables.iter().map(String::as_str));
        all.extend(&self.program);
        all.extend(["--project-name", &self.project]);
        all.extend(files.iter().flat_map(|file| ["--file", file]));
        all.extend(words);
        run(&all).await
    }

    pub async fn up(&self) -> Result<()> {
        self.compose(&["up", "--detach"]).await.map(drop)
    }

    /// Removes everything, volumes included. Docker may hold on to a place in the network whose container is gone.
    pub async fn down(&self) -> Result<()> {
        let mut attempts = DOWN_ATTEMPTS;
        loop {
            let gone = self.compose(&["down", "--volumes", "--timeout", STOP_SECONDS]).await;
            attempts -= 1;
            if gone.is_ok() || attempts == 0 {
                return gone.map(drop);
            }
            self.leave_network().await;
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Whatever still has a place in the network loses it. What cannot be done is tried again by [`Self::down`].
    async fn leave_network(&self) {
        let (network, names) = (self.network(), "{{range .Containers}}{{println .Name}}{{end}}");
        let named =
            run(&["docker", "network", "inspect", "--format", names, &network]).await.unwrap_or_default();
        for name in named.split_whitespace() {
            let _ = run(&["docker", "network", "disconnect", "--force", &network, name]).await;
        }
    }

    pub async fn logs(&self) -> Result<String> {
        self.compose(&["logs", "--no-color", "--tail", "200"]).await
    }

    /// Where ports are published: this run's alone.
    pub fn bind(&self) -> String {
        self.addresses.bind()
    }

    /// One of the containers' network that no container gets, with the network's size.
    pub fn address_of_harness(&self) -> String {
        self.addresses.of_harness()
    }

    /// The p-nodes, for clients on this machine.
    pub fn pnodes(&self) -> Vec<String> {
        [7400, 7401].map(|port| format!("{}:{port}", self.addresses.bind())).to_vec()
    }

    /// The container of a service, running or not.
    pub async fn container(&self, service: &str) -> Result<String> {
        let filters = [("project", self.project.as_str()), ("service", service)];
        let [project, service_is] = filters.map(|(what, is)| format!("label=com.docker.compose.{what}={is}"));
        let found =
            run(&["docker", "ps", "--all", "--quiet", "--filter", &project, "--filter", &service_is]).await?;
        match found.lines().next() {
            Some(id) => Ok(id.to_owned()),
            None => Err(Error::unavailable(format!("no container of {service}"))),
        }
    }

    pub async fn docker(&self, words: &[&str], service: &str) -> Result<()> {
        let container = self.container(service).await?;
        let all: Vec<&str> =
            ["docker"].into_iter().chain(words.iter().copied()).chain([container.as_str()]).collect();
        run(&all).await.map(drop)
    }

    /// `sextant` with these words, within the service's container.
    pub async fn sextant(&self, service: &str, words: &[&str]) -> Result<String> {
        let container = self.container(service).await?;
        run(&[&["docker", "exec", &container, "/sextant"], words].concat()).await
    }

    pub fn network(&self) -> String {
        format!("{}_cluster", self.project)
    }

    /// Docker's bridge, on this machine.
    pub async fn bridge(&self) -> Result<String> {
        let id = run(&["docker", "network", "inspect", "--format", "{{.Id}}", &self.network()]).await?;
        Ok(format!("br-{}", &id.trim()[..12.min(id.trim().len())]))
    }

    pub async fn disconnect(&self, service: &str) -> Result<()> {
        let container = self.container(service).await?;
        run(&["docker", "network", "disconnect", &self.network(), &container]).await.map(drop)
    }

    /// `elsewhere`: under the so many'th of the addresses that nothing else gets.
    pub async fn connect(&self, service: &str, elsewhere: Option<u8>) -> Result<()> {
        let container = self.container(service).await?;
        let network = self.network();
        let mut words = vec!["docker", "network", "connect", "--alias", service];
        let other = elsewhere.map(|nth| self.addresses.unusual(nth));
        if let Some(other) = &other {
            words.extend(["--ip", other]);
        }
        words.extend([network.as_str(), container.as_str()]);
        run(&words).await.map(drop)
    }

    pub async fn address(&self, service: &str) -> Result<String> {
        let format = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}";
        let container = self.container(service).await?;
        Ok(run(&["docker", "inspect", "--format", format, &container]).await?.trim().to_owned())
    }

    /// The container with its volume is gone, and comes again with an empty one.
    pub async fn remove(&self, service: &str) -> Result<()> {
        self.compose(&["rm", "--stop", "--force", service]).await?;
        run(&["docker", "volume", "rm", &format!("{}_{service}", self.project)]).await.map(drop)
    }

    pub async fn restart(&self, service: &str) -> Result<()> {
        self.docker(&["restart", "--time", STOP_SECONDS], service).await
    }

    /// Whether the service's health check says so now.
    async fn is_healthy(&self, service: &str) -> bool {
        let Ok(container) = self.container(service).await else { return false };
        let ask = ["health", "--config", &format!("/etc/sextant/{service}.toml")].map(str::to_owned);
        let words = ask.each_ref().map(String::as_str);
        run(&[&["docker", "exec", &container, "/sextant"][..], &words].concat()).await.is_ok()
    }

    pub async fn wait_healthy(&self, services: &[&str]) -> Result<()> {
        let healthy = async {
            for service in services {
                while !self.is_healthy(service).await {
                    tokio::time::sleep(LOOK_AGAIN).await;
                }
            }
        };
        let waited = tokio::time::timeout(HEALTHY_WITHIN, healthy).await;
        waited.map_err(|_| Error::unavailable(format!("not healthy within {} s", HEALTHY_WITHIN.as_secs())))
    }
}
