use std::fs;

use super::{fields::Fields, *};
use crate::{
    model::ResourceName,
    policy::threshold::{Signal, ThresholdValue},
};

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
fn only_disks_are_not_watched_and_only_what_was_wished_for_is_reported() {
    assert_eq!(Config::default().unwatched(), Vec::<String>::new());
    let notes = Config::default().notes();
    let by_default = "disks are not watched, that is a kubelet's work: no pod is evicted for the default thresholds of \
                      nodefs.available, nodefs.inodesFree, imagefs.available, imagefs.inodesFree";
    assert_eq!(notes, [by_default]);
    let text = format!(
        "{HEAD}evictionHard:\n  memory.available: 200Mi\n  pid.available: 10%\n  nodefs.available: 3%\n\
         evictionSoft:\n  memory.available: 400Mi\n  pid.available: 20%\n  imagefs.inodesFree: 7%\n\
         evictionSoftGracePeriod:\n  memory.available: 1m\n  pid.available: 1m\n  imagefs.inodesFree: 1m\n"
    );
    let reported = Config::parse("c.yaml", &text).unwrap().unwatched();
    let fields: Vec<_> = reported.iter().filter_map(|line| line.split(':').next()).collect();
    assert_eq!(fields, ["evictionHard.nodefs.available", "evictionSoft.imagefs.inodesFree"], "{reported:?}");
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
fn all_that_is_wrong_is_reported_at_once_with_line_and_field() {
    let text = format!(
        "{HEAD}mode: fierce\nmodus: x\nevictionHard:\n  memory.available: 12Q\n  disk.free: 1Gi\ncpuCFSQuota: 3\n\
         cpuCFSQuotaPeriod: 2s\nrunDir: run\nsystemReserved:\n  memory: -1Gi\nnodeComponents: [kubelet, /bin/crio, a.slice]\n"
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
        "c.yaml:13: nodeComponents[1]: \"/bin/crio\" is neither a unit",
        "c.yaml:13: nodeComponents[2]: \"a.slice\" is neither a unit",
    ];
    assert_eq!(problems.len(), starts.len(), "{problems:#?}");
    for (problem, start) in problems.iter().zip(starts) {
        assert!(problem.starts_with(start), "{problem:?} does not start with {start:?}");
    }
}

#[test]
fn the_journal_keeps_neither_nothing_nor_everything() {
    let text = format!("{HEAD}journalMaxBytes: 4Mi\njournalMaxAge: 1h\n");
    let journal = Config::parse("c.yaml", &text).unwrap().journal;
    assert_eq!((journal.max_bytes, journal.max_age_ms), (4 << 20, 3_600_000));
    let wrong = problems(&format!("{HEAD}journalMaxBytes: 4095Ki\njournalMaxAge: 59m\n"));
    assert!(wrong[0].starts_with("c.yaml:3: journalMaxBytes: \"4095Ki\""), "{wrong:?}");
    assert!(wrong[1].starts_with("c.yaml:4: journalMaxAge: \"59m\""), "{wrong:?}");
    assert_eq!(problems(&format!("{HEAD}journalMaxBytes: 2Gi\njournalMaxAge: 9000h\n")).len(), 2);
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

const KUBELETS: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

#[test]
fn every_field_of_the_table_is_read_and_no_other() {
    let mut fields = Fields::default();
    fields.read("c.yaml", HEAD, false, API_VERSION, KIND).unwrap();
    read::read(&mut fields);
    let mut taken = fields.taken.clone();
    taken.sort();
    let mut names: Vec<_> = FIELDS.iter().map(|field| field.name.to_owned()).collect();
    names.sort();
    assert_eq!(taken, names, "each field is read exactly once");
}

/// What `show` writes for a field is read back as the same: for the defaults, and for a configuration that has none of
/// them.
#[test]
fn what_is_shown_can_be_written() {
    let other = format!(
        "{HEAD}mode: enforce\nownership: kubelet\nstateDir: /s\nrunDir: /r\njournalMaxBytes: 100Mi\njournalMaxAge: 1h30m\nstaticPodPath: /p\ncriSocket: /c.sock\npodSource: podsAPI\nkubeconfig: /k.conf\nkubeletRootDir: /k\nkubeletPort: 10255\nnodeName: node-1.example\napiAction: none\nonPdb: respect\nbarePods: evict\ndaemonSetPods: status\nnodeCondition: true\nnodeTaint: NoSchedule\nunknownPodGrace: 1m0s\n\
         metricsListen: \"[::1]:9464\"\nmetricsHosts: [node-1.example.com]\nmetricsPodNames: true\n\
         metricsTLS: {{certFile: /c.pem, keyFile: /k.pem, clientCAFile: /ca.pem}}\nmetricsTokenFile: /t\nconfigReload: auto\n\
         onDrift: report\nnodeComponents: [podman.service, k3s]\noomScorePolicy: ranked\nevictionPriorityCeiling: 100\nprotectedMaxShare: 0.25\n\
         memoryAvailableSource: kubelet\nevictionScheduling: rr\nevictionHard: {{memory.available: 1Gi, pid.available: 10%}}\n\
         evictionSoft: {{memory.available: 15%}}\nevictionSoftGracePeriod: {{memory.available: 1m30s}}\n\
         evictionMinimumReclaim: {{memory.available: 100Mi}}\nevictionPressureTransitionPeriod: 30s\n\
         evictionMaxPodGracePeriod: 7\nmergeDefaultEvictionSettings: true\nkubeReservedPolicy: auto\n\
         evictWithinRequest: false\nbreaker: {{maxKills: 5, window: 1h0m0s, maxShare: 0.25}}\nsystemReserved: {{cpu: 100m, memory: 1Gi}}\n\
         kubeReserved: {{pid: 1000}}\nenforceNodeAllocatable: [pods, system-reserved, kube-reserved-compressible]\n\
         systemReservedCgroup: /system.slice\nkubeReservedCgroup: /kube\nmaxPods: 20\npodsPerCore: 3\ncgroupRoot: /m\n\
         cgroupDriver: systemd\ncpuCFSQuota: false\ncpuCFSQuotaPeriod: 5ms\ncpuManagerPolicy: static\ncpuManagerPolicyOptions: {{full-pcpus-only: true}}\ncpuWeightFormula: linear\npodPidsLimit: 100\n\
         singleProcessOOMKill: true\nmemorySwap: {{swapBehavior: LimitedSwap}}\nmemoryThrottlingFactor: 0.9\n\
         memoryReservationPolicy: TieredReservation\nmemoryProtection: request\n\
         preKillHook: {{path: /usr/local/libexec/hook, args: [-x, \"a b\"], timeout: 2s500ms}}\n\
         observeSocketOwner: root\nobserveSocketGroup: 1234\nadminSocketOwner: 0\nadminSocketGroup: root\n\
         sinks: {{journald: {{enabled: true, socket: /s, types: [oom.incident]}}, kubernetes: {{enabled: true, dryRun: true}}, webhook: [{{name: a, url: \"http://[::1]:8/x?y=z\"}}, \
         {{name: b, url: \"https://b\", types: [pod.added], secretFile: /s, tokenFile: /t, caFile: /c, \
         batch: {{maxEvents: 7, maxBytes: 10Ki}}, connectTimeout: 1s500ms, timeout: 1m, handshake: true}}]}}\n"
    );
    // They exclude each other.
    let without = other.replace(
        "systemReservedCgroup: /system.slice\nkubeReservedCgroup: /kube",
        "reservedSystemCPUs: 0,2-3",
    );
    let without = without.replace("[pods, system-reserved, kube-reserved-compressible]", "[none]");
    let default = Config::default();
    let [other, without] = [other, without].map(|text| Config::parse("c.yaml", &text).unwrap());
    for config in [default.clone(), other.clone(), without.clone()] {
        let mut text = String::from(HEAD);
        for field in FIELDS {
            let value = (field.show)(&config);
            text.push_str(&format!("{}: {value}\n", field.name));
            let differs = |config: &Config| (field.show)(config) != (field.show)(&default);
            assert!(differs(&other) || differs(&without), "{} is not set above", field.name);
        }
        let sorted = |mut config: Config| {
            // Thresholds of one kind have no order.
            config
                .settings
                .eviction
                .thresholds
                .sort_by_key(|threshold| (threshold.grace_period_ms, threshold.signal));
            // What is shown is written, also a default.
            (config.memory_available_source_at, config.hard_memory_at, config.cgroup_root_at) =
                Default::default();
            config
        };
        assert_eq!(sorted(Config::parse("shown.yaml", &text).unwrap()), sorted(config), "{text}");
    }
}

#[test]
fn a_kubelets_file_is_the_base_and_ours_lies_over_it() {
    let kubelets = format!(
        "{KUBELETS}maxPods: 50\nclusterDomain: cluster.local\nmode: nonsense\noomScoreAdj: -999\n\
         evictionHard:\n  memory.available: 1Gi\n  nodefs.available: 15%\nsystemReserved:\n  cpu: 1\nstaticPodPath: \n"
    );
    let own = format!("{HEAD}mode: observe\nmaxPods: 60\n");
    let Effective { config, origins, ignored } =
        Effective::parse(Some(("c.yaml", &own)), Some(("kubelet.yaml", &kubelets))).unwrap();
    assert_eq!((config.mode, config.max_pods), (Mode::Observe, 60));
    assert_eq!(
        config.static_pod_path,
        Config::default().static_pod_path,
        "no value is as if it were not there"
    );
    assert_eq!(config.settings.eviction.thresholds.len(), 3);
    assert_eq!(origins["maxPods"].to_string(), "c.yaml:4");
    assert_eq!(origins["evictionHard"].to_string(), "kubelet.yaml:7");
    assert!(!origins.contains_key("kubeReserved"));
    let ignored: Vec<_> =
        ignored.iter().map(|ignored| format!("{} {}", ignored.origin, ignored.field)).collect();
    assert_eq!(
        ignored,
        ["kubelet.yaml:4 clusterDomain", "kubelet.yaml:5 mode", "kubelet.yaml:6 oomScoreAdj"]
    );
    let alone = Effective::parse(None, Some(("kubelet.yaml", &kubelets))).unwrap();
    assert_eq!((alone.config.mode, alone.config.max_pods), (Mode::DryRun, 50));
}

/// What our own file says of it comes before what the running kubelet shows; a kubelet's file below it does not.
#[test]
fn only_our_own_file_fixes_the_cgroup_root() {
    let kubelets = format!("{KUBELETS}cgroupRoot: /kubelet\n");
    let read = |own: &str| {
        let own = format!("{HEAD}{own}");
        let effective = Effective::parse(Some(("c.yaml", &own)), Some(("k.yaml", &kubelets))).unwrap();
        let Config { settings, cgroup_root_at, .. } = effective.config;
        (settings.cgroup_root.to_string(), cgroup_root_at.0.map(|origin| origin.to_string()))
    };
    assert_eq!(read(""), (String::from("/kubelet"), None));
    assert_eq!(read("cgroupRoot: /\n"), (String::from("/"), Some(String::from("c.yaml:3"))));
}

#[test]
fn what_is_wrong_in_a_kubelets_file_names_it() {
    let kubelets = format!("{KUBELETS}evictionHard:\n  memory.available: 12Q\nwhatever: 3\n");
    let own = format!("{HEAD}mode: fierce\n");
    let Err(Error::Invalid { problems }) =
        Effective::parse(Some(("c.yaml", &own)), Some(("k.yaml", &kubelets)))
    else {
        panic!()
    };
    let reported: Vec<_> = problems.iter().map(ToString::to_string).collect();
    assert!(
        reported[0].starts_with("c.yaml:3: mode") && reported[1].starts_with("k.yaml:4: evictionHard.memory"),
        "{reported:?}"
    );
    assert!(matches!(Effective::parse(Some(("c.yaml", KUBELETS)), None), Err(Error::Invalid { .. })));
}

/// `ValidateKubeletConfiguration` of `pkg/kubelet/apis/config/validation/validation.go`, as far as it concerns us.
#[test]
fn what_fields_say_together_must_fit() {
    for (text, reported) in [
        ("enforceNodeAllocatable: [none, pods]\n", "c.yaml:3: enforceNodeAllocatable: none stands alone"),
        (
            "enforceNodeAllocatable: [system-reserved]\n",
            "c.yaml:3: enforceNodeAllocatable: names system-reserved",
        ),
        (
            "kubeReservedCgroup: /k\nenforceNodeAllocatable: [kube-reserved, kube-reserved-compressible]\n",
            "c.yaml:4: enforceNodeAllocatable: kube-reserved and kube-reserved-compressible exclude",
        ),
        ("enforceNodeAllocatable: [nodes]\n", "c.yaml:3: enforceNodeAllocatable[0]: \"nodes\" is not one of"),
        (
            "systemReservedCgroup: /kubepods\nenforceNodeAllocatable: [system-reserved]\n",
            "c.yaml:3: systemReservedCgroup: ",
        ),
        ("cgroupDriver: systemd\ncgroupRoot: /a_b\n", "c.yaml:4: cgroupRoot: "),
        (
            "evictionSoft: {memory.available: 1Gi}\n",
            "c.yaml:3: evictionSoft.memory.available: a soft threshold needs",
        ),
        ("memoryThrottlingFactor: 1.1\n", "c.yaml:3: memoryThrottlingFactor: \"1.1\""),
        ("breaker: {maxShare: 0}\n", "c.yaml:3: breaker.maxShare: \"0\""),
        ("breaker: {maxShare: 500m}\n", "c.yaml:3: breaker.maxShare: \"500m\""),
        ("breaker: {maxKills: -1}\n", "c.yaml:3: breaker.maxKills: \"-1\""),
        ("breaker: {window: 0s}\n", "c.yaml:3: breaker.window: \"0s\""),
        ("breaker: {least: 1}\n", "c.yaml:3: breaker.least: unknown field"),
        ("memoryThrottlingFactor: nan\n", "c.yaml:3: memoryThrottlingFactor: "),
        ("maxPods: -1\n", "c.yaml:3: maxPods: -1 is too small"),
        ("maxPods: 99999999999999999999\n", "c.yaml:3: maxPods: "),
        ("podPidsLimit: 1.5\n", "c.yaml:3: podPidsLimit: \"1.5\" is not a whole number"),
        ("evictionPressureTransitionPeriod: 5mins\n", "c.yaml:3: evictionPressureTransitionPeriod: "),
    ] {
        let problems = problems(&format!("{HEAD}{text}"));
        assert_eq!(problems.len(), 1, "{text}: {problems:?}");
        assert!(problems[0].starts_with(reported), "{text}: {problems:?}");
    }
}

#[test]
fn the_kubelets_zero_is_its_default() {
    let config = Config::parse("c.yaml", &format!("{HEAD}evictionPressureTransitionPeriod: 0s\n")).unwrap();
    assert_eq!(config.settings.eviction.pressure_transition_period_ms, 300_000);
}

#[test]
fn hostile_files_are_bounded_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.yaml");
    let reported = |content: &[u8]| {
        fs::write(&path, content).unwrap();
        let error = Config::load(Some(&path)).unwrap_err().to_string();
        assert!(error.len() < 2_000, "{} bytes", error.len());
        error
    };
    let aliases = (1..12).fold(String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"), |text, level| {
        let below = vec![format!("*a{}", level - 1); 10].join(",");
        format!("{text}a{level}: &a{level} [{below}]\n")
    });
    reported(format!("{HEAD}{aliases}").as_bytes());
    reported(format!("{HEAD}a: {}\n", "[".repeat(10_000)).as_bytes());
    reported(format!("{HEAD}mode: {}\n", "x".repeat(900_000)).as_bytes());
    reported(format!("{HEAD}{}: 1\n", "x".repeat(900_000)).as_bytes());
    assert!(reported(format!("{HEAD}mode: observe\nmode: enforce\n").as_bytes()).contains(":4"));
    assert!(reported(&[HEAD.as_bytes(), b"mode: \xff\n"].concat()).contains(":3: is not UTF-8"));
    reported(&[HEAD.as_bytes(), b"mode: a\0b\n"].concat());
    assert!(!reported(format!("{HEAD}\"a\\e[2J\": 1\n").as_bytes()).contains('\u{1b}'));
    fs::write(&path, vec![b'#'; 2 << 20]).unwrap();
    assert!(matches!(Config::load(Some(&path)), Err(Error::Read { .. })));
    assert!(matches!(Config::load(Some(dir.path())), Err(Error::Read { .. })));
    let pipe = dir.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
    assert!(matches!(Config::load(Some(&pipe)), Err(Error::Read { .. })));
}

