use super::*;

fn value(path: &str) -> Intent<'_> {
    let high = |text| CgroupFile::MemoryHigh.parse(text).unwrap();
    let value = TemporaryValue::new(high("max"), high("1048576")).unwrap();
    Intent::Value { path: path.into(), cgroup: CgroupId(42), value }
}

fn cgroup() -> Intent<'static> {
    Intent::Cgroup { path: "/kubepods/podx".into(), mark: "{}".into() }
}

fn eviction() -> Intent<'static> {
    Intent::Eviction {
        id: u128::MAX - 1,
        pod: "default/hog".into(),
        uid: "6c1a4e95".into(),
        path: "/kubepods/besteffort/pod6c1a4e95".into(),
        cgroup: CgroupId(7),
        whole: true,
        targets: vec![CgroupId(8), CgroupId(u64::MAX)].into(),
        signal: "pid.available".into(),
        hard: true,
        threshold: 1,
        observed: 2,
        decided_ns: 3,
    }
}

#[test]
fn what_was_held_and_not_released_is_left_to_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = Intents::open_lasting(dir.path(), "b1").unwrap();
    assert_eq!(first.left, []);
    let done = first.limits.hold(&value("/a")).unwrap();
    let kept = first.limits.hold(&value("/kubepods/burstable/podx")).unwrap();
    let evicting = first.reflex.hold(&eviction()).unwrap();
    let making = first.making.hold(&cgroup()).unwrap();
    first.limits.release(done);
    assert_ne!(kept, evicting);
    assert_ne!(kept, making);
    // Killed: nothing is released.
    drop(first);
    for _killed_too in 0..2 {
        let second = Intents::open_lasting(dir.path(), "b1").unwrap();
        assert_eq!(second.left, [eviction(), value("/kubepods/burstable/podx"), cgroup()]);
    }
    let mut third = Intents::open_lasting(dir.path(), "b1").unwrap();
    assert_eq!(third.forget_left(None), None);
    assert_eq!(third.left, []);
    drop(third);
    assert_eq!(
        Intents::open_lasting(dir.path(), "b1").unwrap().left,
        [],
        "the next start has taken them over"
    );
}

#[test]
fn on_a_disk_nothing_is_written_and_what_was_left_there_is_taken_up() {
    let dir = tempfile::tempdir().unwrap();
    let _held = Intents::open_lasting(dir.path(), "b1").unwrap().reflex.hold(&eviction());
    let on_disk = || Intents::open_where(dir.path(), "b1", |_| Ok(false)).unwrap();
    let mut second = on_disk();
    assert!(!second.lasts);
    assert_eq!(second.left, [eviction()]);
    assert_eq!(second.forget_left(None), None);
    let before = std::fs::read(dir.path().join(FILE)).unwrap();
    let held = second.reflex.hold(&eviction()).unwrap();
    let _held = second.limits.hold(&value("/a")).unwrap();
    second.reflex.release(held);
    drop(second);
    assert_eq!(std::fs::read(dir.path().join(FILE)).unwrap(), before);
    assert_eq!(on_disk().left, []);
}

#[test]
fn an_eviction_that_goes_on_stays_on_the_page() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = Intents::open_lasting(dir.path(), "b1").unwrap();
    let _held = [first.reflex.hold(&value("/a")), first.reflex.hold(&eviction())];
    drop(first);
    for _killed_again in 0..2 {
        let mut next = Intents::open_lasting(dir.path(), "b1").unwrap();
        let slot = next.forget_left(Some(&eviction())).unwrap();
        let other = next.reflex.hold(&value("/b")).unwrap();
        assert_ne!(slot, other);
        next.reflex.release(other);
    }
    let mut last = Intents::open_lasting(dir.path(), "b1").unwrap();
    assert_eq!(last.left, [eviction()]);
    let slot = last.forget_left(Some(&eviction())).unwrap();
    last.reflex.release(slot);
    assert_eq!(Intents::open_lasting(dir.path(), "b1").unwrap().left, []);
}

#[test]
fn what_lies_in_memory_is_known_from_what_lies_on_a_disk() {
    let in_memory = |path: &str| is_in_memory(&File::open(path).unwrap()).unwrap();
    // No file of /proc is ever on tmpfs; /dev is where the machine has one.
    assert!(!in_memory("/proc/self/stat"));
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let is_tmpfs = |line: &&str| line.split(' ').nth(1) == Some("/dev/shm") && line.contains(" tmpfs ");
    assert_eq!(in_memory("/dev/shm"), mounts.lines().any(|line| is_tmpfs(&line)));
}

