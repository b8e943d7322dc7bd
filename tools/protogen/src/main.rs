//! `cargo xtask proto`: writes the code of the wire protocol anew.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    sextant_protogen::generate(&sextant_protogen::checked_in())
}