#[test]
fn the_schema_has_every_field_with_its_default() {
    let schema = schema();
    let properties = schema["properties"].as_object().unwrap();
    for Field { name, show, .. } in FIELDS {
        let default = show(&Config::default());
        assert_eq!(properties[*name].get("default").cloned().unwrap_or_default(), default, "{name}");
    }
    assert_eq!(properties.len(), FIELDS.len() + 2);
}

/// The page for operators lists the fields as the table has them. Where it differs, the test prints what it should be.
#[test]
fn the_documentation_lists_every_field() {
    let page = include_str!("../../../docs/configuration.md");
    let begin = "a test holds it to that -->\n";
    let listed =
        page.split_once(begin).and_then(|(_, rest)| rest.split_once("<!-- end of fields -->")).unwrap().0;
    let default = Config::default();
    let mut expected = String::from("| field | default | |\n|---|---|---|\n");
    for Field { name, form, kubelets, help, show } in FIELDS {
        let value = match show(&default) {
            serde_json::Value::Null => String::new(),
            serde_json::Value::String(text) => format!("`{text}`"),
            serde_json::Value::Object(entries) if entries.is_empty() => String::new(),
            other => format!("`{other}`"),
        };
        let words = match form {
            Form::Choice(words) | Form::Words(words) => format!(": `{}`", words.join("`, `")),
            _ => String::new(),
        };
        let ours = if *kubelets { "" } else { " (not a kubelet's)" };
        expected.push_str(&format!("| `{name}` | {value} | {help}{words}{ours} |\n"));
    }
    assert!(listed == expected, "docs/configuration.md should have between its marks:\n{expected}");
}

