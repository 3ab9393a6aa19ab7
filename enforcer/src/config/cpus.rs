//! The fields of CPUs that containers have of their own: `cpuManagerPolicy`, `cpuManagerPolicyOptions` and
//! `reservedSystemCPUs`.

use serde_json::{Map, Value, json};

use super::{Config, fields::Fields};
use crate::{
    model::CgroupPath,
    policy::{
        CpuManagerPolicy, Settings,
        cpus::{CpuOptions, CpuSet, DISTRIBUTE_CPUS_ACROSS_CORES, FULL_PCPUS_ONLY, OptionsError},
    },
};

/// `cpuManagerPolicy`.
const POLICIES: [(&str, CpuManagerPolicy); 2] =
    [("none", CpuManagerPolicy::None), ("static", CpuManagerPolicy::Static)];

/// Takes the fields.
pub(super) fn read(fields: &mut Fields, default: Settings) -> Settings {
    Settings {
        cpu_manager_policy: fields
            .choice("cpuManagerPolicy", &POLICIES)
            .unwrap_or(default.cpu_manager_policy),
        cpu_manager_options: options(fields),
        reserved_system_cpus: fields
            .text("reservedSystemCPUs", |text| {
                text.parse::<CpuSet>().map_err(|error| format!("{error}: write a list of CPUs such as 0-1,8"))
            })
            .unwrap_or_default(),
        ..default
    }
}

fn options(fields: &mut Fields) -> CpuOptions {
    const FIELD: &str = "cpuManagerPolicyOptions";
    let pairs = fields.pairs(FIELD).unwrap_or_default();
    let mut options = CpuOptions::default();
    for pair in &pairs {
        match CpuOptions::from_pairs([(pair.key.as_str(), pair.text.as_str())]) {
            Ok(CpuOptions { full_pcpus_only, distribute_cpus_across_cores }) => {
                options.full_pcpus_only |= full_pcpus_only;
                options.distribute_cpus_across_cores |= distribute_cpus_across_cores;
            }
            Err(error) => fields.wrong_pair(FIELD, pair, &error.to_string()),
        }
    }
    if let Err(error @ OptionsError::Conflict) = options.check() {
        fields.wrong(FIELD, &format!("{error}: leave one of them out"));
    }
    options
}

/// Checks the rules that span fields, as the kubelet does (`ValidateKubeletConfiguration`, `NewNonePolicy`).
pub(super) fn check(fields: &mut Fields, settings: &Settings, cgroups: [&Option<CgroupPath>; 2]) {
    if !settings.reserved_system_cpus.is_empty() && cgroups.into_iter().any(Option::is_some) {
        fields.wrong(
            "reservedSystemCPUs",
            "reserves CPU a second time where systemReservedCgroup or kubeReservedCgroup is set: leave out either this or those",
        );
    }
    if settings.cpu_manager_policy == CpuManagerPolicy::None
        && settings.cpu_manager_options != CpuOptions::default()
    {
        fields.wrong(
            "cpuManagerPolicyOptions",
            "has options of the policy static: write cpuManagerPolicy: static",
        );
    }
}

/// `cpuManagerPolicy` as written in a file.
pub(super) fn show_policy(config: &Config) -> Value {
    let name = POLICIES.iter().find(|(_, policy)| *policy == config.settings.cpu_manager_policy);
    json!(name.map(|(name, _)| name))
}

/// `cpuManagerPolicyOptions` as written in a file: those that are true.
pub(super) fn show_options(config: &Config) -> Value {
    let CpuOptions { full_pcpus_only, distribute_cpus_across_cores } = config.settings.cpu_manager_options;
    let options =
        [(FULL_PCPUS_ONLY, full_pcpus_only), (DISTRIBUTE_CPUS_ACROSS_CORES, distribute_cpus_across_cores)];
    let named: Map<_, _> = options
        .into_iter()
        .filter(|(_, is_on)| *is_on)
        .map(|(name, _)| (name.to_owned(), json!("true")))
        .collect();
    if named.is_empty() { Value::Null } else { Value::Object(named) }
}

