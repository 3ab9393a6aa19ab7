//! What the policy costs: plan, ranking, class, score, and reading manifests. `cargo xtask bench policy` runs it and holds
//! the medians to their bars.

#![expect(clippy::unwrap_used, reason = "a benchmark ends where its input is wrong")]

use std::{fmt::Write as _, hint::black_box, time::Duration};

use criterion::{
    BatchSize, BenchmarkGroup, BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group,
    criterion_main, measurement::WallTime,
};
use enforcer::{
    model::{Node, Pod, ResourceList},
    policy::{
        Settings, oom_score, plan, qos,
        rank::{self, MemoryRankKey, PidRankKey},
    },
    source::manifest,
};

/// Pods of every kind, in turn: two app containers within limits, an equal pair, none, sidecars and init containers, and
/// pod-level resources.
fn manifests(count: usize) -> String {
    let mut text = String::new();
    for n in 0..count {
        let spec = match n % 5 {
            0 => {
                "containers:\n  - {name: app, resources: {requests: {cpu: 100m, memory: 100Mi}, limits: {cpu: 500m, memory: 200Mi}}}\n  - {name: log, resources: {requests: {cpu: 10m, memory: 20Mi}}}\n"
            }
            1 => "containers:\n  - {name: app, resources: {limits: {cpu: 250m, memory: 128Mi}}}\n",
            2 => "containers:\n  - {name: app}\n",
            3 => {
                "initContainers:\n  - {name: setup, resources: {requests: {cpu: 1, memory: 64Mi}}}\n  - {name: proxy, restartPolicy: Always, resources: {requests: {cpu: 50m, memory: 32Mi}, limits: {memory: 64Mi}}}\n  containers:\n  - {name: app, resources: {requests: {cpu: 200m, memory: 256Mi}, limits: {cpu: 1, memory: 512Mi}}}\n"
            }
            _ => {
                "resources: {requests: {cpu: 300m, memory: 300Mi}, limits: {cpu: 600m, memory: 600Mi}}\n  containers:\n  - {name: app}\n  - {name: side, resources: {requests: {memory: 50Mi}}}\n"
            }
        };
        write!(
            text,
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: pod-{n}, namespace: team-{}, uid: 0a1b2c3d-{n}}}\nspec:\n  priority: {}\n  {spec}",
            n % 7,
            n % 3
        )
        .unwrap();
    }
    text
}

fn pods(count: usize) -> Vec<Pod> {
    let parsed = manifest::parse("bench.yaml", manifests(count).as_bytes());
    assert_eq!((parsed.pods.len(), parsed.errors.len()), (count, 0), "{:?}", parsed.errors.first());
    parsed.pods
}

/// A machine with that much room.
fn node(pods: u64) -> Node {
    Node {
        cpu_milli: 1_000 * pods,
        memory_bytes: pods << 30,
        swap_bytes: 0,
        pods,
        max_pids: Some(4_194_304),
        page_bytes: 4_096,
        swap_controller: true,
        other: ResourceList::new(),
    }
}

/// Numbers that look like usages, the same in each run.
fn usages(count: usize) -> impl Iterator<Item = u64> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % (4 << 30)
    })
    .take(count)
}

fn memory_standings(count: usize) -> Vec<MemoryRankKey> {
    let key = |(order, usage_bytes): (u32, u64)| MemoryRankKey {
        usage_bytes: (usage_bytes % 97 != 0).then_some(usage_bytes),
        request_bytes: usage_bytes.rotate_left(21) % (4 << 30),
        priority: i32::try_from(usage_bytes % 5).unwrap() - 2,
        order,
    };
    (0..).zip(usages(count)).map(key).collect()
}

fn pid_standings(count: usize) -> Vec<PidRankKey> {
    let key = |(order, usage): (u32, u64)| PidRankKey {
        process_count: (usage % 97 != 0).then_some(usage % 1_000),
        priority: i32::try_from(usage % 5).unwrap() - 2,
        order,
    };
    (0..).zip(usages(count)).map(key).collect()
}

/// Every sample is a single run, so that their 99th percentile is that of runs.
fn run_by_run<'a>(criterion: &'a mut Criterion, name: &str) -> BenchmarkGroup<'a, WallTime> {
    let mut group = criterion.benchmark_group(name);
    group.sampling_mode(SamplingMode::Flat).sample_size(1_000).measurement_time(Duration::from_millis(1));
    group
}

fn planning(criterion: &mut Criterion) {
    let mut group = run_by_run(criterion, "plan");
    let settings = Settings::default();
    let all = pods(1_000);
    // All of them fit, and most of them do not.
    for (name, node) in [("1000 pods", node(1_100)), ("1000 pods, 100 fit", node(100))] {
        group.bench_function(name, |bencher| bencher.iter(|| plan(&node, &settings, black_box(&all))));
    }
    group.finish();
}

fn ranking(criterion: &mut Criterion) {
    let mut group = run_by_run(criterion, "rank");
    for count in [1_000, 10_000] {
        let (memory, pids) = (memory_standings(count), pid_standings(count));
        group.bench_function(BenchmarkId::new("memory", count), |bencher| {
            bencher.iter_batched_ref(
                || memory.clone(),
                |keys| rank::by_memory(keys, |key| *key),
                BatchSize::PerIteration,
            );
        });
        group.bench_function(BenchmarkId::new("pids", count), |bencher| {
            bencher.iter_batched_ref(
                || pids.clone(),
                |keys| rank::by_pids(keys, |key| *key),
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

fn rules(criterion: &mut Criterion) {
    let all = pods(1_000);
    let mut group = run_by_run(criterion, "rules");
    group.bench_function("qos class of 1000 pods", |bencher| {
        bencher.iter(|| black_box(&all).iter().map(|pod| qos::class(pod) as usize).sum::<usize>());
    });
    group.bench_function("oom scores of 1000 pods", |bencher| {
        bencher.iter(|| {
            let pods = black_box(&all).iter();
            pods.flat_map(|pod| {
                pod.containers.iter().map(|container| i64::from(oom_score::score(pod, container, 1 << 40)))
            })
            .sum::<i64>()
        });
    });
    group.finish();
}

fn reading(criterion: &mut Criterion) {
    let text = manifests(1_000);
    let mut group = run_by_run(criterion, "manifests");
    group.sample_size(100).throughput(Throughput::Bytes(text.len().try_into().unwrap()));
    group.bench_function("parse 1000 pods", |bencher| {
        bencher.iter(|| manifest::parse("bench.yaml", black_box(text.as_bytes())));
    });
    group.finish();
}

criterion_group!(benches, planning, ranking, rules, reading);
criterion_main!(benches);
