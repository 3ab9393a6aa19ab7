//! Debian's package: an `ar` archive of a version, control files and the files to install (deb(5)).
use std::path::Path;

use super::{
    arch::Arch,
    archive::{gzip, tar},
    content::{Node, Tree},
    read,
    source::Source,
};

/// Scripts that dpkg runs, below `packaging/deb`.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// What lintian finds and is meant.
const OVERRIDES: &str = "\
# One binary for every release of every distribution.
enforcer: statically-linked-binary [usr/bin/enforcer]
# It is linked statically and may be loaded anywhere (static-pie).
enforcer: shared-library-lacks-prerequisites [usr/bin/enforcer]
# Names of functions, for the backtrace of a bug report; there is no debug info.
enforcer: unstripped-binary-or-object [usr/bin/enforcer]
# It is in no archive of Debian.
enforcer: initial-upload-closes-no-bugs [usr/share/doc/enforcer/changelog.Debian.gz:1]
# A daemon that does not run is left so at an upgrade, which deb-systemd-invoke does not know.
enforcer: maintainer-script-calls-systemctl [postinst:*]
# Nor does it stop a slice.
enforcer: maintainer-script-calls-systemctl [prerm:*]
";

/// The package's version: ours, and the first packaging of it.
pub(crate) fn version(source: &Source) -> String {
    format!("{}-1", source.version)
}

/// The package of these files; its scripts are below `root`.
pub(crate) fn package(root: &Path, source: &Source, arch: Arch, files: &Tree) -> anyhow::Result<Vec<u8>> {
    let mut files = files.clone();
    let changelog = changelog(source);
    files.file("usr/share/doc/enforcer/changelog.Debian.gz", gzip(changelog.as_bytes())?);
    files.file("usr/share/lintian/overrides/enforcer", OVERRIDES);
    let mut control = Tree::default();
    control.file("control", describe(source, arch, &files));
    control.file("conffiles", conffiles(&files));
    for script in SCRIPTS {
        control.program(script, read(&root.join("packaging/deb").join(script))?);
    }
    let mut archive = b"!<arch>\n".to_vec();
    for (name, content) in [
        ("debian-binary", b"2.0\n".to_vec()),
        ("control.tar.gz", gzip(&tar(&control, "./", source.epoch)?)?),
        ("data.tar.gz", gzip(&tar(&files, "./", source.epoch)?)?),
    ] {
        member(&mut archive, name, source.epoch, &content);
    }
    Ok(archive)
}

/// A member of an `ar` archive: a header of fixed columns, then the content, filled up to an even length.
fn member(archive: &mut Vec<u8>, name: &str, epoch: u64, content: &[u8]) {
    let size = content.len();
    archive.extend_from_slice(format!("{name:<16}{epoch:<12}0     0     100644  {size:<10}`\n").as_bytes());
    archive.extend_from_slice(content);
    if size % 2 == 1 {
        archive.push(b'\n');
    }
}

fn describe(source: &Source, arch: Arch, files: &Tree) -> String {
    format!(
        "Package: enforcer\n\
         Version: {}\n\
         Architecture: {}\n\
         Maintainer: The enforcer authors <noreply@enforcer.dev>\n\
         Installed-Size: {}\n\
         Section: admin\n\
         Priority: optional\n\
         Homepage: {}\n\
         Description: quality of service for the pods of one Linux node\n \
         A daemon that turns pod manifests into cgroups and OOM scores, evicts the right\n \
         pod when the node runs short of memory, and traces the kernel's own OOM kills.\n \
         It runs alone or beside a kubelet.\n \
         .\n \
         As installed it decides and reports, and changes nothing: set mode to enforce\n \
         in /etc/enforcer/config.yaml.\n",
        version(source),
        arch.short(),
        files.size().div_ceil(1024),
        env!("CARGO_PKG_REPOSITORY"),
    )
}

fn changelog(source: &Source) -> String {
    format!(
        "enforcer ({}) stable; urgency=medium\n\n  * Release {}: see changelog.gz.\n\n -- The enforcer authors \
         <noreply@enforcer.dev>  {}\n",
        version(source),
        source.version,
        source.mail_time,
    )
}

fn conffiles(files: &Tree) -> String {
    let paths = files
        .iter()
        .filter(|(_, node)| matches!(node, Node::File { is_configuration: true, .. }))
        .map(|(path, _)| format!("/{path}\n"));
    paths.collect()
}

#[cfg(test)]
mod tests {
    use std::{fs, process::Command};

    use super::{super::source::tests::a_commit, *};
    use crate::run;

    fn root() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
    }

    #[test]
    fn dpkg_reads_the_package() {
        let mut files = Tree::default();
        files.program("usr/bin/enforcer", vec![7; 3001]);
        files.configuration("etc/enforcer/config.yaml", "mode: dry-run\n");
        let bytes = package(root(), &a_commit(), Arch::X86_64, &files).unwrap();
        assert_eq!(bytes, package(root(), &a_commit(), Arch::X86_64, &files).unwrap());

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.deb");
        fs::write(&path, bytes).unwrap();
        let dpkg = |arguments: &[&str]| {
            let mut dpkg = Command::new("dpkg-deb");
            dpkg.arg(arguments[0]).arg(&path).args(&arguments[1..]).env("LC_ALL", "C").env("TZ", "UTC0");
            run::text(&mut dpkg).unwrap()
        };
        assert_eq!(
            dpkg(&["--field", "Package", "Version", "Architecture", "Installed-Size"]),
            "Package: enforcer\nVersion: 0.2.0-1\nArchitecture: amd64\nInstalled-Size: 4\n"
        );
        assert_eq!(dpkg(&["--info", "conffiles"]), "/etc/enforcer/config.yaml\n");
        for script in SCRIPTS {
            assert!(dpkg(&["--info", script]).starts_with("#!/bin/sh\n"), "{script}");
        }
        let listed = dpkg(&["--contents"]);
        let binary = listed.lines().find(|line| line.ends_with("./usr/bin/enforcer")).unwrap();
        assert!(binary.starts_with("-rwxr-xr-x root/root      3001 2026-09-21 14:13 "), "{binary}");
        assert!(listed.contains("./usr/share/doc/enforcer/changelog.Debian.gz"), "{listed}");
    }

    #[test]
    fn scripts_are_plain_shell() {
        for script in SCRIPTS {
            run::output(Command::new("sh").arg("-n").arg(root().join("packaging/deb").join(script))).unwrap();
        }
    }
}
