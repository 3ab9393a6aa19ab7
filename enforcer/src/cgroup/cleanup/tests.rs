use std::{
    fs,
    path::Path,
    process::{Child, Command},
};

use super::*;
use crate::{
    cgroup::{
        CgroupDir, CgroupsRs, ComponentRecord, Held, Mark, PageSize, Permit, ScoreRecord, SystemdDriver,
        units::fake::{Call, Fake},
    },
    model::{CgroupFile, CgroupId, CgroupPath, OwnerLevel, PodName, PodUid, TemporaryValue},
    sample::value,
};

const PAGE_BYTES: u64 = 4096;

fn page() -> PageSize {
    PageSize::new(PAGE_BYTES)
}

fn path(text: &str) -> CgroupPath {
    CgroupPath::parse(text).unwrap()
}

fn level(container: Option<&str>) -> OwnerLevel {
    let pod = PodName { namespace: "default".into(), name: "web".into() }.into();
    let uid = PodUid::new("1").unwrap();
    match container {
        Some(container) => OwnerLevel::Container { pod, uid, container: container.to_owned() },
        None => OwnerLevel::Pod { pod, uid },
    }
}

/// A marked cgroup without files, with the id 7.
fn marked(at: &str, made: bool, is_populated: bool) -> Marked {
    Marked {
        path: path(at),
        id: CgroupId(7),
        mark: Some(Mark::new(made, None)),
        is_newer: false,
        is_hooks: false,
        score: None,
        files: std::collections::BTreeMap::new(),
        usage_bytes: None,
        is_populated,
        processes: Vec::new(),
    }
}

impl Marked {
    /// Adds a file that was written, with what it holds and held before.
    fn with(mut self, file: &str, held: &str, before: Option<&str>) -> Self {
        let name = CgroupFile::named(file).unwrap();
        self.files.insert(name, Held::read(name, held));
        let before = before.map(|before| value(file, before));
        self.mark.as_mut().unwrap().files.insert(name, before);
        self
    }

    fn with_scores(mut self, record: Option<ScoreRecord>, scores: &[(u32, i16)]) -> Self {
        self.score = record;
        self.processes =
            scores.iter().map(|(pid, score)| Scored { pid: *pid, start_ticks: 3, score: *score }).collect();
        self
    }
}

fn survey_of(marked: Vec<Marked>) -> Survey {
    Survey { marked, ..Survey::default() }
}

/// The steps in short.
fn steps(survey: &Survey, is_kubelets: bool) -> Vec<String> {
    cleanup(survey, is_kubelets, page()).steps.iter().map(shown).collect()
}

fn shown(step: &Undo) -> String {
    match step {
        Undo::Temporary(Temporarily { path, value, .. }) => format!("{path} again {}", value.original()),
        Undo::Score { pid, old, new, .. } => format!("{pid}: {old} {new}"),
        Undo::Value { path, old, new, .. } => format!("{path}/{}: {old} {new}", new.file()),
        Undo::Remove { path, .. } => format!("rmdir {path}"),
        Undo::Forget { path, stays_ours: false, .. } => format!("forget {path}"),
        Undo::Forget { path, stays_ours: true, .. } => format!("keep {path}"),
    }
}

#[test]
fn empty_cgroups_that_were_made_go_bottom_up_and_populated_ones_get_the_kernels_values() {
    let survey = survey_of(vec![
        marked("/kubepods", true, true).with("cpu.weight", "157", None),
        marked("/kubepods/pod1", true, true)
            .with("memory.max", "8192", None)
            .with("memory.min", "4096", None)
            .with("cpu.weight", "100", None),
        marked("/kubepods/pod2", true, false).with("memory.max", "8192", None),
        marked("/kubepods/pod2/app", true, false).with("memory.max", "8192", None),
        // A runtime made it in ours: it goes along.
        marked("/kubepods/pod2/crio", false, false).with("memory.max", "8192", Some("max")),
    ]);
    let expected = [
        "/kubepods/pod1/memory.max: 8192 max",
        "/kubepods/pod1/memory.min: 4096 0",
        "/kubepods/cpu.weight: 157 100",
        "rmdir /kubepods/pod2/app",
        "rmdir /kubepods/pod2",
        "keep /kubepods",
        "keep /kubepods/pod1",
    ];
    assert_eq!(steps(&survey, false), expected);
    let left = cleanup(&survey, false, page()).left;
    let left: Vec<_> = left.iter().map(|left| left.path.as_str()).collect();
    assert_eq!(left, ["/kubepods/pod1"], "the deepest one says it all");
}

