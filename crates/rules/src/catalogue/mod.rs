//! The catalogue: each rule of the protocol, what goes wrong without it, where it is kept, and what shows that it is needed.
//!
//! Plain data. [`Mutant`](crate::mutant::Mutant) is made from it, and with it the lists of the model and of the simulation;
//! `docs/rules.md` is written from it ([`crate::document`]). Tests ask that the files and tests that it names are there.
//!
//! Sources: "design N" is a section of `docs/design.md`; "PDA" is the paper "precise data access", "PASV" the one on one log.
//!
//! Each subject is a file. It holds a macro that hands its rules on to the next, behind those of the subjects before it: one list
//! and one enum are made of all.
//!
//! To add a rule: an entry under its subject; `kept_in` are files, `tests` names of functions. A broken build is
//! `Variant "name" "what it does" [ways]`. `Operand`: ask `mutant::active(Mutant::Variant)` in the code. `Patch`: see
//! `tests/sim/mutants/README.md`. `Model`, `Election`, `Placement`: weaken it in `tests/model`. Measure it (`cargo xtask sim --mutants NAME`,
//! `cargo test -p sextant-model -- --nocapture`), put the row into `measured.rs`, then `cargo xtask rules` and
//! `cargo test -p sextant-rules`.

#[macro_use]
mod bits;
#[macro_use]
mod durability;
#[macro_use]
mod expiry;
#[macro_use]
mod leaders;
#[macro_use]
mod leases;
#[macro_use]
mod memory;
#[macro_use]
mod objects;
#[macro_use]
mod placement;
#[macro_use]
mod reads;
#[macro_use]
mod registered;
#[macro_use]
mod snapshots;
#[macro_use]
mod tables;
#[macro_use]
mod writes;

/// A rule of the protocol.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    pub name: &'static str,
    pub says: &'static str,
    /// What goes wrong if it is weakened.
    pub otherwise: &'static str,
    pub source: &'static str,
    /// The files that keep it.
    pub kept_in: &'static [&'static str],
    /// Test functions that hold it.
    pub tests: &'static [&'static str],
    pub broken_by: &'static [Broken],
}

/// A build that breaks a rule.
#[derive(Clone, Copy, Debug)]
pub struct Broken {
    /// As command lines name it.
    pub name: &'static str,
    pub does: &'static str,
    pub ways: &'static [Way],
}

/// Where a rule is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// In the model of the protocol.
    Model,
    /// There, and no violation follows: another rule covers for it.
    Covered,
    /// In the model of elections and lost memory.
    Election,
    /// In the model of where SSTables are.
    Placement,
    /// In the servers' own code, or on the simulated disk, by an operand that is constant in every other build.
    Operand,
    /// In the servers' code by a patch, which the mutation run applies to a copy of the tree: `tests/sim/mutants/NAME.patch`.
    Patch(&'static str),
}

impl Way {
    pub fn is_of_the_simulation(self) -> bool {
        matches!(self, Way::Operand | Way::Patch(_))
    }
}

/// Rules about one thing.
#[derive(Clone, Copy, Debug)]
pub struct Subject {
    pub title: &'static str,
    pub rules: &'static [Rule],
}

/// All rules.
pub fn rules() -> impl Iterator<Item = &'static Rule> {
    RULES.iter().flat_map(|subject| subject.rules)
}

macro_rules! rules {
    (=> $($title:literal {
        $($name:literal {
            says: $says:literal,
            otherwise: $otherwise:literal,
            source: $source:literal,
            kept_in: $kept_in:tt,
            tests: $tests:tt,
            $(broken_by: $broken:ident $broken_name:literal $does:literal $ways:tt,)*
        })+
    })+) => {
        /// The rules by subject.
        pub const RULES: &[Subject] = &[$(Subject {
            title: $title,
            rules: &[$(Rule {
                name: $name,
                says: $says,
                otherwise: $otherwise,
                source: $source,
                kept_in: &$kept_in,
                tests: &$tests,
                broken_by: &[$(Broken { name: $broken_name, does: $does, ways: { use Way::*; &$ways } },)*],
            },)+],
        },)+];

        crate::mutant::mutants! { $($($($broken = $broken_name, $does, { use Way::*; &$ways };)*)+)+ }
    };
}

durability! { writes bits leases leaders reads tables placement memory snapshots registered expiry objects rules => }
