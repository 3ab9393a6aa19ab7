//! The policy beside the kubelet's own unit tests, as data.
//!
//! `fixtures/kubelet` restates cases of Kubernetes 1.36; each group names the file and function that it comes from.
//! Where the environment variable `ENFORCER_CONFORMANCE_DIR` names a folder of such tables in their original shape,
//! they are read from there too.

mod case;
mod memory;
mod node;
mod original;
mod upstream;

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    fmt::Debug,
    fs,
    path::Path,
};

use anyhow::{Context as _, Result, ensure};
use enforcer::{
    model::{Node, ResourceList},
    policy::{CpuWeightFormula, Settings, effective, oom_score, qos, values},
};

use case::{ContainerFiles, Effective, Group, Huge, OomScore, PodFiles, QosClassCase, RankingRequest};

fn fixture<T: serde::de::DeserializeOwned>(name: &str) -> Result<Vec<Group<T>>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/kubelet").join(name);
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    serde_json::from_str(&text).with_context(|| path.display().to_string())
}

/// Checks every case of every group, and reports all that differ. An empty table is a failure.
fn check<T, V: Debug + PartialEq>(groups: &[Group<T>], judge: impl Fn(&T) -> Result<(V, V)>) -> Result<()>
where
    T: case::Named,
{
    let mut different = Vec::new();
    for group in groups {
        ensure!(!group.cases.is_empty(), "{}: no cases", group.upstream);
        for case in &group.cases {
            let name = case.name();
            let (is, should) = judge(case).with_context(|| format!("{}: {name}", group.upstream))?;
            if is != should {
                different.push(format!("{}: {name}:\n  is     {is:?}\n  should {should:?}", group.upstream));
            }
        }
    }
    ensure!(different.is_empty(), "{}", different.join("\n"));
    Ok(())
}

fn node(memory_bytes: u64, other: ResourceList) -> Node {
    Node { other, ..Node::new(4_000, memory_bytes) }
}

fn check_qos(groups: &[Group<QosClassCase>]) -> Result<()> {
    check(groups, |case| Ok((qos::compute(&case.pod.build()?).as_str().to_owned(), case.expected.clone())))
}

fn check_oom_score(groups: &[Group<OomScore>]) -> Result<()> {
    check(groups, |case| {
        let pod = case.pod.build()?;
        let scores: BTreeMap<_, _> = pod
            .containers
            .iter()
            .map(|container| (container.name.clone(), oom_score::score(&pod, container, case.memory_bytes)))
            .collect();
        Ok((scores, case.expected.clone()))
    })
}

fn check_effective(groups: &[Group<Effective>]) -> Result<()> {
    check(groups, |case| {
        let pod = case.pod.build()?;
        let (requests, limits) = if case.containers_alone {
            (effective::container_requests(&pod), effective::container_limits(&pod))
        } else {
            (effective::requests(&pod), effective::limits(&pod))
        };
        let should = (case.requests.as_ref(), case.limits.as_ref());
        let should = (should.0.map(case::list).transpose()?, should.1.map(case::list).transpose()?);
        Ok(((should.0.is_some().then_some(requests), should.1.is_some().then_some(limits)), should))
    })
}

#[test]
fn qos_classes_are_the_kubelets() -> Result<()> {
    check_qos(&fixture("qos_class.json")?)
}

#[test]
fn oom_scores_are_the_kubelets() -> Result<()> {
    check_oom_score(&fixture("oom_score.json")?)
}

#[test]
fn effective_requests_and_limits_are_the_kubelets() -> Result<()> {
    check_effective(&fixture("effective.json")?)
}

#[test]
fn ranking_requests_are_the_kubelets() -> Result<()> {
    check(&fixture::<RankingRequest>("ranking_request.json")?, |case| {
        let request = effective::ranking_request(&case.pod.build()?, &case.resource);
        let is = if case.resource == "cpu" { request.milli() } else { request.units() };
        Ok((is, case.expected))
    })
}

#[test]
fn pod_cgroups_are_the_kubelets() -> Result<()> {
    check(&fixture::<PodFiles>("pod_cgroup.json")?, |case| {
        let settings = Settings {
            cpu_cfs_quota: case.cpu_cfs_quota,
            cpu_cfs_quota_period_us: case.period_us,
            ..Settings::default()
        };
        let files = values::pod(&case.pod.build()?, &node(1 << 33, ResourceList::new()), &settings);
        Ok((files.to_text(), case.files.clone()))
    })
}

#[test]
fn container_cgroups_are_the_kubelets() -> Result<()> {
    check(&fixture::<ContainerFiles>("container_cgroup.json")?, |case| {
        let settings =
            Settings { single_process_oom_kill: case.single_process_oom_kill, ..Settings::default() };
        let pod = case.pod.build()?;
        let container = pod.containers.last().context("no container")?;
        let files = values::container(&pod, container, &node(1 << 33, ResourceList::new()), &settings);
        Ok((files.to_text(), case.files.clone()))
    })
}

#[test]
fn huge_pages_are_the_kubelets() -> Result<()> {
    check(&fixture::<Huge>("hugepages.json")?, |case| {
        let sizes =
            case.sizes.iter().map(|size| (format!("hugepages-{size}"), String::from("8Gi"))).collect();
        let pod = case.pod.build()?;
        let container = pod.containers.last().context("no container")?;
        let settings = Settings { cpu_weight_formula: CpuWeightFormula::Linear, ..Settings::default() };
        let files = values::container(&pod, container, &node(1 << 33, case::list(&sizes)?), &settings);
        let mut files = files.to_text();
        files.retain(|file, _| file.starts_with("hugetlb."));
        Ok((files, case.files.clone()))
    })
}

/// The same checks over the tables in their original shape.
#[test]
fn the_original_tables_agree() -> Result<()> {
    let Some(folder) = env::var_os("ENFORCER_CONFORMANCE_DIR") else {
        println!("skipped: ENFORCER_CONFORMANCE_DIR names no folder of upstream tables");
        return Ok(());
    };
    let tables = upstream::Tables::new(Path::new(&folder));
    check_qos(&[tables.qos()?])?;
    check_oom_score(&[tables.oom_score()?])?;
    check_effective(&tables.effective()?)?;

    let mut different = Vec::new();
    for (file, judge) in original::READ {
        let mut judged = 0;
        for (name, row) in tables.rows(file)? {
            let Some((is, should)) = judge(&name, &row).with_context(|| format!("{file}: {name}"))? else {
                continue;
            };
            judged += 1;
            if is != should {
                different.push(format!("{file}: {name}:\n  is     {is}\n  should {should}\n  of     {row}"));
            }
        }
        ensure!(judged > 0, "{file}: no row is judged");
    }
    ensure!(different.is_empty(), "{}", different.join("\n"));

    // Each table is read, or it is said why not.
    let known: Vec<&str> = original::READ.iter().map(|(file, _)| *file).collect();
    let known = [known.as_slice(), original::RESTATED].concat();
    let known: BTreeSet<_> =
        known.into_iter().chain(original::NOT_READ.iter().map(|(file, _)| *file)).map(String::from).collect();
    assert_eq!(tables.names()?, known);
    for (file, reason) in original::NOT_READ {
        println!("not read: {file}: {reason}");
    }
    Ok(())
}
