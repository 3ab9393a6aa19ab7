use std::{
    fs,
    os::unix::fs::symlink,
    time::{SystemTime, UNIX_EPOCH},
};

use rustix::fs::{FileType, Mode};
use tokio::time::timeout;

use super::*;

const SOON: Duration = Duration::from_secs(5);

fn pod(name: &str) -> String {
    format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: app}}]}}\n")
}

fn names(loaded: &Loaded) -> Vec<String> {
    loaded.pods.iter().map(|pod| pod.name.name.clone()).collect()
}

fn errors(loaded: &Loaded) -> Vec<String> {
    loaded.errors.iter().map(ToString::to_string).collect()
}

async fn next(dir: &mut StaticDir) -> Arc<Loaded> {
    timeout(SOON, dir.next()).await.unwrap()
}

#[tokio::test]
async fn tells_what_is_there_and_then_every_change() {
    let temp = tempfile::tempdir().unwrap();
    fs::write(temp.path().join("a.yaml"), pod("a")).unwrap();
    let mut dir = StaticDir::new(temp.path().to_owned());
    let loaded = next(&mut dir).await;
    assert_eq!((names(&loaded), errors(&loaded)), (vec!["a".into()], vec![]));
    fs::write(
        temp.path().join("b.json"),
        r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"b"},"spec":{"containers":[{"name":"c"}]}}"#,
    )
    .unwrap();
    assert_eq!(names(next(&mut dir).await.as_ref()), ["a", "b"]);
    fs::remove_file(temp.path().join("a.yaml")).unwrap();
    assert_eq!(names(next(&mut dir).await.as_ref()), ["b"]);
    // An editor's way: another file is put in its place.
    fs::write(temp.path().join(".new"), pod("c")).unwrap();
    fs::rename(temp.path().join(".new"), temp.path().join("c.yml")).unwrap();
    assert_eq!(names(next(&mut dir).await.as_ref()), ["b", "c"]);
}

#[tokio::test]
async fn an_empty_directory_is_told_at_once() {
    let temp = tempfile::tempdir().unwrap();
    let mut dir = StaticDir::new(temp.path().to_owned());
    assert_eq!(*next(&mut dir).await, Loaded::default());
    let quiet = timeout(Duration::from_millis(300), dir.next()).await;
    assert!(quiet.is_err(), "nothing changed");
}

#[tokio::test]
async fn a_directory_that_comes_later_is_found() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("etc/pods");
    let mut dir = StaticDir::new(path.clone());
    let loaded = next(&mut dir).await;
    assert_eq!(errors(&loaded).len(), 1, "{:?}", errors(&loaded));
    assert!(errors(&loaded)[0].contains("etc/pods"));
    fs::create_dir_all(&path).unwrap();
    fs::write(path.join("a.yaml"), pod("a")).unwrap();
    let mut loaded = next(&mut dir).await;
    while names(&loaded).is_empty() {
        loaded = next(&mut dir).await;
    }
    assert_eq!((names(&loaded), errors(&loaded)), (vec!["a".into()], vec![]));
    fs::remove_dir_all(&path).unwrap();
    let mut loaded = next(&mut dir).await;
    while errors(&loaded).is_empty() {
        loaded = next(&mut dir).await;
    }
    assert!(names(&loaded).is_empty());
    fs::create_dir(&path).unwrap();
    fs::write(path.join("b.yaml"), pod("b")).unwrap();
    while names(&loaded).is_empty() {
        loaded = next(&mut dir).await;
    }
    assert_eq!(names(&loaded), ["b"]);
}

#[tokio::test]
async fn anything_but_a_manifest_is_told_and_dot_files_are_not() {
    let temp = tempfile::tempdir().unwrap();
    for name in ["README", ".hidden.yaml", "a.yaml~"] {
        fs::write(temp.path().join(name), pod("a")).unwrap();
    }
    fs::create_dir(temp.path().join("folder.yaml")).unwrap();
    let fifo = temp.path().join("fifo.yaml");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    symlink("nowhere", temp.path().join("lost.yaml")).unwrap();
    let loaded = next(&mut StaticDir::new(temp.path().to_owned())).await;
    assert_eq!(names(&loaded), Vec::<String>::new());
    let told = errors(&loaded);
    for name in ["README", "a.yaml~", "folder.yaml", "fifo.yaml", "lost.yaml"] {
        assert!(told.iter().any(|error| error.starts_with(&format!("{name}: "))), "{name} not in {told:?}");
    }
    assert_eq!(told.len(), 5);
}

#[tokio::test]
async fn a_mounted_config_map_is_followed_through_its_links() {
    let temp = tempfile::tempdir().unwrap();
    for (version, name) in [("..1", "a"), ("..2", "b")] {
        fs::create_dir(temp.path().join(version)).unwrap();
        fs::write(temp.path().join(version).join("pod.yaml"), pod(name)).unwrap();
    }
    symlink("..1", temp.path().join("..data")).unwrap();
    symlink("..data/pod.yaml", temp.path().join("pod.yaml")).unwrap();
    let mut dir = StaticDir::new(temp.path().to_owned());
    assert_eq!(names(next(&mut dir).await.as_ref()), ["a"]);
    symlink("..2", temp.path().join("..data_tmp")).unwrap();
    fs::rename(temp.path().join("..data_tmp"), temp.path().join("..data")).unwrap();
    assert_eq!(names(next(&mut dir).await.as_ref()), ["b"]);
}

#[tokio::test]
async fn a_file_that_is_too_large_is_named() {
    let temp = tempfile::tempdir().unwrap();
    fs::write(temp.path().join("big.yaml"), vec![b'#'; manifest::MAX_BYTES + 1]).unwrap();
    let loaded = next(&mut StaticDir::new(temp.path().to_owned())).await;
    assert_eq!(errors(&loaded), ["big.yaml: is larger than 33554432 bytes: split it into several files"]);
}

#[tokio::test]
async fn a_settled_file_is_not_read_again() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("a.yaml");
    fs::write(&file, pod("a")).unwrap();
    let stamp = Stamp::of(&rustix::fs::stat(&file).unwrap());
    assert!(!stamp.is_settled(SystemTime::now()), "it was written just now");
    assert!(stamp.is_settled(SystemTime::now() + Duration::from_secs(4)));
    assert!(!stamp.is_settled(UNIX_EPOCH));
    let listing = files::list(temp.path()).unwrap();
    let again = files::read_unless_known(&listing.directory, "a.yaml", Some(stamp)).unwrap().unwrap();
    assert!(matches!(again, (Content::Unchanged, Some(_))));
    fs::write(&file, pod("bb")).unwrap();
    let changed = files::read_unless_known(&listing.directory, "a.yaml", Some(stamp)).unwrap().unwrap();
    assert!(matches!(changed, (Content::Bytes(_), None)));
}
