//! Structured logs to standard error. `RUST_LOG` filters; `SEXTANT_LOG_FORMAT=json` makes them JSON lines.

/// Installs the subscriber once per process; later calls do nothing.
pub fn init() {
    init_with("info,openraft=error,h2=warn");
}

/// The same with another filter for when `RUST_LOG` is not set.
pub fn init_with(default_filter: &str) {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default_filter));
    let json = std::env::var("SEXTANT_LOG_FORMAT").is_ok_and(|f| f == "json");
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let _ = if json { builder.json().try_init() } else { builder.with_target(true).try_init() };
}
