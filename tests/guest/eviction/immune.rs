//! What a pod does to itself does not save it.

use std::{fs, path::PathBuf, thread, time::Duration};

use enforcer_tests::wait::{TIMEOUT, wait_until};

use super::{LEFT_BYTES, Scene, THRESHOLD_BYTES, faults::Unanswered, to_leave};

/// With `CAP_SYS_RESOURCE` each process can take a score of -1000, and a runtime's conmon has it.
#[guest_test(daemon)]
fn a_pod_whose_process_has_a_score_of_minus_1000_is_evicted() {
    const NAME: &str = "immune";
    // Otherwise the score is put right.
    let settings = "onDrift: report\nevictionHard: {memory.available: 200Mi}";
    let mut scene = Scene::open_with("eviction-immune", settings);
    scene.manifest(NAME, -10, "", "");
    let work = ["workload", "hold", "--huge", "--size", "300Mi"];
    let mut immune = scene.daemon.exec_until_ready(&format!("default/{NAME}"), &work).unwrap();
    let score = format!("/proc/{}/oom_score_adj", immune.id());
    // The daemon sets the score of a process when it first sees it, which may be after this has written.
    wait_until("the daemon to leave the score", || {
        fs::write(&score, "-1000").unwrap();
        thread::sleep(Duration::from_secs(2));
        fs::read_to_string(&score).unwrap() == "-1000\n"
    });
    // A new cgroup below the pod's makes the daemon open the candidate again, at most once a second.
    let made = scene.folder(NAME).join("made");
    fs::create_dir(&made).unwrap();
    thread::sleep(Duration::from_secs(3));
    assert_eq!(fs::read_to_string(&score).unwrap(), "-1000\n", "something has put it right");
    let mut filler = scene.fill(&to_leave(u64::midpoint(THRESHOLD_BYTES, LEFT_BYTES)));
    scene.wait("eviction.completed", NAME);
    immune.wait_for_end(TIMEOUT).unwrap();
    assert!(filler.lives().unwrap());
    drop(filler);
    // It may be gone already, with the pod's cgroup.
    drop(fs::remove_dir(&made));
    scene.clear(&[NAME, "filler"]);
    scene.daemon.stop().unwrap();
}

/// The daemon looks up the path of a program that is named like a component, and the pod chooses that path.
#[guest_test(daemon)]
fn a_pod_whose_program_has_a_path_that_never_answers_is_evicted() {
    const NAME: &str = "unanswered";
    let settings = "evictionHard: {memory.available: 200Mi}";
    let scene = Scene::open_with("eviction-unanswered", settings);
    let folder = PathBuf::from("/tmp/eviction-unanswered-volume");
    fs::create_dir_all(&folder).unwrap();
    let work = r#"mount -t tmpfs own "$0" && cp "$(which workload)" "$0/kubelet" && exec "$0/kubelet" hold --size 300Mi"#;
    let work = ["unshare", "-m", "sh", "-c", work, folder.to_str().unwrap()];
    scene.manifest(NAME, -10, "", "");
    let mut pod = scene.daemon.exec_until_ready(&format!("default/{NAME}"), &work).unwrap();
    let unanswered = Unanswered::over(folder);
    // The next daemon looks at the program when it opens its candidates.
    drop(scene);
    let mut scene = Scene::open_with("eviction-unanswered", settings);
    let mut filler = scene.fill(&to_leave(u64::midpoint(THRESHOLD_BYTES, LEFT_BYTES)));
    scene.wait("eviction.completed", NAME);
    pod.wait_for_end(TIMEOUT).unwrap();
    assert!(filler.lives().unwrap());
    drop((filler, unanswered));
    scene.clear(&[NAME, "filler"]);
    scene.daemon.stop().unwrap();
}

/// A component that was updated while it runs has no file to compare with, and a pod can imitate that with a volume.
#[guest_test(daemon)]
fn a_pod_that_removes_its_program_of_a_components_name_is_evicted() {
    const NAME: &str = "removed";
    let settings = "evictionHard: {memory.available: 200Mi}";
    let scene = Scene::open_with("eviction-removed", settings);
    // On the device of the folder that it covers.
    let volume = "/usr/local/volume";
    fs::create_dir_all(volume).unwrap();
    let work = "cp $(which workload) $0/kubelet; mount --bind $0 /usr/local/bin; \
                  (sleep 1; rm /usr/local/bin/kubelet) & exec /usr/local/bin/kubelet hold --size 300Mi";
    scene.manifest(NAME, -10, "", "");
    let work = ["unshare", "-m", "sh", "-c", work, volume];
    let mut pod = scene.daemon.exec_until_ready(&format!("default/{NAME}"), &work).unwrap();
    let program = PathBuf::from(format!("/proc/{}/exe", pod.id()));
    wait_until("the end of its name", || fs::read_link(&program).unwrap().ends_with("kubelet (deleted)"));
    drop(scene);
    let mut scene = Scene::open_with("eviction-removed", settings);
    let mut filler = scene.fill(&to_leave(u64::midpoint(THRESHOLD_BYTES, LEFT_BYTES)));
    scene.wait("eviction.completed", NAME);
    pod.wait_for_end(TIMEOUT).unwrap();
    assert!(filler.lives().unwrap());
    drop(filler);
    scene.clear(&[NAME, "filler"]);
    scene.daemon.stop().unwrap();
}
