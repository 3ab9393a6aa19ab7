//! OOM kills as the metrics count them.
use super::Scene;

#[guest_test(daemon)]
fn a_kill_is_counted_by_whose_limit_was_hit() {
    let mut scene = Scene::open("oom-metrics", "");
    scene.pod("web", &[("app", "32Mi"), ("log", "32Mi")]);
    let mut hog = scene.run("default/web/app", &["workload", "spike", "--size", "128Mi"]);
    let incident = scene.incident("default/web");
    hog.killed();
    let answer = scene.daemon.get("/metrics").unwrap();
    let counted = answer.lines().filter(|line| line.starts_with("enforcer_oom_kills_total{"));
    let counted: Vec<_> = counted.filter(|line| !line.ends_with(" 0")).collect();
    // The container dies as a whole, so nothing of it survives.
    let row = format!(
        "enforcer_oom_kills_total{{scope=\"container\",namespace=\"default\",init_survived=\"false\"}} {}",
        incident["kills"]
    );
    assert_eq!(counted, [row], "{incident:#}");
    scene.close(0);
}
