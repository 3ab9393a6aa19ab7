//! The RPM, by rpmbuild: the format's own tool, held to one host name, one time and one order.
use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command};

use anyhow::Context as _;

use super::{
    arch::Arch,
    content::{Node, Tree},
    source::Source,
};
use crate::{failure::Failure, run};

/// Description and scripts of the package; the list of its files is added.
const SPEC: &str = "packaging/rpm/enforcer.spec";

/// The package of these files; its description is below `root`.
pub(crate) fn package(root: &Path, source: &Source, arch: Arch, files: &Tree) -> anyhow::Result<Vec<u8>> {
    if run::output(Command::new("rpmbuild").arg("--version")).is_err() {
        return Err(Failure::unavailable("there is no rpmbuild", &["apt-get install rpm".to_owned()]).into());
    }
    let folder = tempfile::tempdir()?;
    let stage = folder.path().join("stage");
    lay_out(&stage, files)?;
    let spec = folder.path().join("enforcer.spec");
    let text = fs::read_to_string(root.join(SPEC)).with_context(|| format!("cannot read {SPEC}"))?;
    fs::write(&spec, format!("{text}\n%files\n%defattr(-,root,root,-)\n{}", list(files)))?;
    let mut rpmbuild = Command::new("rpmbuild");
    rpmbuild.args(["-bb", "--quiet", "--nodeps", "--target"]).arg(format!("{}-linux", arch.name()));
    for (name, value) in [
        ("_topdir", folder.path().join("top").display().to_string()),
        ("stage", stage.display().to_string()),
        ("own_version", source.version.clone()),
        ("own_url", env!("CARGO_PKG_REPOSITORY").to_owned()),
        // What would differ between two runs, or between two machines with the same rpmbuild.
        ("_buildhost", "reproducible".to_owned()),
        ("use_source_date_epoch_as_buildtime", "1".to_owned()),
        ("clamp_mtime_to_source_date_epoch", "1".to_owned()),
        ("source_date_epoch_from_changelog", "0".to_owned()),
        ("_binary_payload", "w9.gzdio".to_owned()),
        ("optflags", "none".to_owned()),
        // The binary stays as it was built, byte for byte.
        ("__os_install_post", "%{nil}".to_owned()),
        ("debug_package", "%{nil}".to_owned()),
        ("_build_id_links", "none".to_owned()),
    ] {
        rpmbuild.arg("--define").arg(format!("{name} {value}"));
    }
    // A user's own macros would change the package.
    rpmbuild.arg(&spec).env("HOME", folder.path()).env("LC_ALL", "C");
    rpmbuild.env("SOURCE_DATE_EPOCH", source.epoch.to_string());
    run::output(&mut rpmbuild)?;
    let name = format!("{0}/enforcer-{1}-1.{0}.rpm", arch.name(), source.version);
    super::read(&folder.path().join("top/RPMS").join(name))
}

/// Writes the files where rpmbuild takes them from.
fn lay_out(stage: &Path, files: &Tree) -> anyhow::Result<()> {
    fs::create_dir(stage)?;
    for (path, node) in files.iter() {
        let path = stage.join(path);
        match node {
            Node::Folder => fs::create_dir(&path)?,
            Node::File { bytes, mode, .. } => {
                fs::write(&path, bytes)?;
                fs::set_permissions(&path, fs::Permissions::from_mode(*mode))?;
            }
        }
    }
    Ok(())
}

/// The files as a spec lists them: with modes, and the folders that are the package's own.
fn list(files: &Tree) -> String {
    let line = |(path, node): (&str, &Node)| match node {
        Node::Folder if !path.contains("enforcer") => String::new(),
        Node::Folder => format!("%dir %attr(0755,root,root) \"/{path}\"\n"),
        Node::File { mode, is_configuration, .. } => {
            let kind = if *is_configuration { "%config(noreplace) " } else { "" };
            format!("{kind}%attr({mode:04o},root,root) \"/{path}\"\n")
        }
    };
    files.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::{super::source::tests::a_commit, *};

    #[test]
    fn the_list_has_our_folders_modes_and_configuration() {
        let mut files = Tree::default();
        files.program("usr/bin/enforcer", "");
        files.configuration("etc/enforcer/config.yaml", "");
        assert_eq!(
            list(&files),
            "%dir %attr(0755,root,root) \"/etc/enforcer\"\n\
             %config(noreplace) %attr(0644,root,root) \"/etc/enforcer/config.yaml\"\n\
             %attr(0755,root,root) \"/usr/bin/enforcer\"\n"
        );
    }

    /// Skipped where there is no rpmbuild; `cargo xtask dist` fails there.
    #[test]
    fn rpm_reads_the_package_and_two_are_equal() {
        if run::output(Command::new("rpmbuild").arg("--version")).is_err() {
            return;
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut files = Tree::default();
        files.program("usr/bin/enforcer", "text");
        files.configuration("etc/enforcer/config.yaml", "mode: dry-run\n");
        let bytes = package(root, &a_commit(), Arch::X86_64, &files).unwrap();
        assert!(bytes == package(root, &a_commit(), Arch::X86_64, &files).unwrap(), "they differ");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.rpm");
        fs::write(&path, bytes).unwrap();
        let rpm = |arguments: &[&str]| {
            run::text(Command::new("rpm").arg("-qp").args(arguments).arg(&path).env("HOME", folder.path()))
                .unwrap()
        };
        assert_eq!(rpm(&["--qf", "%{NVRA} %{BUILDTIME}"]), "enforcer-0.2.0-1.x86_64 1790000000");
        assert_eq!(rpm(&["--configfiles"]), "/etc/enforcer/config.yaml\n");
        let modes = rpm(&["--qf", "[%{FILEMODES:perms} %{FILEUSERNAME} %{FILENAMES}\n]"]);
        assert!(modes.contains("-rwxr-xr-x root /usr/bin/enforcer\n"), "{modes}");
    }
}