#[test]
fn an_account_that_is_not_there_is_reported_with_its_place() {
    let reported = problems(&format!(
        "{HEAD}observeSocketGroup: no-such-group\nadminSocketOwner: -1\nadminSocketGroup: [root]\nobserveSocketOwner: 4294967295\n"
    ));
    let starts = [
        "c.yaml:3: observeSocketGroup: there is no group \"no-such-group\" in /etc/group: ",
        "c.yaml:4: adminSocketOwner: there is no user \"-1\" in /etc/passwd: ",
        "c.yaml:5: adminSocketGroup: expected a string or number, found a list",
        "c.yaml:6: observeSocketOwner: \"4294967295\" is not the number of a user",
    ];
    for start in starts {
        assert!(reported.iter().any(|problem| problem.starts_with(start)), "{start}: {reported:#?}");
    }
    assert_eq!(reported.len(), starts.len());
}

#[test]
fn a_hook_that_is_wrong_is_reported_with_its_place() {
    let reported = problems(&format!(
        "{HEAD}preKillHook:\n  path: hook\n  args: [a, {{b: c}}]\n  timeout: 2m\n  shell: true\n"
    ));
    let starts = [
        "c.yaml:4: preKillHook.path: \"hook\" is not an absolute path",
        "c.yaml:5: preKillHook.args[1]: expected a string",
        "c.yaml:6: preKillHook.timeout: \"2m\" is not a timeout",
        "c.yaml:7: preKillHook.shell: unknown field",
    ];
    assert_eq!(reported.len(), starts.len(), "{reported:#?}");
    for (problem, start) in reported.iter().zip(starts) {
        assert!(problem.starts_with(start), "{problem:?} does not start with {start:?}");
    }
    assert!(problems(&format!("{HEAD}preKillHook: {{timeout: 1s}}\n"))[0].contains("path is missing"));
    assert!(problems(&format!("{HEAD}preKillHook: /bin/true\n"))[0].contains("expected a mapping"));
    let config = Config::parse("c.yaml", &format!("{HEAD}preKillHook: {{path: /x}}\n")).unwrap();
    assert_eq!(config.pre_kill_hook.unwrap().timeout_ms, 1_000);
}

