//! The Helm chart and the plain manifests, packed as they are in the repository.
use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};

use super::{
    Artifact,
    archive::{gzip, tar},
    content::{Node, Tree},
    install::below,
    source::Source,
};

/// Where charts and manifests are looked for.
const PACKAGING: &str = "packaging";

/// The folder of manifests for `kubectl apply`, in `packaging`.
const MANIFESTS: &str = "kubernetes";

/// The chart as Helm packs it: one folder with the chart's name. None if the repository has no chart.
pub(crate) fn chart(root: &Path, source: &Source) -> anyhow::Result<Option<Artifact>> {
    let mut found = charts(&root.join(PACKAGING), 3)?;
    let Some(folder) = found.pop() else { return Ok(None) };
    if let Some(other) = found.pop() {
        bail!("there are two charts, {} and {}", other.display(), folder.display());
    }
    let text = String::from_utf8(super::read(&folder.join("Chart.yaml"))?)?;
    let field = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let value = value.map(|value| value.trim().trim_matches(['"', '\'']).to_owned());
        value.filter(|value| !value.is_empty()).with_context(|| format!("Chart.yaml has no {name}"))
    };
    let (name, version) = (field("name")?, field("version")?);
    let released = source.version.split('+').next().unwrap_or_default();
    if field("appVersion")? != released {
        bail!("the chart's appVersion is {}, and this is {released}", field("appVersion")?);
    }
    let bytes = gzip(&tar(&below(&folder)?, &format!("{name}/"), source.epoch)?)?;
    // The name of a chart and the program's are the same, and so may be the rest of the files' names.
    Ok(Some(Artifact { name: format!("{name}-chart-{version}.tgz"), bytes }))
}

/// The manifests in one archive. None if the repository has none.
pub(crate) fn manifests(root: &Path, source: &Source) -> anyhow::Result<Option<Artifact>> {
    let folder = root.join(PACKAGING).join(MANIFESTS);
    if !folder.is_dir() {
        return Ok(None);
    }
    let stem = format!("enforcer-manifests-{}", source.version);
    // Beside the manifests are scripts that write them anew.
    let mut files = Tree::default();
    for (path, node) in below(&folder)?.iter() {
        if let Node::File { bytes, .. } = node
            && Path::new(path).extension().is_some_and(|extension| extension == "yaml")
        {
            files.file(path, bytes.clone());
        }
    }
    let bytes = gzip(&tar(&files, &format!("{stem}/"), source.epoch)?)?;
    Ok(Some(Artifact { name: format!("{stem}.tar.gz"), bytes }))
}

/// The folders with a `Chart.yaml`, at most so many levels down.
fn charts(folder: &Path, levels: u32) -> anyhow::Result<Vec<PathBuf>> {
    if folder.join("Chart.yaml").is_file() {
        return Ok(vec![folder.to_owned()]);
    }
    let mut found = Vec::new();
    if levels > 0 {
        let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() {
                found.extend(charts(&path, levels - 1)?);
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::{super::source::tests::a_commit, *};
    use crate::run;

    #[test]
    fn a_chart_is_packed_below_its_name_and_must_be_for_this_version() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("packaging/helm/enforcer");
        fs::create_dir_all(folder.join("templates")).unwrap();
        assert_eq!(chart(root.path(), &a_commit()).unwrap(), None);
        assert_eq!(manifests(root.path(), &a_commit()).unwrap(), None);

        let describe = |version: &str| {
            let text = format!("apiVersion: v2\nname: enforcer\nversion: 1.0.0\nappVersion: \"{version}\"\n");
            fs::write(folder.join("Chart.yaml"), text).unwrap();
        };
        describe("0.2.0");
        fs::write(folder.join("templates/a.yaml"), "a: 1\n").unwrap();
        let packed = chart(root.path(), &a_commit()).unwrap().unwrap();
        assert_eq!(packed.name, "enforcer-chart-1.0.0.tgz");
        let path = root.path().join("a.tgz");
        fs::write(&path, &packed.bytes).unwrap();
        let listed = run::text(Command::new("tar").arg("-tzf").arg(&path)).unwrap();
        assert_eq!(
            listed,
            "enforcer/\nenforcer/Chart.yaml\nenforcer/templates/\nenforcer/templates/a.yaml\n"
        );

        describe("0.1.0");
        let error = chart(root.path(), &a_commit()).unwrap_err().to_string();
        assert_eq!(error, "the chart's appVersion is 0.1.0, and this is 0.2.0");
    }
}
