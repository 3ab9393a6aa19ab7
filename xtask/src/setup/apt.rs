//! A private apt: other suites, in folders of the cache, invisible to the host's package system.
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, bail};

use crate::{failure::Failure, pins, places::Places, run};

/// The Debian mirror that the host itself uses for its release.
pub(crate) fn mirror() -> String {
    let targets =
        run::text(Command::new("apt-get").args(["indextargets", "--format", "$(REPO_URI) $(RELEASE)"]));
    // Without apt's answer the default is used; then the download fails, and names the file.
    targets.ok().and_then(|targets| mirror_of(&targets)).unwrap_or_else(|| pins::MIRROR.to_owned())
}

fn mirror_of(targets: &str) -> Option<String> {
    targets
        .lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(uri, release)| *release == pins::HOST_SUITE && uri.starts_with("http"))
        .map(|(uri, _)| uri.trim_end_matches('/').to_owned())
}

/// Whether the host has apt at all.
pub(crate) fn present() -> bool {
    Path::new("/usr/bin/apt-get").exists()
}

/// One private apt configuration.
#[derive(Debug)]
pub(crate) struct Apt {
    folder: PathBuf,
}

impl Apt {
    /// Writes the configuration for some suites and fetches their indexes, which apt checks against Debian's keys.
    pub(crate) fn update(places: &Places, name: &str, suites: &[&str]) -> anyhow::Result<Self> {
        Self::fetch_indexes(places, name, suites, "deb")
    }

    /// The same for the suites' source packages.
    pub(crate) fn update_sources(places: &Places, name: &str, suites: &[&str]) -> anyhow::Result<Self> {
        Self::fetch_indexes(places, name, suites, "deb-src")
    }

    fn fetch_indexes(places: &Places, name: &str, suites: &[&str], kind: &str) -> anyhow::Result<Self> {
        if !present() || !Path::new(pins::KEYRING).exists() {
            let missing = format!(
                "guests are made of Debian packages, and this host has no apt or no {}",
                pins::KEYRING
            );
            return Err(Failure::unavailable(
                &missing,
                &["apt-get install apt debian-archive-keyring".into()],
            )
            .into());
        }
        let folder = places.cache.join("apt").join(name);
        for part in ["lists/partial", "archives/partial"] {
            let part = folder.join(part);
            fs::create_dir_all(&part).with_context(|| format!("cannot create {}", part.display()))?;
        }
        let mirror = mirror();
        let line = |suite: &&str| {
            format!(
                "{kind} [arch=amd64 signed-by={}] {mirror} {suite} main
",
                pins::KEYRING
            )
        };
        let sources = suites.iter().map(line).collect::<Vec<_>>().concat();
        fs::write(folder.join("sources.list"), sources)?;
        fs::write(folder.join("apt.conf"), configuration(&folder))?;
        let apt = Self { folder };
        run::output(apt.command("apt-get").args(["-q", "update"]))?;
        Ok(apt)
    }

    /// A program of apt under this configuration.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("APT_CONFIG", self.folder.join("apt.conf")).env("LC_ALL", "C");
        command
    }

    /// Downloads a package and those dependencies that the host lacks; returns the files.
    pub(crate) fn download_missing(&self, packages: &[String]) -> anyhow::Result<Vec<PathBuf>> {
        let archives = self.folder.join("archives");
        for old in debs(&archives)? {
            fs::remove_file(&old).with_context(|| format!("cannot remove {}", old.display()))?;
        }
        let mut command = self.command("apt-get");
        command.args(["-q", "-y", "--no-install-recommends", "--download-only", "install"]).args(packages);
        run::output(&mut command)?;
        debs(&archives)
    }

    /// The names of packages and of all that they depend on, of whatever the host has installed.
    pub(crate) fn with_dependencies(&self, packages: &[&str]) -> anyhow::Result<Vec<String>> {
        let mut command = self.command("apt-get");
        command.args([
            "-o",
            "Dir::State::status=/dev/null",
            "--simulate",
            "--no-install-recommends",
            "install",
        ]);
        Ok(installed_by(&run::text(command.args(packages))?))
    }

    /// The newest version of a package, from the suites' indexes.
    pub(crate) fn show(&self, package: &str) -> anyhow::Result<Record> {
        let mut command = self.command("apt-cache");
        // A version that the host has installed may be newer, and cannot be fetched.
        command.args(["-o", "Dir::State::status=/dev/null", "show", "--no-all-versions", package]);
        let text = run::text(&mut command)?;
        Ok(Record(text))
    }

    /// A source package, from the suites' indexes of sources.
    pub(crate) fn show_source(&self, package: &str) -> anyhow::Result<Record> {
        run::text(self.command("apt-cache").args(["showsrc", "--only-source", package])).map(Record)
    }
}

/// The names of the packages that a simulated installation unpacks.
fn installed_by(simulation: &str) -> Vec<String> {
    let lines = simulation.lines().filter_map(|line| line.strip_prefix("Inst ")?.split(' ').next());
    lines.map(str::to_owned).collect()
}

/// A package's paragraph in an index.
#[derive(Debug)]
pub(crate) struct Record(String);

impl Record {
    pub(crate) fn field(&self, name: &str) -> anyhow::Result<&str> {
        let paragraph = self.0.split("\n\n").next().unwrap_or_default();
        let found = paragraph.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        found.with_context(|| format!("the package's record has no {name}"))
    }

