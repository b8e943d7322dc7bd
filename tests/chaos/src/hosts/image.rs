//! Images of programs that are on this machine already, for tests: a program, the libraries that it is linked with, and nothing else.

use std::path::{Path, PathBuf};

use sextant_common::error::{Error, Result};

use crate::host::shell::run;

/// As `deploy/docker/Dockerfile` has it.
const USER: &str = "10001:10001";

/// An image `tag` that runs `program`, which is called `name` there.
pub async fn of_program(tag: &str, program: &Path, name: &str) -> Result<()> {
    let context = tempfile::Builder::new().prefix("sextant-image-").tempdir()?;
    let root = context.path().join("root");
    std::fs::create_dir_all(&root)?;
    std::fs::create_dir(context.path().join("data"))?;
    let shown = program.to_string_lossy();
    let linked = run(&["ldd", &shown]).await.map_err(|e| Error::unavailable(e.message))?;
    for library in libraries(&linked) {
        let to = root.join(library.strip_prefix("/").unwrap_or(&library));
        std::fs::create_dir_all(to.parent().unwrap_or(&root))?;
        std::fs::copy(&library, to)?;
    }
    std::fs::copy(program, root.join(name))?;
    let dockerfile = format!(
        "FROM scratch\nCOPY root/ /\nCOPY --chown={USER} data /var/lib/sextant\nUSER {USER}\n\
         ENTRYPOINT [\"/{name}\"]\n"
    );
    std::fs::write(context.path().join("Dockerfile"), dockerfile)?;
    run(&["docker", "build", "--quiet", "--tag", tag, &context.path().to_string_lossy()]).await.map(drop)
}

/// The files that `ldd` names.
fn libraries(linked: &str) -> Vec<PathBuf> {
    let file = |line: &str| line.split_whitespace().find(|word| word.starts_with('/')).map(PathBuf::from);
    linked.lines().filter_map(file).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_libraries_of_a_program_are_its_loader_and_what_it_loads() {
        let linked = "\tlinux-vdso.so.1 (0x00007ffd)\n\
                      \tlibgcc_s.so.1 => /lib/x86_64-linux-gnu/libgcc_s.so.1 (0x00007f01)\n\
                      \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f02)\n\
                      \t/lib64/ld-linux-x86-64.so.2 (0x00007f03)\n";
        let expected = [
            "/lib/x86_64-linux-gnu/libgcc_s.so.1",
            "/lib/x86_64-linux-gnu/libc.so.6",
            "/lib64/ld-linux-x86-64.so.2",
        ];
        assert_eq!(libraries(linked), expected.map(PathBuf::from));
    }
}
