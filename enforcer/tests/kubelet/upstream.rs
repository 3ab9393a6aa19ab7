//! Reads tables that keep the shape of upstream's Go literals: field names with either case, `Spec` or not,
//! `Resources` or not, and helper calls such as `getPod`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, anyhow, bail};
use serde_json::{Map, Value, json};

use super::case::{Effective, Group, OomScore, QosClassCase};

/// A folder of tables, a file for each upstream test.
pub(crate) struct Tables {
    folder: PathBuf,
}

impl Tables {
    pub(crate) fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    pub(crate) fn qos(&self) -> Result<Group<QosClassCase>> {
        self.group("qos.TestComputePodQOS", |_, case| {
            let name = field(field(case, "pod"), "name");
            Ok(Some(
                json!({"name": name, "pod": pod(field(case, "pod"))?, "expected": field(case, "expected")}),
            ))
        })
    }

    /// A range is narrowed to what the formula gives, where that lies in it.
    pub(crate) fn oom_score(&self) -> Result<Group<OomScore>> {
        self.group("qos.TestGetContainerOOMScoreAdjust", |name, case| {
            let ranges = field(case, "lowHighOOMScoreAdj").as_object().context("no scores")?;
            let mut expected = Map::new();
            for (container, range) in ranges {
                let (low, high) = (field(range, "lowOOMScoreAdj"), field(range, "highOOMScoreAdj"));
                let exact = match (low.as_i64(), high.as_i64()) {
                    (Some(495), Some(505)) => 500,
                    (Some(875), Some(880)) => 875,
                    (Some(low), Some(high)) if low == high => low,
                    other => bail!("unknown range {other:?}"),
                };
                expected.insert(container.clone(), exact.into());
            }
            Ok(Some(json!({
                "name": name, "memoryBytes": field(case, "memoryCapacity"), "pod": pod(field(case, "pod"))?,
                "expected": expected,
            })))
        })
    }

    /// Cases that take status into account are left out: a manifest has none.
    pub(crate) fn effective(&self) -> Result<Vec<Group<Effective>>> {
        let files = [
            ("resource.TestPodResourceRequests", false),
            ("resource.TestPodResourceLimits", false),
            ("resource.TestPodLevelResourceRequests", false),
            ("resource.TestPodRequestsAndLimits", false),
            ("resource.TestPodRequestsAndLimitsWithoutOverhead", true),
            ("resource.TestAggregateContainerRequestsAndLimits", true),
        ];
        files.into_iter().map(|(file, alone)| self.group(file, |_, case| effective(case, alone))).collect()
    }

    /// The names of all tables in the folder.
    pub(crate) fn names(&self) -> Result<BTreeSet<String>> {
        let mut names = BTreeSet::new();
        for entry in fs::read_dir(&self.folder).with_context(|| self.folder.display().to_string())? {
            let name = entry?.file_name().into_string().map_err(|name| anyhow!("{}", name.display()))?;
            names.extend(name.strip_suffix(".json").map(ToOwned::to_owned));
        }
        Ok(names)
    }

    /// The rows of a table, each with its name or number.
    pub(crate) fn rows(&self, file: &str) -> Result<Vec<(String, Value)>> {
        let path = self.folder.join(format!("{file}.json"));
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let table: Value = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
        Ok(match field(&table, "table").clone() {
            Value::Array(cases) => {
                cases.into_iter().enumerate().map(|(index, case)| (format!("case {index}"), case)).collect()
            }
            Value::Object(cases) => cases.into_iter().collect(),
            _ => bail!("{}: no table", path.display()),
        })
    }

    fn group<T: serde::de::DeserializeOwned>(
        &self,
        file: &str,
        read: impl Fn(&str, &Value) -> Result<Option<Value>>,
    ) -> Result<Group<T>> {
        let mut cases = Vec::new();
        for (name, case) in self.rows(file)? {
            if let Some(case) = read(&name, &case).with_context(|| format!("{file}: {name}"))? {
                cases.push(serde_json::from_value(case).with_context(|| format!("{file}: {name}"))?);
            }
        }
        Ok(Group { upstream: file.to_owned(), cases })
    }
}

