//! The worked cases of `docs/ranking.md`: each table has the class and the order that the rules compute.
#![expect(clippy::panic, clippy::unwrap_used, reason = "a test's helpers may panic like the test itself")]

use enforcer_policy::{
    Settings,
    model::{Container, Node, Pod, PodName, PodUid, Quantity, Requirements, ResourceList, ResourceName},
    plan,
    rank::{self, MemoryRankKey},
};

const PAGE: &str = include_str!("../../docs/ranking.md");

const HEAD: &str = "| pod | request | limit | class | priority | usage | before the next by |";

/// A row of a table.
#[derive(Clone, Copy, Debug)]
struct Row<'a> {
    pod: &'a str,
    request: &'a str,
    limit: &'a str,
    class: &'a str,
    priority: i32,
    usage: &'a str,
    before_the_next_by: &'a str,
}

impl<'a> Row<'a> {
    fn parse(line: &'a str) -> Self {
        let cells: Vec<_> = line[1..line.len() - 1].split('|').map(str::trim).collect();
        let &[pod, request, limit, class, priority, usage, before_the_next_by] = cells.as_slice() else {
            panic!("{line}");
        };
        Self { pod, request, limit, class, priority: priority.parse().unwrap(), usage, before_the_next_by }
    }

    fn pod(&self) -> Pod {
        let list = |values: [(&str, &str); 2]| -> ResourceList {
            let given = values.into_iter().filter(|(_, value)| !value.is_empty());
            given.map(|(name, value)| (ResourceName::new(name), value.parse().unwrap())).collect()
        };
        // A pod that is Guaranteed is so for its CPU, too.
        let cpu = if self.class == "Guaranteed" { "1" } else { "" };
        let requests = list([(ResourceName::MEMORY, self.request), (ResourceName::CPU, cpu)]);
        let limits = list([(ResourceName::MEMORY, self.limit), (ResourceName::CPU, cpu)]);
        let name = PodName { namespace: "default".to_owned(), name: self.pod.to_owned() };
        let container = Container::app("app", Requirements { requests, limits });
        let mut pod = Pod::new(name, PodUid::new(self.pod).unwrap(), vec![container]);
        pod.priority = Some(self.priority);
        pod
    }

    fn usage_bytes(&self) -> u64 {
        self.usage.parse::<Quantity>().unwrap().units()
    }
}

#[test]
fn each_table_has_the_computed_classes_and_order() {
    let lines: Vec<_> = PAGE.lines().collect();
    let mut count = 0;
    for (at, _) in lines.iter().enumerate().filter(|(_, line)| **line == HEAD) {
        let rows = lines[at + 2..].iter().take_while(|line| line.starts_with('|'));
        check(&rows.map(|line| Row::parse(line)).collect::<Vec<_>>());
        count += 1;
    }
    assert_eq!(count, PAGE.matches("| before the next by |").count());
    assert!(count > 0, "no table");
}

fn check(rows: &[Row<'_>]) {
    // Ties keep the caller's order, which must not be the page's.
    let pods: Vec<_> = rows.iter().rev().map(Row::pod).collect();
    let plan = plan(&Node::new(64_000, 64 << 30), &Settings::default(), &pods);
    let mut ranked = Vec::new();
    for (pod, order) in plan.pods.iter().zip(0..) {
        let row = rows.iter().find(|row| row.pod == pod.name.name).unwrap();
        assert_eq!(pod.qos_class.as_str(), row.class, "{row:?}");
        let key = MemoryRankKey {
            usage_bytes: Some(row.usage_bytes()),
            request_bytes: pod.ranking_request_bytes,
            priority: pod.eviction_priority,
            order,
        };
        ranked.push((row.pod, key));
    }
    rank::by_memory(&mut ranked, |(_, key)| *key);
    let names = |of: &[Row<'_>]| of.iter().map(|row| row.pod.to_owned()).collect::<Vec<_>>();
    assert_eq!(ranked.iter().map(|(pod, _)| (*pod).to_owned()).collect::<Vec<_>>(), names(rows));
    let mut keys: Vec<_> = ranked.windows(2).map(|pair| pair[0].1.compare(&pair[1].1).1.as_str()).collect();
    keys.push("");
    assert_eq!(keys, rows.iter().map(|row| row.before_the_next_by).collect::<Vec<_>>(), "{:?}", names(rows));
}
