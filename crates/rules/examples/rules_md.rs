//! Prints `docs/rules.md` as the catalogue gives it: `cargo xtask rules`.

fn main() {
    print!("{}", sextant_rules::document::rules_md());
}