#[test]
fn a_second_cleanup_finds_only_that_a_cgroup_still_holds_processes() {
    let survey = survey_of(vec![marked("/kubepods", true, true)]);
    let Cleanup { steps, left, troubles } = cleanup(&survey, false, page());
    assert_eq!((steps, left.len(), troubles), (vec![], 1, vec![]));
}

#[test]
fn an_adopted_cgroup_gets_its_own_values_back_and_loses_its_mark() {
    let adopted = marked("/system.slice/web.service", false, false)
        .with("memory.max", "8192", Some("65536"))
        .with("cpu.weight", "79", Some("200"))
        .with("pids.max", "max", None);
    let expected = [
        "/system.slice/web.service/memory.max: 8192 65536",
        "/system.slice/web.service/cpu.weight: 79 200",
        "forget /system.slice/web.service",
    ];
    assert_eq!(steps(&survey_of(vec![adopted]), false), expected);
}

#[test]
fn a_limit_below_what_is_in_use_stays_with_its_mark_and_says_why() {
    let mut adopted = marked("/a", false, false).with("memory.max", "max", Some("8192"));
    adopted.usage_bytes = Some(8193);
    let Cleanup { steps: none, troubles, .. } = cleanup(&survey_of(vec![adopted.clone()]), false, page());
    assert_eq!(none, [], "the next cleanup finds the mark");
    let [trouble] = &troubles[..] else { panic!("{troubles:?}") };
    assert!(trouble.path == "/a" && trouble.error.contains("8193 bytes are in use"), "{trouble:?}");
    adopted.usage_bytes = Some(8192);
    assert_eq!(steps(&survey_of(vec![adopted]), false), ["/a/memory.max: max 8192", "forget /a"]);
}

#[test]
fn beside_a_kubelet_only_marks_and_scores_are_undone() {
    let survey = survey_of(vec![
        marked("/kubepods", true, false).with("cpu.weight", "157", None),
        marked("/kubepods/pod1/c", false, true)
            .with("memory.max", "8192", Some("max"))
            .with_scores(Some(ScoreRecord::new(988, 960)), &[(12, 960)]),
    ]);
    assert_eq!(steps(&survey, true), ["12: 960 988", "forget /kubepods", "forget /kubepods/pod1/c"]);
}

#[test]
fn only_scores_that_were_given_come_back_and_unknown_ones_are_counted() {
    let mut unknown = marked("/kubepods/pod1/b", true, true).with_scores(None, &[(20, -997), (21, 0)]);
    unknown.mark = Some(Mark::new(true, Some(&level(Some("b")))));
    let cleaned = unknown.clone();
    let unknown = unknown.with("cpu.weight", "79", None);
    let known = marked("/kubepods/pod1/a", true, true)
        .with_scores(Some(ScoreRecord::new(0, 988)), &[(10, 988), (11, 5), (12, 0)]);
    let component = |pid, written, score| {
        let record = ComponentRecord { pid, start_ticks: 3, before: -500, written };
        (record, Scored { pid, start_ticks: 3, score })
    };
    let survey = Survey {
        root: Some(CgroupId(1)),
        components: vec![component(30, -999, -999), component(31, -999, 7)],
        ..survey_of(vec![known, unknown])
    };
    let expected = [
        "10: 988 0",
        "30: -999 -500",
        "/kubepods/pod1/b/cpu.weight: 79 100",
        "keep /kubepods/pod1/a",
        "keep /kubepods/pod1/b",
        "forget /",
    ];
    assert_eq!(steps(&survey, false), expected);
    let left = cleanup(&survey, false, page()).left;
    assert!(
        left.iter()
            .any(|left| left.path == "/kubepods/pod1/b" && left.why.starts_with("the oom_score_adj of 1 ")),
        "{left:?}"
    );
    // The next cleanup does not count them again.
    let left = cleanup(&survey_of(vec![cleaned]), false, page()).left;
    assert!(left.iter().all(|left| !left.why.contains("oom_score_adj")), "{left:?}");
}