/// `reservedSystemCPUs` as written in a file.
pub(super) fn show_reserved(config: &Config) -> Value {
    let cpus = &config.settings.reserved_system_cpus;
    json!((!cpus.is_empty()).then(|| cpus.to_string()))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::super::Error;
    use super::*;

    const HEAD: &str = "apiVersion: enforcer.dev/v1alpha1\nkind: EnforcerConfiguration\n";

    fn config(text: &str) -> Result<Config, String> {
        match Config::parse("c.yaml", &format!("{HEAD}{text}")) {
            Ok(config) => Ok(config),
            Err(Error::Invalid { problems }) => {
                Err(problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
            }
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn the_fields_are_the_kubelets() {
        let text = "cpuManagerPolicy: static\ncpuManagerPolicyOptions: {full-pcpus-only: \"true\"}\n\
                    reservedSystemCPUs: 0,4-5\n";
        let settings = config(text).unwrap().settings;
        assert_eq!(settings.cpu_manager_policy, CpuManagerPolicy::Static);
        assert!(settings.cpu_manager_options.full_pcpus_only);
        assert_eq!(settings.reserved_system_cpus.to_string(), "0,4-5");
        let spread = "cpuManagerPolicy: static\nkubeReserved: {cpu: 100m}\n\
                      cpuManagerPolicyOptions:\n  distribute-cpus-across-cores: true\n  full-pcpus-only: false\n";
        assert!(config(spread).unwrap().settings.cpu_manager_options.distribute_cpus_across_cores);
    }

    #[rstest]
    #[case::policy(
        "cpuManagerPolicy: dynamic\n",
        "c.yaml:3: cpuManagerPolicy: \"dynamic\" is not one of none, static"
    )]
    #[case::nothing_reserved(
        "cpuManagerPolicy: static\n",
        "c.yaml:3: cpuManagerPolicy: static needs a reservation of CPU"
    )]
    #[case::list(
        "reservedSystemCPUs: 3-1\n",
        "c.yaml:3: reservedSystemCPUs: the range \"3-1\" ends before it begins"
    )]
    #[case::large("reservedSystemCPUs: 0-99999\n", "c.yaml:3: reservedSystemCPUs: \"0-99999\" is above 8191")]
    #[case::overlap(
        "systemReservedCgroup: /system.slice\nreservedSystemCPUs: 0\n",
        "c.yaml:4: reservedSystemCPUs: reserves CPU a second time"
    )]
    #[case::option(
        "cpuManagerPolicy: static\nreservedSystemCPUs: 0\ncpuManagerPolicyOptions:\n  align: \"true\"\n",
        "c.yaml:6: cpuManagerPolicyOptions.align: unknown CPU manager policy option"
    )]
    #[case::value(
        "cpuManagerPolicy: static\nreservedSystemCPUs: 0\ncpuManagerPolicyOptions:\n  full-pcpus-only: maybe\n",
        "c.yaml:6: cpuManagerPolicyOptions.full-pcpus-only: bad value \"maybe\""
    )]
    #[case::both(
        "cpuManagerPolicy: static\nreservedSystemCPUs: 0\n\
         cpuManagerPolicyOptions: {full-pcpus-only: true, distribute-cpus-across-cores: true}\n",
        "c.yaml:5: cpuManagerPolicyOptions: static policy options full-pcpus-only and"
    )]
    #[case::options_of_none(
        "cpuManagerPolicyOptions: {full-pcpus-only: true}\n",
        "c.yaml:3: cpuManagerPolicyOptions: has options of the policy static"
    )]
    fn what_is_wrong_is_one_error_with_its_place(#[case] text: &str, #[case] starts: &str) {
        let problem = config(text).unwrap_err();
        assert!(problem.starts_with(starts) && problem.lines().count() == 1, "{problem}");
    }
}
