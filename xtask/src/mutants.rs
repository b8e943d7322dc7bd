//! Mutants that are patches: the copy of the tree that they are applied to.
//!
//! Each patch asks, as operands do, whether its mutant is the active one. So all of them are applied to one copy, which is built
//! once, and then can be any mutant. The copy keeps its place and its untouched files, so that cargo compiles again only what a
//! patch or a change of ours has changed.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::root;

const PATCHES: &str = "tests/sim/mutants";
/// Of our packages, as `Cargo.toml` and `Cargo.lock` have it.
const VERSION: &str = "\nversion = \"0.1.0\"\n";
const PATCHED_VERSION: &str = "\nversion = \"0.1.0+patched\"\n";
/// What a build reads.
const SOURCES: [&str; 10] = [
    "Cargo.toml",
    "Cargo.lock",
    "clippy.toml",
    "rust-toolchain.toml",
    "rustfmt.toml",
    ".cargo",
    "crates",
    "tests",
    "tools",
    "xtask",
];

/// A patch, and what it says that it is for.
#[derive(Debug)]
struct Patch {
    file: PathBuf,
    mutants: Vec<String>,
}

/// Whether any mutant that these options name is a patch.
pub fn need_patches(options: &[&str]) -> Result<bool, String> {
    let named = options.iter().zip(options.iter().skip(1));
    let named = named.filter(|(option, _)| matches!(**option, "--mutant" | "--mutants"));
    let names: Vec<&str> = named.flat_map(|(_, names)| names.split(',')).collect();
    if names.is_empty() {
        return Ok(false);
    }
    let patches = patches()?;
    let is_patch =
        |name: &&str| *name == "all" || patches.iter().any(|p| p.mutants.iter().any(|m| m == name));
    Ok(names.iter().any(is_patch))
}

fn patches() -> Result<Vec<Patch>, String> {
    let dir = Path::new(root()).join(PATCHES);
    let mut patches = Vec::new();
    for file in children(&dir)? {
        if file.extension() == Some(OsStr::new("patch")) {
            let text = std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
            let mutants = text.lines().find_map(|line| line.strip_prefix("mutants: "));
            let mutants = mutants.ok_or_else(|| format!("{}: for which mutants?", file.display()))?;
            patches.push(Patch { file, mutants: mutants.split(' ').map(str::to_owned).collect() });
        }
    }
    Ok(patches)
}

/// A copy of the tree in `dir`, with all patches applied.
pub fn patched_tree(dir: &Path) -> Result<PathBuf, String> {
    let (tree, next) = (dir.join("tree"), dir.join("next"));
    remove(&next)?;
    std::fs::create_dir_all(&next).map_err(|e| format!("{}: {e}", next.display()))?;
    for name in SOURCES {
        copy(&Path::new(root()).join(name), &next.join(name))?;
    }
    apply(&next, &[])?;
    rename_version(&next)?;
    take_over(&next, &tree)?;
    remove(&next)?;
    Ok(tree)
}

/// Another version for our packages: in a shared target directory cargo would take what it made of one tree for what it made of
/// the other, whose packages lie in the same places of their workspace.
fn rename_version(tree: &Path) -> Result<(), String> {
    let edit = |name: &str, edited: &dyn Fn(&str) -> String| {
        let path = tree.join(name);
        std::fs::read_to_string(&path)
            .and_then(|text| std::fs::write(&path, edited(&text)))
            .map_err(|e| format!("{}: {e}", path.display()))
    };
    edit("Cargo.toml", &|text| text.replacen(VERSION, PATCHED_VERSION, 1))?;
    // Packages of the lock file that come from nowhere else.
    edit("Cargo.lock", &|text| {
        let packages = text.split("\n[[package]]\n").map(|package| match package.contains("\nsource = ") {
            true => package.to_owned(),
            false => package.replacen(VERSION, PATCHED_VERSION, 1),
        });
        packages.collect::<Vec<_>>().join("\n[[package]]\n")
    })
}