    /// The names of the packages that it depends on, without versions and alternatives.
    pub(crate) fn depends(&self) -> anyhow::Result<Vec<&str>> {
        let names = self.field("Depends")?.split(',').filter_map(|one| one.split_whitespace().next());
        Ok(names.collect())
    }

    /// The upstream archive of a source package, with its SHA256.
    pub(crate) fn upstream_archive(&self) -> anyhow::Result<(&str, &str)> {
        let paragraph = self.0.split("\n\n").next().unwrap_or_default();
        let sums = paragraph.lines().skip_while(|line| *line != "Checksums-Sha256:").skip(1);
        let files = sums.take_while(|line| line.starts_with(' ')).filter_map(|line| {
            let mut words = line.split_whitespace();
            let (sha256, _size, file) = (words.next()?, words.next()?, words.next()?);
            Some((file, sha256))
        });
        let archive = files.into_iter().find(|(file, _)| file.contains(".orig.tar."));
        archive.context("the source package's record has no upstream archive")
    }
}

/// Unpacks a package without installing it.
pub(crate) fn unpack(deb: &Path, into: &Path) -> anyhow::Result<()> {
    run::output(Command::new("dpkg-deb").arg("--extract").arg(deb).arg(into)).map(drop)
}

/// Installs packages on the host, or says how if it may not.
pub(crate) fn install_on_host(missing: &str, packages: &[&str]) -> anyhow::Result<()> {
    let commands = [
        "apt-get update".to_owned(),
        format!("apt-get install --no-install-recommends {}", packages.join(" ")),
    ];
    if !present() || !rustix::process::geteuid().is_root() {
        return Err(Failure::unavailable(missing, &commands).into());
    }
    run::output(Command::new("apt-get").args(["-q", "update"]))?;
    let mut install = Command::new("apt-get");
    install.args(["-q", "-y", "--no-install-recommends", "install"]).args(packages);
    run::output(install.env("DEBIAN_FRONTEND", "noninteractive")).map(drop)
}

/// Whether a package is installed on the host.
pub(crate) fn installed(package: &str) -> bool {
    let status = run::text(Command::new("dpkg-query").args(["-W", "-f", "${db:Status-Abbrev}", package]));
    status.is_ok_and(|status| status.starts_with("ii"))
}

/// Whether the host's own suites offer a package.
pub(crate) fn offered(package: &str) -> bool {
    let policy = run::text(Command::new("apt-cache").env("LC_ALL", "C").args(["policy", package]));
    policy.is_ok_and(|policy| policy.contains("Candidate:") && !policy.contains("Candidate: (none)"))
}

fn configuration(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "Dir::State::Lists \"{folder}/lists\";\n\
         Dir::Cache \"{folder}\";\n\
         Dir::Cache::archives \"{folder}/archives\";\n\
         Dir::Etc::sourcelist \"{folder}/sources.list\";\n\
         Dir::Etc::sourceparts \"/dev/null\";\n\
         Dir::Etc::preferences \"/dev/null\";\n\
         Dir::Etc::preferencesparts \"/dev/null\";\n\
         Acquire::Languages \"none\";\n\
         Acquire::IndexTargets::deb::DEP-11::DefaultEnabled \"false\";\n\
         Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled \"false\";\n\
         Acquire::Retries \"3\";\n\
         APT::Sandbox::User \"\";\n\
         Debug::NoLocking \"true\";\n"
    )
}

fn debs(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// The architecture that guests and their packages have.
pub(crate) fn check_architecture() -> anyhow::Result<()> {
    if env::consts::ARCH != "x86_64" {
        bail!("guests run on x86-64 hosts only, and this is {}", env::consts::ARCH);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_simulation_unpacks_is_installed() {
        let simulation = "Reading package lists...\nInst gcc-12-base (12.2.0-14 Debian:12 [amd64])\nInst libc6 (2.36 \
                          Debian:12 [amd64]) []\nConf libc6 (2.36 Debian:12 [amd64])\n";
        assert_eq!(installed_by(simulation), ["gcc-12-base", "libc6"]);
    }

    #[test]
    fn mirror_is_the_release_archive() {
        let targets = "https://example.org/other stable\n\
                       http://security.debian.org/debian-security/ bookworm-security\n\
                       http://ftp.de.debian.org/debian/ bookworm\n";
        assert_eq!(mirror_of(targets).as_deref(), Some("http://ftp.de.debian.org/debian"));
        assert_eq!(mirror_of("cdrom://x bookworm"), None);
    }

    #[test]
    fn record_reads_the_first_paragraph() {
        let record =
            Record("Package: a\nDepends: b (= 1), c | d, e\nVersion: 2\n\nVersion: 1\nSHA256: x\n".into());
        assert_eq!(record.field("Version").unwrap(), "2");
        assert_eq!(record.depends().unwrap(), ["b", "c", "e"]);
        assert!(record.field("SHA256").unwrap_err().to_string().contains("SHA256"));
    }

    #[test]
    fn a_source_record_names_its_upstream_archive() {
        let record = Record(
            "Package: a\nFiles:\n 11 1 a_1.orig.tar.gz\nChecksums-Sha256:\n 22 1 a_1-1.dsc\n \
             33 2 a_1.orig.tar.gz\n 44 3 a_1-1.debian.tar.xz\nDirectory: pool/main/a/a\n\n"
                .into(),
        );
        assert_eq!(record.upstream_archive().unwrap(), ("a_1.orig.tar.gz", "33"));
        assert!(Record("Package: a\n".into()).upstream_archive().is_err());
    }
}
