//! `cargo xtask rules`: writes `docs/rules.md`. (That it is up to date is a test of `sextant-rules`.)

use std::process::Command;

use crate::root;

const DOCUMENT: &str = "docs/rules.md";

pub fn write() -> Result<(), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut print = Command::new(cargo);
    print.args(["run", "--quiet", "--package", "sextant-rules", "--example", "rules_md"]);
    let printed = print.current_dir(root()).stderr(std::process::Stdio::inherit()).output();
    let printed = printed.map_err(|e| format!("xtask: rules: cannot print them: {e}"))?;
    if !printed.status.success() {
        return Err(format!("xtask: rules: printing them failed ({})", printed.status));
    }
    std::fs::write(format!("{}/{DOCUMENT}", root()), printed.stdout)
        .map_err(|e| format!("xtask: {DOCUMENT}: {e}"))
}
