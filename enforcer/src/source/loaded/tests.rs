use rstest::rstest;

use super::*;
use crate::source::manifest;

fn pod(name: &str, priority: i32) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: '{name}'}}\nspec:\n  priority: {priority}\n  containers: [{{name: app}}]\n"
    )
}

fn with_uid(name: &str, uid: &str) -> String {
    pod(name, 0).replace(&format!("name: '{name}'"), &format!("name: '{name}', uid: {uid}"))
}

fn file(name: &str, content: impl Into<String>) -> FileContent {
    FileContent { name: name.into(), content: Content::Bytes(content.into().into_bytes()) }
}

fn unreadable(name: &str) -> FileContent {
    let error = SourceError::Unreadable { file: name.into(), errno: rustix::io::Errno::ACCESS };
    FileContent { name: name.into(), content: Content::Failed(error) }
}

fn load(previous: &Loaded, files: Vec<FileContent>) -> Loaded {
    merge(previous, files, manifest::parse)
}

fn reported(loaded: &Loaded) -> Vec<(String, i32)> {
    loaded.pods.iter().map(|pod| (pod.name.name.clone(), pod.priority())).collect()
}

fn expect(pods: &[(&str, i32)]) -> Vec<(String, i32)> {
    pods.iter().map(|(name, priority)| ((*name).to_owned(), *priority)).collect()
}

#[test]
fn pods_come_in_the_order_of_their_files() {
    let loaded = load(
        &Loaded::default(),
        vec![file("b.yaml", pod("x", 1)), file("a.yaml", format!("{}---\n{}", pod("z", 2), pod("y", 3)))],
    );
    assert_eq!(reported(&loaded), expect(&[("z", 2), ("y", 3), ("x", 1)]));
    assert_eq!(loaded.errors, []);
    assert_eq!(loaded.origins[2].to_string(), "b.yaml:1");
}

#[rstest]
#[case::broken(file("a.yaml", "kind: Pod\nspec: ["))]
#[case::unreadable(unreadable("a.yaml"))]
#[case::one_of_two(file("a.yaml", format!("{}---\nkind: Pod\n", pod("x", 9))))]
fn the_last_good_version_stays_in_force(#[case] bad: FileContent) {
    let good = load(&Loaded::default(), vec![file("a.yaml", pod("x", 1)), file("b.yaml", pod("y", 2))]);
    let bad = load(&good, vec![bad, file("b.yaml", pod("y", 7))]);
    assert_eq!(reported(&bad), expect(&[("x", 1), ("y", 7)]));
    assert!(!bad.errors.is_empty());
    assert!(bad.errors.iter().all(|error| error.to_string().starts_with("a.yaml")), "{:?}", bad.errors);
    assert_eq!(bad.new_errors(&good).count(), bad.errors.len());
    let again = load(&bad, vec![unchanged("a.yaml"), unchanged("b.yaml")]);
    assert_eq!(again, bad);
    assert_eq!(again.new_errors(&bad).count(), 0, "an error is reported once");
    let mended = load(&again, vec![file("a.yaml", pod("x", 3)), unchanged("b.yaml")]);
    assert_eq!(reported(&mended), expect(&[("x", 3), ("y", 7)]));
    assert_eq!(mended.errors, []);
}

fn unchanged(name: &str) -> FileContent {
    FileContent { name: name.into(), content: Content::Unchanged }
}

#[test]
fn a_file_that_was_never_good_counts_with_its_good_pods() {
    let bad = format!("{}---\nkind: Pod\n", pod("x", 1));
    let first = load(&Loaded::default(), vec![file("a.yaml", bad)]);
    assert_eq!(reported(&first), expect(&[("x", 1)]));
    let bad = format!("{}---\nkind: Pod\n", pod("x", 2));
    let second = load(&first, vec![file("a.yaml", bad)]);
    assert_eq!(reported(&second), expect(&[("x", 2)]), "there is no good version to stay with");
}

#[test]
fn a_pod_that_has_not_changed_in_a_changed_file_is_held_once() {
    let both = |priority| format!("{}---\n{}", pod("x", 1), pod("y", priority));
    let before = load(&Loaded::default(), vec![file("a.yaml", both(2))]);
    let after = load(&before, vec![file("a.yaml", both(3))]);
    assert_eq!(reported(&after), expect(&[("x", 1), ("y", 3)]));
    let held_once: Vec<_> =
        before.pods.iter().zip(&after.pods).map(|(old, new)| Arc::ptr_eq(old, new)).collect();
    assert_eq!(held_once, [true, false]);
}