#[test]
fn a_temporary_value_comes_back_first_and_the_lasting_one_from_there() {
    let temporary = TemporaryValue::new(value("memory.high", "65536"), value("memory.high", "4096")).unwrap();
    let there = Temporarily { path: path("/a"), id: CgroupId(7), value: temporary };
    let with = |before: Option<&str>| Survey {
        temporary: vec![there.clone()],
        ..survey_of(vec![marked("/a", false, false).with("memory.high", "4096", before)])
    };
    assert_eq!(steps(&with(None), false), ["/a again 65536", "/a/memory.high: 65536 max", "forget /a"]);
    assert_eq!(steps(&with(Some("65536")), false), ["/a again 65536", "forget /a"]);
}

#[test]
fn what_a_newer_version_has_marked_is_left_to_that() {
    let newer = Marked { mark: None, is_newer: true, ..marked("/a", false, false) };
    let Cleanup { steps, troubles, .. } = cleanup(&survey_of(vec![newer]), false, page());
    assert_eq!(steps, []);
    assert!(troubles[0].path == "/a" && troubles[0].error.contains("newer version"), "{troubles:?}");
}

#[test]
fn an_empty_cgroup_of_a_program_before_a_kill_goes_also_beside_a_kubelet() {
    let hook = Marked { mark: None, is_hooks: true, ..marked("/enforcer-hook-9-0", false, false) };
    for is_kubelets in [false, true] {
        assert_eq!(steps(&survey_of(vec![hook.clone()]), is_kubelets), ["rmdir /enforcer-hook-9-0"]);
    }
    let running = Marked { is_populated: true, ..hook };
    let Cleanup { steps, left, .. } = cleanup(&survey_of(vec![running]), false, page());
    assert_eq!((steps, left.len()), (vec![], 1));
}

/// A tree as the kernel has it, with a marked cgroup of each kind.
fn tree(populated: u8) -> (tempfile::TempDir, CgroupDir) {
    let temp = tempfile::tempdir().unwrap();
    for cgroup in ["kubepods", "kubepods/pod1", "web"] {
        let dir = temp.path().join(cgroup);
        fs::create_dir_all(&dir).unwrap();
        for (file, content) in [
            ("cgroup.events", format!("populated {populated}\n")),
            ("cgroup.procs", String::new()),
            ("cgroup.stat", String::from("nr_descendants 0\n")),
            ("memory.max", String::from("8192\n")),
            ("memory.current", String::from("0\n")),
        ] {
            fs::write(dir.join(file), content).unwrap();
        }
    }
    let root = CgroupDir::unchecked(temp.path()).unwrap();
    (temp, root)
}

/// The marks that the tree's cgroups are to have: an ordinary file system may not be able to hold any.
fn marks() -> std::collections::BTreeMap<CgroupPath, Mark> {
    let written = |mut mark: Mark, before| {
        mark.files.insert(CgroupFile::MemoryMax, before);
        mark
    };
    [
        (path("/kubepods"), written(Mark::new(true, None), None)),
        (path("/kubepods/pod1"), written(Mark::new(true, Some(&level(None))), None)),
        (path("/web"), written(Mark::new(false, None), Some(value("memory.max", "65536")))),
    ]
    .into()
}

fn look(root: &CgroupDir, temporary: &[Temporarily]) -> Survey {
    let survey = survey(root, Path::new("/proc"), temporary, &marks(), &|_| false).unwrap();
    assert_eq!(survey.troubles, []);
    survey
}

fn done(root: &CgroupDir, steps: Vec<Undo>) -> Vec<String> {
    let permit = Permit::for_cleanup();
    let undone = carry_out(root, Path::new("/proc"), &CgroupsRs, steps, page(), &permit).unwrap();
    undone
        .iter()
        .map(|undone| match undone {
            Undone::Done(step) => shown(step),
            Undone::Skipped(step) => format!("skipped {}", shown(step)),
            Undone::Failed(step, trouble) => format!("{}: {trouble:?}", shown(step)),
        })
        .collect()
}

/// All but marks, which an ordinary file system may not have.
fn but_marks(steps: Vec<Undo>) -> Vec<Undo> {
    steps.into_iter().filter(|step| !matches!(step, Undo::Forget { .. })).collect()
}

