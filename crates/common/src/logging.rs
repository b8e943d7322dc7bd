//! Structured logs to standard error. `RUST_LOG` filters; `SEXTANT_LOG_FORMAT=json` makes them JSON lines.

/// Installs the subscriber once per process; later calls do nothing.
pub fn init() {
    use tracing_subscriber::EnvFilter;
    let filter =
        EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info,openraft=error,h2=warn"));
    let json = std::env::var("SEXTANT_LOG_FORMAT").is_ok_and(|f| f == "json");
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let _ = if json { builder.json().try_init() } else { builder.with_target(true).try_init() };
}
