//! Builds the components from the source of Kubernetes, with Debian's compiler, neither of which is installed.
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, bail};

use crate::{pins, places::Places, run, setup::apt};

/// Part of the folder's name in the cache: incremented when this file builds something else.
pub(super) const FORMAT: u32 = 1;

/// The name under which the source imports itself.
const IMPORT: &str = "k8s.io/kubernetes";

/// Where the source has packages of its own.
const SOURCES: [&str; 4] = ["cmd", "pkg", "plugin", "staging/src"];

/// Those that the API server does not serve.
const UNSERVED: [&str; 2] = ["staging/src/k8s.io/code-generator", "staging/src/k8s.io/sample-apiserver"];

/// Marks a package whose types the API server describes.
const TAG: &str = "+k8s:openapi-gen=";

/// The packages that hold the version.
const VERSIONS: [&str; 2] = ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"];

/// Builds the components into a folder. The first of the fetched files is the source, the others are the compiler's
/// packages.
pub(super) fn build(
    places: &Places,
    fetched: &[PathBuf],
    version: &str,
    components: &[&str],
    to: &Path,
) -> anyhow::Result<()> {
    let Some((archive, packages)) = fetched.split_first() else { bail!("no source was fetched") };
    let work = tempfile::Builder::new().prefix(".building-").tempdir_in(&places.cache)?;
    let compiler = work.path().join("compiler");
    fs::create_dir(&compiler)?;
    for package in packages {
        apt::unpack(package, &compiler)?;
    }
    let go = Go { compiler, path: work.path().join("go") };
    let source = go.path.join("src").join(IMPORT);
    fs::create_dir_all(&source).with_context(|| format!("cannot create {}", source.display()))?;
    let mut unpack = Command::new("tar");
    unpack.args(["--extract", "--strip-components=1", "--file"]).arg(archive).arg("--directory").arg(&source);
    run::output(&mut unpack)?;
    generate(&go, &source)?;
    let packages = components.iter().map(|name| format!("./cmd/{name}"));
    // With a slash at its end it is a folder in which each program has its own name.
    let into = format!("{}/", to.display());
    let mut build = go.command(&source);
    build.args(["build", "-trimpath", "-ldflags", &linker_flags(version), "-o", &into]).args(packages);
    run::output(&mut build).map(drop)
}

/// Generates the description of the API, which the source leaves out and the API server needs.
fn generate(go: &Go, source: &Path) -> anyhow::Result<()> {
    let generator = go.path.join("openapi-gen");
    let mut build = go.command(source);
    build.args(["build", "-o"]).arg(&generator).arg("./vendor/k8s.io/kube-openapi/cmd/openapi-gen");
    run::output(&mut build)?;
    let mut described = Vec::new();
    for folder in SOURCES {
        find_described(source, Path::new(folder), &mut described)?;
    }
    described.sort();
    let mut generate = Command::new(generator);
    go.environment(&mut generate).current_dir(source);
    generate.arg("--input-dirs").arg(described.join(",")).arg("--output-base").arg(go.path.join("src"));
    generate.args(["--output-package", &format!("{IMPORT}/pkg/generated/openapi")]);
    generate.args(["-O", "zz_generated.openapi"]);
    generate.args(["--go-header-file", "hack/boilerplate/boilerplate.generatego.txt"]);
    generate.arg("--report-filename").arg(go.path.join("violations"));
    run::output(&mut generate).map(drop)
}

/// Adds the packages below a folder that have the tag.
fn find_described(source: &Path, folder: &Path, found: &mut Vec<String>) -> anyhow::Result<()> {
    if UNSERVED.iter().any(|unserved| folder == Path::new(unserved)) {
        return Ok(());
    }
    let full = source.join(folder);
    let mut has_tag = false;
    for entry in fs::read_dir(&full).with_context(|| format!("cannot read {}", full.display()))? {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            find_described(source, &path, found)?;
        } else if !has_tag && path.extension().is_some_and(|extension| extension == "go") {
            let text =
                fs::read(entry.path()).with_context(|| format!("cannot read {}", entry.path().display()))?;
            has_tag = String::from_utf8_lossy(&text).contains(TAG);
        }
    }
    if has_tag {
        found.push(import_path(folder).with_context(|| format!("{} is not UTF-8", folder.display()))?);
    }
    Ok(())
}

/// The name under which the components import a package: what is staged is vendored too.
fn import_path(folder: &Path) -> Option<String> {
    let staged = folder.strip_prefix("staging/src").ok();
    let within = staged.map_or_else(|| folder.to_owned(), |staged| Path::new("vendor").join(staged));
    Some(format!("{IMPORT}/{}", within.to_str()?))
}

/// Without symbols, which would double the size, and with the version that each component reports.
fn linker_flags(version: &str) -> String {
    let mut flags = "-s -w".to_owned();
    let mut parts = version.trim_start_matches('v').split('.');
    let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    for package in VERSIONS {
        for (name, value) in [("gitVersion", version), ("gitMajor", major), ("gitMinor", minor)] {
            flags.push_str(&format!(" -X {IMPORT}/vendor/{package}.{name}={value}"));
        }
    }
    flags
}

/// The compiler, and the folder in which it works.
#[derive(Debug)]
struct Go {
    compiler: PathBuf,
    path: PathBuf,
}

impl Go {
    fn command(&self, source: &Path) -> Command {
        let mut command = Command::new(self.compiler.join(pins::GO_ROOT).join("bin/go"));
        self.environment(&mut command).current_dir(source);
        command
    }

    /// The variables that make it use this source, and nothing of the user's or of the network.
    fn environment<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command
            .env("GOROOT", self.compiler.join(pins::GO_ROOT))
            .env("GOPATH", &self.path)
            .env("GOCACHE", self.path.join("cache"))
            .env("GOENV", "off")
            .env("GOFLAGS", "")
            .env("GO111MODULE", "off")
            .env("CGO_ENABLED", "0")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_with_the_tag_are_found_under_their_imported_names() {
        let source = tempfile::tempdir().unwrap();
        let file = |path: &str, text: &str| {
            let path = source.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        file("pkg/apis/abac/v0/doc.go", "// +k8s:openapi-gen=true\n");
        file("pkg/apis/abac/v0/notes.md", "");
        file("pkg/apis/abac/register.go", "package abac\n");
        file("staging/src/k8s.io/api/core/v1/doc.go", "// +k8s:openapi-gen=true\n");
        file("staging/src/k8s.io/code-generator/doc.go", "// +k8s:openapi-gen=true\n");
        let mut found = Vec::new();
        for folder in ["pkg", "staging/src"] {
            find_described(source.path(), Path::new(folder), &mut found).unwrap();
        }
        found.sort();
        assert_eq!(
            found,
            ["k8s.io/kubernetes/pkg/apis/abac/v0", "k8s.io/kubernetes/vendor/k8s.io/api/core/v1"]
        );
    }

    #[test]
    fn the_version_is_linked_in() {
        let flags = linker_flags("v1.20.2");
        assert!(flags.starts_with(
            "-s -w -X k8s.io/kubernetes/vendor/k8s.io/component-base/version.gitVersion=v1.20.2 "
        ));
        assert!(flags.ends_with("client-go/pkg/version.gitMinor=20"));
    }
}
