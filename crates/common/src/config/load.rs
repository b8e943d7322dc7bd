//! Reading a configuration: a TOML file, then the environment. (Being written.)

use std::path::Path;

/// One clear line for people.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);

/// Reads `path`, applies `SEXTANT_*` environment variables, and reports unknown fields.
pub fn load<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|e| ConfigError(format!("{}: {e}", path.display())))?;
    toml::from_str(&text).map_err(|e| ConfigError(format!("{}: {e}", path.display())))
}