#[test]
fn an_eviction_of_containers_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = Intents::open_lasting(dir.path(), "b1").unwrap();
    let mut of_containers = eviction();
    let Intent::Eviction { whole, .. } = &mut of_containers else { panic!() };
    *whole = false;
    let _held = first.reflex.hold(&of_containers).unwrap();
    drop(first);
    assert_eq!(Intents::open_lasting(dir.path(), "b1").unwrap().left, [of_containers]);
}

/// An upgrade reads what the earlier version left.
#[test]
fn a_temporary_value_has_the_text_that_its_file_holds() {
    let mut bytes = [0; PAYLOAD_BYTES];
    let len = encode(&value("/a"), &mut bytes).unwrap();
    let expected = b"\x01\x2a\0\0\0\0\0\0\0\x02\0/a\x0b\0memory.high\x03\0max\x07\x001048576";
    assert_eq!(&bytes[..len], expected);
    assert_eq!(decode(expected), Some(value("/a")));
    let unknown = b"\x01\x2a\0\0\0\0\0\0\0\x02\0/a\x0b\0memory.huge\x03\0max\x07\x001048576";
    assert_eq!(decode(unknown), None, "no version writes this file");
}

#[test]
fn another_boot_left_nothing_of_ours() {
    let dir = tempfile::tempdir().unwrap();
    let mut before = Intents::open_lasting(dir.path(), "b1").unwrap();
    let _held = before.reflex.hold(&eviction());
    drop(before);
    assert_eq!(Intents::open_lasting(dir.path(), "b2").unwrap().left, []);
}

#[test]
fn no_link_is_followed_to_the_page() {
    let dir = tempfile::tempdir().unwrap();
    let theirs = dir.path().join("theirs");
    std::fs::write(&theirs, "theirs").unwrap();
    std::os::unix::fs::symlink(&theirs, dir.path().join(FILE)).unwrap();
    assert!(Intents::open_lasting(dir.path(), "b1").is_err());
    assert_eq!(std::fs::read_to_string(&theirs).unwrap(), "theirs");
}

#[test]
fn what_does_not_fit_is_refused_and_a_free_slot_is_used_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut intents = Intents::open_lasting(dir.path(), "b1").unwrap();
    assert_eq!(intents.reflex.hold(&value(&"x".repeat(PAYLOAD_BYTES))), None);
    let mut held: Vec<Slot> = (0..REFLEX.len()).map(|_| intents.reflex.hold(&value("/a")).unwrap()).collect();
    assert_eq!(intents.reflex.hold(&value("/a")), None);
    assert!(intents.limits.hold(&value("/a")).is_some(), "the other's slots are its own");
    intents.reflex.release(held.pop().unwrap());
    assert!(intents.reflex.hold(&value("/b")).is_some());
}

#[test]
fn a_torn_or_foreign_slot_is_no_intent() {
    let dir = tempfile::tempdir().unwrap();
    let mut intents = Intents::open_lasting(dir.path(), "b1").unwrap();
    let Some(Slot(slot)) = intents.reflex.hold(&eviction()) else { panic!() };
    word(&intents.reflex.page, slot * SLOT_WORDS + 3).fetch_xor(1, Ordering::Relaxed);
    drop(intents);
    assert_eq!(Intents::open_lasting(dir.path(), "b1").unwrap().left, []);
    std::fs::write(dir.path().join(FILE), vec![0xff; SLOTS * SLOT_WORDS * 8]).unwrap();
    assert_eq!(Intents::open_lasting(dir.path(), "b1").unwrap().left, []);
    std::fs::write(dir.path().join(FILE), "short").unwrap();
    assert_eq!(Intents::open_lasting(dir.path(), "b1").unwrap().left, []);
}

#[test]
fn a_look_reads_what_was_left_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(Intents::look(dir.path(), "b1").unwrap(), []);
    assert!(!dir.path().join(FILE).exists(), "it makes no page");
    let _held = Intents::open_lasting(dir.path(), "b1").unwrap().reflex.hold(&eviction());
    let before = std::fs::read(dir.path().join(FILE)).unwrap();
    assert_eq!(Intents::look(dir.path(), "b1").unwrap(), [eviction()]);
    assert_eq!(Intents::look(dir.path(), "b2").unwrap(), [], "another boot left nothing of ours");
    assert_eq!(std::fs::read(dir.path().join(FILE)).unwrap(), before);
    std::fs::write(dir.path().join(FILE), "short").unwrap();
    assert_eq!(Intents::look(dir.path(), "b1").unwrap(), []);
}