#[test]
fn a_survey_finds_what_is_marked_and_the_limits_come_back() {
    let (temp, root) = tree(1);
    let survey = look(&root, &[]);
    let found: Vec<_> =
        survey.marked.iter().map(|marked| (marked.path.as_str(), marked.is_populated)).collect();
    // Whether a cgroup of others holds processes does not matter.
    assert_eq!(found, [("/kubepods", true), ("/kubepods/pod1", true), ("/web", false)]);
    let planned = but_marks(cleanup(&survey, false, page()).steps);
    let expected = [
        "/kubepods/memory.max: 8192 max",
        "/web/memory.max: 8192 65536",
        "/kubepods/pod1/memory.max: 8192 max",
    ];
    assert_eq!(planned.iter().map(shown).collect::<Vec<_>>(), expected);
    assert_eq!(
        fs::read_to_string(temp.path().join("web/memory.max")).unwrap(),
        "8192\n",
        "a plan writes nothing"
    );
    assert_eq!(done(&root, planned), expected);
    let read = |cgroup: &str| fs::read_to_string(temp.path().join(cgroup).join("memory.max")).unwrap();
    assert!(read("web").starts_with("65536") && read("kubepods/pod1").starts_with("max"));
    assert_eq!(but_marks(cleanup(&look(&root, &[]), false, page()).steps), [], "nothing is left to do");
}

#[test]
fn what_was_changed_or_replaced_meanwhile_is_left_alone() {
    let (temp, root) = tree(1);
    // A file system that holds no marks would show a mark that is taken off as a failure.
    let steps: Vec<_> = cleanup(&look(&root, &[]), false, page())
        .steps
        .into_iter()
        .filter(|step| !matches!(step, Undo::Forget { path, .. } if path.as_str() != "/web"))
        .collect();
    assert!(steps.iter().any(|step| matches!(step, Undo::Forget { .. })), "{steps:?}");
    fs::write(temp.path().join("web/memory.max"), "12288\n").unwrap();
    fs::rename(temp.path().join("kubepods"), temp.path().join("former")).unwrap();
    fs::create_dir(temp.path().join("kubepods")).unwrap();
    fs::write(temp.path().join("kubepods/memory.max"), "8192\n").unwrap();
    assert_eq!(done(&root, steps), ["skipped /web/memory.max: 8192 65536"], "and /web keeps its mark");
    assert_eq!(fs::read_to_string(temp.path().join("web/memory.max")).unwrap(), "12288\n");
    assert_eq!(fs::read_to_string(temp.path().join("kubepods/memory.max")).unwrap(), "8192\n");
}

#[test]
fn a_temporary_value_is_found_only_where_it_still_is() {
    let (temp, root) = tree(1);
    let value = TemporaryValue::new(value("memory.max", "65536"), value("memory.max", "8192")).unwrap();
    let at = |cgroup: &str, id: CgroupId| Temporarily { path: path(cgroup), id, value: value.clone() };
    let own = at("/web", root.open(&path("/web")).unwrap().id());
    let temporary = [own.clone(), at("/kubepods", CgroupId(1)), at("/gone", CgroupId(2))];
    assert_eq!(
        look(&root, &temporary).temporary,
        std::slice::from_ref(&own),
        "the others are of other cgroups"
    );
    assert_eq!(done(&root, vec![Undo::Temporary(own.clone())]), ["/web again 65536"]);
    assert_eq!(look(&root, &temporary).temporary, []);
    assert_eq!(done(&root, vec![Undo::Temporary(own)]), Vec::<String>::new());
    assert!(fs::read_to_string(temp.path().join("web/memory.max")).unwrap().starts_with("65536"));
}

#[test]
fn a_cgroup_that_got_processes_meanwhile_stays_and_is_named() {
    let (temp, root) = tree(0);
    let steps = but_marks(cleanup(&look(&root, &[]), false, page()).steps);
    let removes: Vec<_> = steps.into_iter().filter(|step| matches!(step, Undo::Remove { .. })).collect();
    assert_eq!(removes.iter().map(shown).collect::<Vec<_>>(), ["rmdir /kubepods/pod1", "rmdir /kubepods"]);
    fs::write(temp.path().join("kubepods/pod1/cgroup.events"), "populated 1\n").unwrap();
    fs::write(temp.path().join("kubepods/cgroup.events"), "populated 1\n").unwrap();
    let done = done(&root, removes);
    assert!(done.iter().all(|done| done.contains("holds processes")) && done.len() == 2, "{done:?}");
}

