use super::*;

const HEAD: &str = "apiVersion: enforcer.dev/v1alpha1\nkind: EnforcerConfiguration\n";

fn problems(text: &str) -> Vec<String> {
    match Config::parse("c.yaml", text) {
        Err(Error::Invalid { problems }) => problems.iter().map(ToString::to_string).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_bare_document_is_the_default() {
    assert_eq!(Config::parse("c.yaml", HEAD).unwrap(), Config::default());
}

#[test]
fn what_is_written_is_taken() {
    let text = format!(
        "{HEAD}mode: enforce\nownership: enforcer\nrunDir: /run/e\nevictionHard:\n  memory.available: 200Mi\n\
         systemReserved:\n  memory: 1Gi\n  cpu: 0.5\ncpuCFSQuotaPeriod: 5ms\npodPidsLimit: -1\nenforceNodeAllocatable: [none]\n"
    );
    let config = Config::parse("c.yaml", &text).unwrap();
    assert_eq!(config.mode, Mode::Enforce);
    assert_eq!(config.ownership, Ownership::Enforcer);
    assert_eq!(config.run_dir, Path::new("/run/e"));
    let hard = config.settings.eviction.hard(Signal::MemoryAvailable).unwrap();
    assert_eq!(hard.value, ThresholdValue::Amount(200 << 20));
    assert_eq!(config.settings.cpu_cfs_quota_period_us, 5_000);
    assert_eq!(config.settings.pod_pids_limit, None);
    assert!(!config.settings.enforce_pods);
    assert_eq!(config.settings.system_reserved.get(ResourceName::CPU), Some(&"500m".parse().unwrap()));
}

#[test]
fn all_that_is_wrong_is_told_at_once_with_line_and_field() {
    let text = format!(
        "{HEAD}mode: fierce\nmodus: x\nevictionHard:\n  memory.available: 12Q\n  disk.free: 1Gi\ncpuCFSQuota: 3\n\
         cpuCFSQuotaPeriod: 2s\nrunDir: run\nsystemReserved:\n  memory: -1Gi\n"
    );
    let problems = problems(&text);
    let starts = [
        "c.yaml:3: mode: \"fierce\" is not one of observe, dry-run, enforce",
        "c.yaml:4: modus: unknown field",
        "c.yaml:6: evictionHard.memory.available: ",
        "c.yaml:7: evictionHard.disk.free: not a signal",
        "c.yaml:8: cpuCFSQuota: expected true or false",
        "c.yaml:9: cpuCFSQuotaPeriod: \"2s\"",
        "c.yaml:10: runDir: \"run\" is not an absolute path",
        "c.yaml:12: systemReserved.memory: \"-1Gi\" is negative",
    ];
    assert_eq!(problems.len(), starts.len(), "{problems:#?}");
    for (problem, start) in problems.iter().zip(starts) {
        assert!(problem.starts_with(start), "{problem:?} does not start with {start:?}");
    }
}

#[test]
fn another_kind_of_document_is_refused() {
    assert_eq!(problems("kind: Pod\n").len(), 2);
    assert_eq!(problems("- a\n")[0], "c.yaml:1: expected a mapping, found a list");
    assert!(problems("a: [\n")[0].starts_with("c.yaml:"), "no place");
}

#[test]
fn only_the_default_place_may_be_missing() {
    let missing = Path::new("/nonexistent/config.yaml");
    assert!(matches!(Config::load(Some(missing)), Err(Error::Read { .. })));
}
