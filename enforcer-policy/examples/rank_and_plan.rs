//! Plans two pods on a node of 8 GiB, and ranks them for an eviction.

#![expect(clippy::print_stdout, reason = "an example prints what it shows")]

use enforcer_policy::{
    Settings,
    model::{Container, Node, Pod, PodName, PodUid, Requirements, ResourceList, ResourceName},
    plan,
    rank::{self, MemoryRankKey},
};

const MIB: u64 = 1 << 20;

fn pod(name: &str, memory_request: &str) -> Result<Pod, Box<dyn std::error::Error>> {
    let requests: ResourceList = [(ResourceName::new(ResourceName::MEMORY), memory_request.parse()?)].into();
    let container = Container::app("app", Requirements { requests, limits: ResourceList::new() });
    let name = PodName { namespace: String::from("default"), name: name.to_owned() };
    let uid = PodUid::new(&name.name).ok_or("not a uid")?;
    Ok(Pod::new(name, uid, vec![container]))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pods = [pod("web", "512Mi")?, pod("batch", "64Mi")?];
    let plan = plan(&Node::new(4_000, 8 << 30), &Settings::default(), &pods);
    for pod in &plan.pods {
        println!("{} is {} in {}", pod.name.name, pod.qos_class.as_str(), pod.cgroup.path);
        for container in &pod.containers {
            println!("  {}: oom_score_adj {}", container.name, container.oom_score_adj);
        }
    }

    // Both use 300 MiB: within the request of one, and above that of the other.
    let mut ranked: Vec<_> = plan.pods.iter().zip(0..).collect();
    rank::by_memory(&mut ranked, |(pod, order)| MemoryRankKey {
        usage_bytes: Some(300 * MIB),
        request_bytes: pod.ranking_request_bytes,
        priority: pod.eviction_priority,
        order: *order,
    });
    println!("the first to go: {}", ranked[0].0.name.name);
    Ok(())
}