#[test]
fn a_file_that_others_may_replace_is_not_loaded_by_who_acts_on_it() {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    let dir = tempfile::tempdir().unwrap();
    let (shared, own) = (dir.path().join("shared"), dir.path().join("own"));
    for folder in [&shared, &own] {
        fs::create_dir(folder).unwrap();
        fs::write(folder.join("config.yaml"), HEAD).unwrap();
        fs::set_permissions(folder.join("config.yaml"), fs::Permissions::from_mode(0o644)).unwrap();
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    }
    symlink(shared.join("config.yaml"), own.join("link.yaml")).unwrap();
    let load = |path: &Path| Effective::load_trusted(Some(path), None).map(|effective| effective.config);
    for path in [own.join("config.yaml"), own.join("link.yaml"), own.join("../shared/./config.yaml")] {
        assert_eq!(load(&path).unwrap(), Config::default(), "{}", path.display());
    }
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o777)).unwrap();
    for path in [own.join("link.yaml"), shared.join("config.yaml")] {
        let Err(Error::Untrusted { path: refused, .. }) = load(&path) else { panic!("{}", path.display()) };
        assert_eq!(refused, shared.display().to_string());
        assert!(Effective::load(Some(&path), None).is_ok(), "who only asks may");
    }
    let Err(Error::Read { path, source }) = load(&own.join("none.yaml")) else { panic!() };
    assert_eq!((path, source.kind()), (own.join("none.yaml").display().to_string(), io::ErrorKind::NotFound));
    assert!(matches!(load(&own), Err(Error::Read { .. })), "a folder is no file");
}