struct Sleeper(Child);

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_score_comes_back_to_the_very_process_that_was_given_it() {
    let sleeper = Sleeper(Command::new("sleep").arg("600").spawn().unwrap());
    let pid = sleeper.0.id();
    let file = format!("/proc/{pid}/oom_score_adj");
    let (_temp, root) = tree(1);
    // A score may be raised without any right.
    fs::write(&file, "900").unwrap();
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let start_ticks: u64 = stat.rsplit_once(") ").unwrap().1.split(' ').nth(19).unwrap().parse().unwrap();
    let undo = |start_ticks, old| Undo::Score {
        path: Some(path("/kubepods/pod1")),
        pid,
        start_ticks,
        old,
        new: 950,
    };
    assert_eq!(done(&root, vec![undo(start_ticks + 1, 900), undo(start_ticks, 899)]), Vec::<String>::new());
    assert_eq!(fs::read_to_string(&file).unwrap().trim(), "900");
    assert_eq!(done(&root, vec![undo(start_ticks, 900)]), [format!("{pid}: 900 950")]);
    assert_eq!(fs::read_to_string(&file).unwrap().trim(), "950");
}

#[test]
fn systemd_is_asked_to_forget_a_value_and_to_stop_an_empty_slice() {
    let temp = tempfile::tempdir().unwrap();
    let slice = temp.path().join("kubepods.slice");
    fs::create_dir(&slice).unwrap();
    for (file, content) in [("cgroup.events", "populated 0\n"), ("memory.high", "8192\n")] {
        fs::write(slice.join(file), content).unwrap();
    }
    let root = CgroupDir::unchecked(temp.path()).unwrap();
    let (at, fake) = (path("/kubepods.slice"), Fake::at(temp.path()));
    let (id, driver) = (root.open(&at).unwrap().id(), SystemdDriver::new(fake.clone()));
    let old = Held::read(CgroupFile::MemoryHigh, "8192");
    let steps = vec![
        Undo::Value { path: at.clone(), id, old, new: value("memory.high", "max") },
        Undo::Remove { path: at, id },
    ];
    let permit = Permit::for_cleanup();
    let undone = carry_out(&root, Path::new("/proc"), &driver, steps, page(), &permit).unwrap();
    assert!(undone.len() == 2 && undone.iter().all(|undone| matches!(undone, Undone::Done(_))), "{undone:?}");
    let calls = fake.calls();
    assert!(
        matches!(&calls[..], [Call::Set(unit, set), Call::Stop(stopped)]
            if unit == "kubepods.slice" && set[0].name == "MemoryHigh" && stopped == "kubepods.slice"),
        "{calls:?}"
    );
    assert!(!slice.exists());
}

#[test]
fn only_drop_ins_that_systemd_has_written_for_us_are_found() {
    const OURS: &str = "# This is a drop-in unit file extension, created via \"systemctl set-property\"\n# or an equivalent operation. Do not edit.\n[Service]\n";
    let control = tempfile::tempdir().unwrap();
    let folder = control.path().join("web.service.d");
    fs::create_dir(&folder).unwrap();
    for (name, content) in [
        ("50-MemoryMax.conf", OURS),
        ("50-CPUQuota.conf", OURS),
        ("50-CPUQuotaPeriodSec.conf", "[Service]\n"),
        ("50-CPUWeight.conf", OURS),
        ("50-TasksMax.conf", OURS),
    ] {
        fs::write(folder.join(name), content).unwrap();
    }
    let adopted = marked("/system.slice/web.service", false, true)
        .with("memory.max", "8192", Some("max"))
        .with("cpu.max", "20000 100000", None)
        .with("cpu.weight", "79", Some("200"));
    let found = drop_ins(control.path(), &[adopted, marked("/no/unit", true, true)]);
    let mut found: Vec<_> = found.iter().map(|(_, path)| path.strip_prefix(&folder).unwrap()).collect();
    found.sort();
    // cpu.weight had a value of its own, and pids.max was not written.
    assert_eq!(found, [Path::new("50-CPUQuota.conf"), Path::new("50-MemoryMax.conf")]);
}

#[test]
fn what_is_as_it_was_before_is_not_left_to_another() {
    let (temp, root) = tree(1);
    let of_web = |step: &Undo| matches!(step, Undo::Value { path, .. } if path.as_str() == "/web");
    let steps: Vec<_> = cleanup(&look(&root, &[]), false, page()).steps.into_iter().filter(of_web).collect();
    fs::write(temp.path().join("web/memory.max"), "65536\n").unwrap();
    let undone = done(&root, steps);
    assert!(!undone.iter().any(|step| step.starts_with("skipped")), "{undone:?}");
}