fn effective(case: &Value, alone: bool) -> Result<Option<Value>> {
    let options =
        Some(field(case, "options")).filter(|value| !value.is_null()).unwrap_or(field(case, "opts"));
    let is_set = |option| field(options, option).as_bool() == Some(true);
    if is_set("UseStatusResources") {
        return Ok(None);
    }
    let name = ["description", "name", "cName"].into_iter().find_map(|key| field(case, key).as_str());
    let whole = field(case, "pod");
    Ok(Some(json!({
        "name": name.unwrap_or_default(),
        "pod": pod(if whole.is_null() { case } else { whole })?,
        "containersAlone": alone || is_set("ExcludeOverhead") || is_set("SkipPodLevelResources"),
        "requests": field(case, "expectedRequests"),
        "limits": field(case, "expectedLimits"),
    })))
}

pub(crate) fn pod(value: &Value) -> Result<Value> {
    match field(value, "call").as_str() {
        None => {}
        Some("getPod") => return called(&value["args"][1]),
        Some("getPodWithPodLevelResources") => {
            let mut pod = called(&value["args"][2])?;
            let whole = called(&value["args"][1])?;
            pod["resources"] = resources(&whole["containers"][0]).into();
            return Ok(pod);
        }
        Some(other) => bail!("unknown call {other}"),
    }
    let spec = Some(field(value, "spec")).filter(|spec| !spec.is_null()).unwrap_or(value);
    let mut pod = Map::new();
    for key in ["priority", "priorityClassName", "overhead"] {
        let given = field(spec, key);
        if !given.is_null() {
            pod.insert(key.to_owned(), given.clone());
        }
    }
    for key in ["resources", "podResources"] {
        let given = field(spec, key);
        if !given.is_null() {
            pod.insert(String::from("resources"), resources(given).into());
        }
    }
    for key in ["initContainers", "containers"] {
        let given = field(spec, key).as_array().map(Vec::as_slice).unwrap_or_default();
        pod.insert(key.to_owned(), given.iter().map(container).collect());
    }
    Ok(pod.into())
}

/// The pod of upstream's helper `getPod`.
fn called(amounts: &Value) -> Result<Value> {
    let mut lists: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for (key, amount) in amounts.as_object().context("no amounts")? {
        let (resource, list) = match key.as_str() {
            "cpuRequest" => ("cpu", "requests"),
            "memoryRequest" => ("memory", "requests"),
            "cpuLimit" => ("cpu", "limits"),
            "memoryLimit" => ("memory", "limits"),
            "cpuOverhead" => ("cpu", "overhead"),
            "memoryOverhead" => ("memory", "overhead"),
            other => bail!("unknown amount {other}"),
        };
        lists.entry(list).or_default().insert(resource.to_owned(), amount.clone());
    }
    let mut take = |list| Value::from(lists.remove(list).unwrap_or_default());
    Ok(json!({
        "overhead": take("overhead"),
        "containers": [{"name": "c", "requests": take("requests"), "limits": take("limits")}],
    }))
}

fn container(value: &Value) -> Value {
    let own = Some(field(value, "resources")).filter(|own| !own.is_null()).unwrap_or(value);
    let mut container = resources(own);
    for key in ["name", "restartPolicy"] {
        let given = field(value, key);
        if !given.is_null() {
            container.insert(key.to_owned(), given.clone());
        }
    }
    container.into()
}

fn resources(value: &Value) -> Map<String, Value> {
    ["requests", "limits"]
        .into_iter()
        .map(|key| (key, field(value, key)))
        .filter(|(_, list)| !list.is_null())
        .map(|(key, list)| (key.to_owned(), list.clone()))
        .collect()
}

/// A field by its name in either case; null where there is none.
pub(crate) fn field<'value>(value: &'value Value, name: &str) -> &'value Value {
    static NULL: Value = Value::Null;
    value
        .as_object()
        .and_then(|fields| fields.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)))
        .map_or(&NULL, |(_, value)| value)
}
