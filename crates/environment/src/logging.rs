//! Structured logs to standard error. `RUST_LOG` filters (`info`, or `warn,sextant_pnode=debug`: a level, and levels of modules);
//! `SEXTANT_LOG_FORMAT=json` makes them JSON lines. What is for an audit is logged whatever it filters, if it does not name `audit` too.

use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

/// What is logged if nobody says.
const DEFAULT: &str = "info,openraft=error,h2=error";
/// The target of refusals and acts of administration.
const AUDIT: &str = "audit";

/// Installs the subscriber once per process; later calls do nothing.
pub fn init() {
    init_with(DEFAULT);
}

/// The same with another filter for when `RUST_LOG` is not set.
pub fn init_with(default_filter: &str) {
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let json = std::env::var("SEXTANT_LOG_FORMAT").is_ok_and(|f| f == "json");
    install(if json { lines.json().boxed() } else { lines.boxed() }, default_filter);
}

/// Lines without the time, which is another one in each run: for simulations.
pub fn init_timeless() {
    install(tracing_subscriber::fmt::layer().with_writer(std::io::stderr).without_time().boxed(), DEFAULT);
}

fn install(lines: Box<dyn Layer<Registry> + Send + Sync>, default_filter: &str) {
    let (filter, bad) = filter(std::env::var("RUST_LOG").ok().as_deref(), default_filter);
    let installed = tracing_subscriber::registry().with(lines).with(filter).try_init();
    if let (Ok(()), Some(bad)) = (installed, bad) {
        tracing::warn!("RUST_LOG: {bad}; logging {default_filter:?} instead");
    }
}

/// What `RUST_LOG` asks for, or else the default; and what is wrong with it.
fn filter(asked: Option<&str>, default: &str) -> (Targets, Option<String>) {
    let or_default = |bad| (default.parse().unwrap_or_default(), bad);
    // `info,` is `info`: an empty part would be a level of its own.
    let parts: Vec<&str> =
        asked.unwrap_or("").split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    if parts.is_empty() {
        return or_default(None);
    }
    if let Some(part) = parts.iter().find(|part| part.contains(['[', '{']) || part.ends_with('=')) {
        return or_default(Some(format!("{part:?} is not a level, and no module=level")));
    }
    match parts.join(",").parse::<Targets>() {
        Ok(filter) => (with_audit(filter), None),
        Err(e) => or_default(Some(format!("{e}"))),
    }
}

/// Whoever asks for fewer lines, or for those of some modules, does not mean these, unless it says so.
fn with_audit(filter: Targets) -> Targets {
    let is_named = filter.iter().any(|(target, _)| target == AUDIT);
    match is_named || filter.would_enable(AUDIT, &Level::INFO) {
        true => filter,
        false => filter.with_target(AUDIT, Level::INFO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_a_level_and_levels_of_modules() {
        let (asked, bad) = filter(Some("warn,sextant_pnode=debug"), DEFAULT);
        assert_eq!(bad, None);
        assert!(asked.would_enable("sextant_pnode::router", &Level::DEBUG));
        assert!(!asked.would_enable("h2", &Level::INFO) && asked.would_enable("h2", &Level::WARN));
        let (asked, bad) = filter(Some("info, ,"), DEFAULT);
        assert!(bad.is_none() && asked.would_enable("h2", &Level::INFO), "a comma too many");
    }

    #[test]
    fn what_is_for_an_audit_is_logged_unless_it_is_named() {
        let level = |asked: &str| {
            let (filter, bad) = filter(Some(asked), DEFAULT);
            assert_eq!(bad, None, "{asked}");
            let levels = [Level::DEBUG, Level::INFO, Level::WARN, Level::ERROR];
            levels.into_iter().find(|level| filter.would_enable("audit", level))
        };
        for asked in ["info", "warn", "off", "sextant_pnode=debug", "error,sextant_pnode=warn"] {
            assert_eq!(level(asked), Some(Level::INFO), "{asked}");
        }
        assert_eq!(level("debug"), Some(Level::DEBUG));
        for (asked, named) in
            [("audit=off", None), ("info,audit=off", None), ("info,audit=warn", Some(Level::WARN))]
        {
            assert_eq!(level(asked), named, "{asked}");
        }
        let (asked, _) = filter(Some("warn"), DEFAULT);
        assert!(!asked.would_enable("sextant_pnode", &Level::INFO), "nothing else");
    }

    #[test]
    fn nothing_asked_or_nonsense_is_the_default() {
        let nonsense = ["sextant=loud", "sextant=", "[span]=debug", "sextant[{field=1}]=debug"];
        for asked in [None, Some("")].into_iter().chain(nonsense.map(Some)) {
            let (got, bad) = filter(asked, DEFAULT);
            assert!(got.would_enable("sextant", &Level::INFO) && !got.would_enable("openraft", &Level::WARN));
            assert_eq!(bad.is_some(), asked.is_some_and(|asked| !asked.is_empty()), "{asked:?}");
        }
    }
}
