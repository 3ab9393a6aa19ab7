//! Cgroups outside of kubepods.
use std::{
    ffi::OsStr,
    fs,
    os::unix::ffi::OsStrExt as _,
    path::Path,
    process::{Command, Stdio},
};

use enforcer_tests::{
    cgroup::{Cgroup, ROOT},
    process::Process,
    wait::{TIMEOUT, wait_until},
};
use serde_json::{Value, json};

use super::{
    Scene, assert_holds,
    scene::{MIB, counters, current_bytes, dir, merged, start, victims, wait_for_processes},
};

#[guest_test(kernel)]
fn spares_who_is_exempt() {
    let mut scene = Scene::open("system", "");
    let group = Cgroup::create("ooms-system").unwrap();
    group.write("memory.max", "33554432").unwrap();
    group.write("memory.oom.group", "1").unwrap();
    let start = |script: &str| start(&group, script);
    let mut exempt = start("echo -1000 > /proc/self/oom_score_adj; exec sleep 600");
    let mut bystander = start("exec sleep 600");
    wait_for_processes("/ooms-system", 2);
    let mut hog = start("exec workload spike --size 128Mi");

    let incident = scene.incident_of_no_pod();
    hog.killed();
    bystander.killed();
    let mut expected = vec![u64::from(bystander.pid()), u64::from(hog.pid())];
    expected.sort_unstable();
    assert_eq!(victims(&incident), expected);
    let no_pod = json!({"namespace": null, "pod": null, "container": null, "cgroup": "/ooms-system"});
    assert_holds(
        &incident,
        &json!({
            "scope": "system",
            "limitOwner": "/ooms-system",
            "limitSource": "traced",
            "trigger": merged(&json!({"pid": hog.pid()}), &no_pod),
            "victims": vec![merged(&no_pod, &json!({"exitCode": 9, "oomScoreAdj": 0})); 2],
            "reconstructed": false,
        }),
    );
    let counted: Value = counters("/ooms-system");
    assert_eq!(counted["oomGroupKill"], 1);
    assert!(exempt.process.lives().unwrap(), "a score of -1000 exempts it");
    assert!(
        fs::read_to_string(dir("/ooms-system").join("cgroup.procs"))
            .unwrap()
            .contains(&exempt.pid().to_string())
    );
    drop(exempt.process);
    scene.close(0);
    drop((bystander.process.wait_for_end(TIMEOUT), group));
}

/// The kernel takes any bytes as names, but for slash and line break in a cgroup's.
#[guest_test(daemon)]
fn names_that_are_meant_to_do_harm_break_no_line_and_reach_no_terminal() {
    let mut scene = Scene::open("hostile-names", "");
    // Made so that its parent has the controllers.
    let _parent = Cgroup::create("ooms-hostile/ordinary").unwrap();
    let group = Path::new(ROOT).join("ooms-hostile").join(OsStr::from_bytes(b"a\x1b[2J\r\xff\xe2\x80\xaeb"));
    fs::create_dir(&group).unwrap();
    fs::write(group.join("memory.max"), "33554432").unwrap();
    // What a process is called is the first 15 bytes of its program's name.
    let program = Path::new("/tmp").join(OsStr::from_bytes(b"\x1b[2J\n{\"x\":\xff\xe2"));
    let script =
        r#"cp "$(command -v workload)" "$1" && echo 0 > "$0/cgroup.procs" && exec "$1" spike --size 128Mi"#;
    let mut hog = Process::new(
        Command::new("sh")
            .args(["-c", script])
            .arg(&group)
            .arg(&program)
            .stdout(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let incident = scene.incident_of_no_pod();
    hog.wait_for_end(TIMEOUT).unwrap();
    fs::remove_dir(&group).unwrap();
    fs::remove_file(&program).unwrap();
    assert_eq!((&incident["scope"], victims(&incident)), (&json!("system"), vec![u64::from(hog.id())]));
    let owner = incident["limitOwner"].as_str().unwrap();
    assert!(owner.starts_with("/ooms-hostile/a\u{1b}[2J\r"), "{incident}");
    assert!(incident["victims"][0]["comm"].as_str().unwrap().starts_with("\u{1b}[2J\n{\"x\":"), "{incident}");

    let printed = |arguments: &[&str]| {
        let output = scene.daemon.verb(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let lines = printed(&["-o", "jsonl", "events", "--type", "oom.incident"]);
    assert_eq!(lines.lines().count(), 1, "{lines:?}");
    let reported: Value = serde_json::from_str(&lines).unwrap();
    assert_eq!(reported["data"], incident);
    for arguments in [&["events"][..], &["-v", "events"], &["why", "latest"]] {
        let shown = printed(arguments);
        let harms = |char: &char| char.is_control() && *char != '\n' || *char == '\u{202e}';
        assert_eq!(shown.chars().find(harms), None, "{arguments:?}: {shown:?}");
        assert!(!shown.lines().any(|line| line.starts_with('{')), "{arguments:?}: {shown:?}");
    }
    scene.close(0);
}

#[guest_test(daemon)]
fn two_kills_for_one_allocator_are_two_incidents() {
    let mut scene = Scene::open("two-kills", "");
    let group = Cgroup::create("ooms-two").unwrap();
    group.write("memory.max", "67108864").unwrap();
    // The scores say who dies, and in which order. The allocator never: it may be back before a victim's memory is.
    let hold = |score: u32| {
        start(&group, &format!("echo {score} > /proc/self/oom_score_adj; exec workload hold --size 20Mi"))
    };
    let (mut first, mut second) = (hold(1000), hold(900));
    wait_until("their memory", || current_bytes("/ooms-two") > 40 * MIB);
    let mut allocator =
        start(&group, "echo -1000 > /proc/self/oom_score_adj; exec workload ramp --rate 32Mi --to 56Mi");
    // Which of the two the counters are read for first is chance; together they add up.
    let mut moves = Vec::new();
    for running in [&mut first, &mut second] {
        let incident = scene.incident_of_no_pod();
        running.killed();
        running.assert_is(&incident["victims"][0]);
        assert_holds(
            &incident,
            &json!({
                "scope": "system",
                "limitOwner": "/ooms-two",
                "trigger": {"pid": allocator.pid()},
                "victims": [{"cgroup": "/ooms-two", "exitCode": 9}],
                "counters": {"oomKill": 1},
                "reconciliation": "matched",
                "reconstructed": false,
            }),
        );
        let of = |when: &str| incident[when]["oomKill"].as_u64().unwrap();
        moves.push((of("countersBefore"), of("countersAfter")));
    }
    moves.sort_unstable();
    assert_eq!(moves, [(0, 1), (1, 2)]);
    wait_until("all that it takes", || current_bytes("/ooms-two") > 56 * MIB);
    assert!(allocator.process.lives().unwrap());
    assert_eq!(counters("/ooms-two")["oomKill"], 2);
    scene.close(0);
}