#[test]
fn a_file_that_is_gone_takes_its_pods_along() {
    let both = load(&Loaded::default(), vec![file("a.yaml", pod("x", 1)), file("b.yaml", pod("y", 2))]);
    assert_eq!(reported(&load(&both, vec![unchanged("b.yaml")])), expect(&[("y", 2)]));
}

#[test]
fn a_pod_in_two_files_stays_where_it_was_and_both_are_named() {
    let one = load(&Loaded::default(), vec![file("b.yaml", pod("x", 1))]);
    let two = load(&one, vec![file("a.yaml", pod("x", 2)), unchanged("b.yaml")]);
    assert_eq!(reported(&two), expect(&[("x", 1)]));
    let messages: Vec<String> = two.errors.iter().map(ToString::to_string).collect();
    assert_eq!(messages.len(), 1);
    assert!(messages[0].contains("a.yaml:") && messages[0].contains("b.yaml:"), "{messages:?}");
    let still = load(&two, vec![unchanged("a.yaml"), unchanged("b.yaml")]);
    assert_eq!(still, two, "the choice does not flap");
    let moved = load(&still, vec![unchanged("a.yaml")]);
    assert_eq!(reported(&moved), expect(&[("x", 2)]));
    assert_eq!(moved.errors, []);
}

#[test]
fn at_first_sight_the_first_file_wins() {
    let loaded = load(&Loaded::default(), vec![file("b.yaml", pod("x", 2)), file("a.yaml", pod("x", 1))]);
    assert_eq!(reported(&loaded), expect(&[("x", 1)]));
    let twice = format!("{}---\n{}", pod("x", 1), pod("x", 2));
    let loaded = load(&Loaded::default(), vec![file("a.yaml", twice)]);
    assert_eq!(reported(&loaded), expect(&[("x", 1)]));
    assert_eq!(loaded.errors.len(), 1);
}

#[test]
fn two_pods_may_not_share_a_uid() {
    let files = vec![file("a.yaml", with_uid("x", "u1")), file("b.yaml", with_uid("y", "u1"))];
    let loaded = load(&Loaded::default(), files);
    assert_eq!(reported(&loaded), expect(&[("x", 0)]));
    let message = loaded.errors[0].to_string();
    assert!(
        message.contains("u1") && message.contains("a.yaml:") && message.contains("b.yaml:"),
        "{message}"
    );
}

#[test]
fn an_error_of_the_whole_directory_changes_no_pod() {
    let good = load(&Loaded::default(), vec![file("a.yaml", pod("x", 1))]);
    let path = "/etc/enforcer/pods";
    let away = |loaded: &Loaded| loaded.away(path, Absence::Unreadable(rustix::io::Errno::IO));
    let bad = away(&good);
    assert_eq!(reported(&bad), reported(&good));
    assert_eq!(bad.errors.len(), 1);
    assert!(
        bad.errors[0].is_down() && bad.errors[0].to_string().contains("1 pod stays"),
        "{}",
        bad.errors[0]
    );
    assert_eq!(away(&bad).errors, bad.errors, "not twice");
}

#[test]
fn a_mistyped_field_is_a_warning_that_is_reported_once_and_keeps_no_pod_away() {
    let odd = pod("x", 1).replace("spec:\n", "spec:\n  priorityClass: high\n");
    let loaded = load(&Loaded::default(), vec![file("a.yaml", odd.clone()), file("b.yaml", pod("y", 2))]);
    assert_eq!(reported(&loaded), expect(&[("x", 1), ("y", 2)]));
    assert_eq!(loaded.errors, []);
    let none = Loaded::default();
    let warnings: Vec<_> = loaded.new_warnings(&none).map(ToString::to_string).collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].starts_with("a.yaml:5: spec.priorityClass: is ignored"), "{warnings:?}");
    for content in [unchanged("a.yaml"), file("a.yaml", odd)] {
        let again = load(&loaded, vec![content, unchanged("b.yaml")]);
        assert_eq!((again.new_warnings(&loaded).count(), again.warnings.len()), (0, 1));
    }
    let corrected = load(&loaded, vec![file("a.yaml", pod("x", 1)), unchanged("b.yaml")]);
    assert_eq!(corrected.warnings, []);
}

#[test]
fn the_warnings_of_a_folder_are_bounded() {
    let unknown: Vec<_> = (0..30).map(|number| format!("  x{number}: 1\n")).collect();
    let unknown = unknown.concat();
    let files =
        (0..40).map(|number| file(&format!("{number}.yaml"), pod(&format!("p{number}"), 1) + &unknown));
    let loaded = load(&Loaded::default(), files.collect());
    assert_eq!((loaded.pods.len(), loaded.errors.len(), loaded.warnings.len()), (40, 0, 100));
}
