//! Manifests larger than the fuzzer's: time and memory go with a file's size, not with its square.
//!
//! The bar is far above what each takes and far below what a square would take.

#![expect(clippy::print_stdout, reason = "a test names the shape that it fails with")]

use std::{
    fmt::Write as _,
    time::{Duration, Instant},
};

use enforcer_fuzz::{manifest, plan};

#[path = "../fuzz/src/lib.rs"]
#[expect(
    clippy::panic,
    unreachable_pub,
    dead_code,
    reason = "it is a library of its own as well, and fails by panicking; not all of it is for large inputs"
)]
mod enforcer_fuzz;

const LONGEST: Duration = Duration::from_secs(30);

/// A text with `count` lines, each made of its number.
fn lines(count: usize, line: impl Fn(usize) -> String) -> String {
    (0..count).fold(String::new(), |mut text, number| {
        let _infallible = writeln!(text, "{}", line(number));
        text
    })
}

fn pod(spec: &str) -> String {
    format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec:\n{spec}")
}

fn holds(shape: &str, text: &str) {
    let begin = Instant::now();
    manifest::check(text.as_bytes());
    let took = begin.elapsed();
    println!("{shape}: {} bytes in {took:?}", text.len());
    assert!(took < LONGEST, "{shape}: {took:?} for {} bytes", text.len());
}

#[test]
fn many_containers_take_time_in_their_number() {
    let resources = "resources: {requests: {memory: 1Mi}}";
    let containers = lines(10_000, |number| format!("  - {{name: c{number}, {resources}}}"));
    holds("containers", &pod(&format!("  containers:\n{containers}")));
    let sidecars =
        lines(10_000, |number| format!("  - {{name: s{number}, restartPolicy: Always, {resources}}}"));
    holds("sidecars", &pod(&format!("  initContainers:\n{sidecars}  containers: [{{name: c}}]\n")));
    let again = lines(10_000, |_| String::from("  - name: c"));
    holds("one name", &pod(&format!("  containers:\n{again}")));
}

#[test]
fn many_objects_take_time_in_their_number() {
    holds("documents", &lines(20_000, |_| String::from("---\n1")));
    let pods = lines(3_000, |number| {
        format!("- {{metadata: {{name: p{number}}}, spec: {{containers: [{{name: c}}]}}}}")
    });
    holds("pods", &format!("apiVersion: v1\nkind: PodList\nitems:\n{pods}"));
    let names = lines(10_000, |number| format!("        example.com/r{number}: 1"));
    holds("resources", &pod(&format!("  containers:\n  - name: c\n    resources:\n      limits:\n{names}")));
}

/// Fewer aliases than the parser's own rule against bombs looks at, in each of many documents.
#[test]
fn aliases_in_many_documents_do_not_multiply() {
    let long = "x".repeat(5_000);
    let repeated = lines(90, |number| format!("    k{number}: *a"));
    let text = lines(30, |number| {
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: p{number}\n  annotations:\n    k: &a {long}\n\
             {repeated}spec: {{containers: [{{name: c}}]}}"
        )
    });
    holds("annotations", &text);
    let parsed = enforcer::source::manifest::parse("a.yaml", text.as_bytes());
    assert!(parsed.pods.is_empty(), "{} pods hold what one text repeats", parsed.pods.len());
    assert_eq!(parsed.errors.len(), 30);

    let few = text.replace("    k80: *a\n", "").replace(&long, "short");
    let parsed = enforcer::source::manifest::parse("a.yaml", few.as_bytes());
    assert_eq!((parsed.pods.len(), parsed.errors.len()), (30, 0), "{:?}", parsed.errors.first());
    plan::check(&plan::node(), &plan::settings()[0], &parsed.pods);
}