/// Applies all patches to a tree, in the order of their names.
fn apply(tree: &Path, options: &[&str]) -> Result<(), String> {
    let mut git = Command::new("git");
    // The tree may be within a repository, and is none of it.
    let above = tree.canonicalize().ok().and_then(|tree| tree.parent().map(Path::to_owned));
    git.env("GIT_CEILING_DIRECTORIES", above.unwrap_or_default()).env_remove("GIT_DIR");
    git.arg("apply").args(options).current_dir(tree);
    for patch in patches()? {
        git.arg(patch.file.canonicalize().map_err(|e| format!("{}: {e}", patch.file.display()))?);
    }
    match git.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("xtask: patches in {PATCHES} do not apply ({status}); see its README")),
        Err(e) => Err(format!("xtask: cannot run git apply: {e}")),
    }
}

/// Makes `tree` what `next` is, and leaves alone what is the same already.
fn take_over(next: &Path, tree: &Path) -> Result<(), String> {
    if next.is_dir() {
        std::fs::create_dir_all(tree).map_err(|e| format!("{}: {e}", tree.display()))?;
        for gone in children(tree)? {
            if gone.file_name().is_some_and(|name| !next.join(name).exists()) {
                remove(&gone)?;
            }
        }
        for child in children(next)? {
            let name = child.file_name().unwrap_or_default().to_owned();
            take_over(&child, &tree.join(name))?;
        }
        return Ok(());
    }
    let read = |path: &Path| std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()));
    let wanted = read(next)?;
    if !tree.is_file() || read(tree)? != wanted {
        remove(tree)?;
        std::fs::write(tree, wanted).map_err(|e| format!("{}: {e}", tree.display()))?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    if from.is_dir() {
        std::fs::create_dir_all(to).map_err(|e| format!("{}: {e}", to.display()))?;
        for child in children(from)? {
            let name = child.file_name().unwrap_or_default().to_owned();
            if name != "target" {
                copy(&child, &to.join(name))?;
            }
        }
        return Ok(());
    }
    std::fs::copy(from, to).map(drop).map_err(|e| format!("{} to {}: {e}", from.display(), to.display()))
}

/// In the order of their names.
fn children(dir: &Path) -> Result<Vec<PathBuf>, String> {
    let error = |e| format!("{}: {e}", dir.display());
    let entries = std::fs::read_dir(dir).map_err(error)?;
    let paths: Result<Vec<PathBuf>, _> = entries.map(|entry| entry.map(|entry| entry.path())).collect();
    let mut paths = paths.map_err(error)?;
    paths.sort();
    Ok(paths)
}

fn remove(path: &Path) -> Result<(), String> {
    let removed = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    match removed {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(format!("{}: {e}", path.display())),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_patch_applies_to_the_tree_as_it_is() {
        if !patches().unwrap().is_empty() {
            apply(Path::new(root()), &["--check"]).unwrap();
        }
    }

    #[test]
    fn patches_are_needed_for_all_and_not_for_operands() {
        assert_eq!(need_patches(&["--seeds", "3"]), Ok(false));
        assert_eq!(need_patches(&["--mutants", "no-lease-wait,search-past-tombstone"]), Ok(false));
        assert_eq!(need_patches(&["--mutants", "all"]), Ok(true));
        for patch in patches().unwrap() {
            for mutant in &patch.mutants {
                assert_eq!(need_patches(&["--themed", "--mutant", mutant]), Ok(true));
            }
        }
    }

    #[test]
    fn a_tree_is_made_what_the_next_one_is_and_keeps_what_is_the_same() {
        let dir = std::env::temp_dir().join(format!("xtask-mutants-{}", std::process::id()));
        let (next, tree) = (dir.join("next"), dir.join("tree"));
        for (path, text) in [("same", "1"), ("changed", "2"), ("folder/new", "3")] {
            std::fs::create_dir_all(next.join(path).parent().unwrap()).unwrap();
            std::fs::write(next.join(path), text).unwrap();
        }
        std::fs::create_dir_all(tree.join("gone")).unwrap();
        std::fs::write(tree.join("same"), "1").unwrap();
        std::fs::write(tree.join("changed"), "1").unwrap();
        let written = |name: &str| std::fs::metadata(tree.join(name)).unwrap().modified().unwrap();
        let before = written("same");
        take_over(&next, &tree).unwrap();
        assert_eq!(std::fs::read_to_string(tree.join("changed")).unwrap(), "2");
        assert_eq!(std::fs::read_to_string(tree.join("folder/new")).unwrap(), "3");
        assert_eq!(written("same"), before);
        assert!(!tree.join("gone").exists());
        remove(&dir).unwrap();
    }
}
