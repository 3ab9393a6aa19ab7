//! Stalls as the daemon reports them: pressure of a pod, and its end.
use std::{fs, path::Path};

use enforcer_tests::{
    daemon::Daemon,
    pods::{Container, pod},
    process::Process,
    wait::{TIMEOUT, wait_until},
};

#[guest_test(daemon)]
fn a_container_that_sleeps_over_its_memory_high_is_reported_and_when_it_is_over() {
    // Half way between request and limit: memory.high is 36 MiB.
    let daemon =
        Daemon::start(Path::new("/tmp/stalls/high"), "mode: enforce\nmemoryThrottlingFactor: 0.5").unwrap();
    let mut stream = daemon.follow().unwrap();
    let app = Container { name: "app", requests: "memory: 8Mi", limits: "memory: 64Mi" };
    let side = Container { name: "side", requests: "memory: 8Mi", limits: "memory: 64Mi" };
    daemon.manifest("slow.yaml", &pod("slow", 0, &[app, side])).unwrap();
    let slow =
        Process::new(daemon.exec("default/slow/app", &["workload", "spike", "--size", "56Mi"]).unwrap());

    let pid = slow.id();
    let rising = stream.wait_for_pod("pressure.rising", "default/slow", TIMEOUT).unwrap();
    let data = &rising["data"];
    assert_eq!((&data["namespace"], &data["pod"]), (&"default".into(), &"slow".into()), "{data}");
    assert_eq!(data["container"], "app", "{data}");
    let kind = data["kind"].as_str().unwrap();
    assert!(["memoryHigh", "memcgReclaim"].contains(&kind), "{data}");
    let cgroup = data["cgroup"].as_str().unwrap();
    assert!(cgroup.ends_with("/app"), "{data}");
    assert_eq!((&data["limitOwner"], &data["limitSource"]), (&cgroup.into(), &"argument".into()), "{data}");
    assert_eq!((&data["pid"], &data["comm"]), (&pid.into(), &"workload".into()), "{data}");
    let much = |key: &str, least| data[key].as_u64().unwrap() >= least;
    assert!(much("stallMs", 50) || much("windowStallMs", 100), "{data}");
    assert_eq!(data["lastingMs"], 0, "{data}");

    // It sleeps on for some of its longest sleeps, of two seconds each, and is not reported again and again.
    let slept_us = || {
        let pressure = fs::read_to_string(format!("/sys/fs/cgroup{cgroup}/memory.pressure")).unwrap();
        pressure.split_whitespace().find_map(|word| word.strip_prefix("total=")?.parse::<u64>().ok()).unwrap()
    };
    let before_us = slept_us();
    wait_until("more sleeps", || slept_us() > before_us + 4_000_000);
    drop(slow);
    let cleared = stream.wait_for_pod("pressure.cleared", "default/slow", TIMEOUT).unwrap();
    let rises = stream.of("pressure.rising").filter(|event| event["subject"] == "default/slow").count();
    assert_eq!(rises, 1, "once, and a reminder only after a minute");
    let data = &cleared["data"];
    assert_eq!((&data["pod"], &data["container"]), (&"slow".into(), &"app".into()), "{data}");
    assert!(data["stalledMs"]["memoryHigh"].as_u64().unwrap() > 50, "{data}");
    assert!(data["records"].as_u64().unwrap() >= 2, "{data}");
    assert!(data["lastedMs"].as_u64().unwrap() > 0, "{data}");
    daemon.stop().unwrap();
}
