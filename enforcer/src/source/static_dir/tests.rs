use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    time::{SystemTime, UNIX_EPOCH},
};

use rustix::fs::{FileType, Mode};
use tokio::time::timeout;

use super::*;
use crate::{
    source::{
        files::{self, Reading},
        loaded::{Content, FileContent, merge},
        manifest,
    },
    stamp::Stamp,
};

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
    timeout(SOON, dir.next()).await.unwrap().loaded.unwrap()
}

/// A directory that is read without a daemon; what it remembers is in the second one.
fn start(path: PathBuf) -> (StaticDir, tempfile::TempDir) {
    let run_dir = tempfile::tempdir().unwrap();
    (StaticDir::start(path, run_dir.path()).unwrap(), run_dir)
}

#[tokio::test]
async fn reports_what_is_there_and_then_every_change() {
    let temp = tempfile::tempdir().unwrap();
    fs::write(temp.path().join("a.yaml"), pod("a")).unwrap();
    let (mut dir, _run_dir) = start(temp.path().to_owned());
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
async fn an_empty_directory_is_reported_at_once() {
    let temp = tempfile::tempdir().unwrap();
    let (mut dir, _run_dir) = start(temp.path().to_owned());
    let loaded = next(&mut dir).await;
    assert!(loaded.pods.is_empty() && loaded.errors.is_empty() && loaded.are_known, "{loaded:?}");
    let quiet = timeout(Duration::from_millis(300), dir.next()).await;
    assert!(quiet.is_err(), "nothing changed");
}

#[tokio::test]
async fn a_directory_that_comes_later_is_found() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("etc/pods");
    let (mut dir, _run_dir) = start(path.clone());
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
}

#[tokio::test]
async fn a_directory_that_hangs_blocks_nothing_and_is_reported() {
    /// A file system that does not answer until it is let go.
    struct Hung(mpsc::Receiver<()>, Arc<Loaded>);
    impl Read for Hung {
        fn read(&mut self, _is_accepted: bool) -> Arc<Loaded> {
            self.0.recv().unwrap();
            Arc::clone(&self.1)
        }
        fn rest(&self) -> Duration {
            Duration::from_mins(1)
        }
        fn wait(&mut self, _due: Instant) -> io::Result<bool> {
            thread::sleep(Duration::from_millis(1));
            Ok(false)
        }
    }
    let parse = |name: &str| {
        let content = Content::Bytes(pod(name).into_bytes());
        Arc::new(merge(&Loaded::default(), [FileContent { name: name.into(), content }], manifest::parse))
    };
    let (let_go, held) = mpsc::channel();
    let waker = Arc::new(Waker::new().unwrap());
    let reader = Hung(held, parse("read"));
    let patience = Duration::from_millis(50);
    let mut dir = StaticDir::spawn("/hung".into(), waker, parse("remembered"), reader, patience).unwrap();
    let loaded = next(&mut dir).await;
    assert_eq!(names(&loaded), ["remembered"]);
    assert!(
        errors(&loaded)[0].contains("/hung: has not answered") && loaded.errors[0].is_down(),
        "{loaded:?}"
    );
    assert!(dir.is_stuck());
    let_go.send(()).unwrap();
    let loaded = next(&mut dir).await;
    assert_eq!((names(&loaded), errors(&loaded)), (vec!["read".into()], vec![]));
    assert!(!dir.is_stuck());
}

#[tokio::test]
async fn anything_but_a_manifest_is_reported_and_dot_files_are_not() {
    let temp = tempfile::tempdir().unwrap();
    for name in ["README", ".hidden.yaml", "a.yaml~"] {
        fs::write(temp.path().join(name), pod("a")).unwrap();
    }
    fs::create_dir(temp.path().join("folder.yaml")).unwrap();
    let fifo = temp.path().join("fifo.yaml");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    symlink("nowhere", temp.path().join("lost.yaml")).unwrap();
    let loaded = next(&mut start(temp.path().to_owned()).0).await;
    assert_eq!(names(&loaded), Vec::<String>::new());
    let reported = errors(&loaded);
    for name in ["README", "a.yaml~", "folder.yaml", "fifo.yaml", "lost.yaml"] {
        assert!(
            reported.iter().any(|error| error.starts_with(&format!("{name}: "))),
            "{name} not in {reported:?}"
        );
    }
    assert_eq!(reported.len(), 5);
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
    let (mut dir, _run_dir) = start(temp.path().to_owned());
    assert_eq!(names(next(&mut dir).await.as_ref()), ["a"]);
    symlink("..2", temp.path().join("..data_tmp")).unwrap();
    fs::rename(temp.path().join("..data_tmp"), temp.path().join("..data")).unwrap();
    assert_eq!(names(next(&mut dir).await.as_ref()), ["b"]);
}

#[tokio::test]
async fn a_file_that_is_too_large_is_named() {
    let temp = tempfile::tempdir().unwrap();
    fs::write(temp.path().join("big.yaml"), vec![b'#'; manifest::MAX_BYTES + 1]).unwrap();
    let loaded = next(&mut start(temp.path().to_owned()).0).await;
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
    let directory = files::open_folder(temp.path()).unwrap();
    let read = || {
        let mut reading = Reading::guarded(temp.path());
        files::read_unless_known(&directory, "a.yaml", Some(stamp), &mut reading).unwrap().unwrap()
    };
    let again = read();
    assert!(matches!(again, (Content::Unchanged, Some(_))));
    fs::write(&file, pod("bb")).unwrap();
    let changed = read();
    assert!(matches!(changed, (Content::Bytes(_), None)));
}

#[test]
fn manifests_are_read_up_to_a_size_in_all() {
    let temp = tempfile::tempdir().unwrap();
    // Two as large as may be leave no room for a third. They are read, and not parsed, which takes a slow machine a while.
    for name in ["a", "b"] {
        fs::write(temp.path().join(format!("{name}.yaml")), vec![b'#'; manifest::MAX_BYTES]).unwrap();
    }
    fs::write(temp.path().join("c.yaml"), pod("c")).unwrap();
    let directory = files::open_folder(temp.path()).unwrap();
    let mut reading = Reading::guarded(temp.path());
    let mut read =
        |name: &str| files::read_unless_known(&directory, name, None, &mut reading).unwrap().unwrap().0;
    for name in ["a.yaml", "b.yaml"] {
        assert!(matches!(read(name), Content::Bytes(_)), "{name}");
    }
    let Content::Failed(error) = read("c.yaml") else { panic!("there is no room for it") };
    let message = "c.yaml: is not taken: the manifests up to it have more than 67108864 bytes together";
    assert!(error.to_string().starts_with(message), "{error}");
}

#[tokio::test]
async fn a_link_is_as_safe_as_the_folders_that_it_leads_through() {
    let temp = tempfile::tempdir().unwrap();
    let (version, outside) = (temp.path().join("pods/..1"), temp.path().join("outside.yaml"));
    fs::create_dir_all(&version).unwrap();
    for (path, name) in [(version.join("a.yaml"), "a"), (outside.clone(), "b")] {
        fs::write(path, pod(name)).unwrap();
    }
    let pods = temp.path().join("pods");
    symlink("..1", pods.join("..data")).unwrap();
    symlink("..data/a.yaml", pods.join("a.yaml")).unwrap();
    symlink("../outside.yaml", pods.join("b.yaml")).unwrap();
    symlink(&outside, pods.join("c.yaml")).unwrap();
    symlink("..data/../../outside.yaml", pods.join("d.yaml")).unwrap();
    let (mut dir, _run_dir) = start(pods);
    let loaded = next(&mut dir).await;
    assert_eq!(names(&loaded), ["a"]);
    let wrong = errors(&loaded);
    for name in ["b", "c", "d"] {
        let leads_out = format!("{name}.yaml: is a link that leads out of the folder");
        assert!(wrong.iter().any(|error| error.starts_with(&leads_out)), "{wrong:?}");
    }
    fs::set_permissions(&version, fs::Permissions::from_mode(0o777)).unwrap();
    dir.look(false, None);
    let wrong = errors(next(&mut dir).await.as_ref());
    assert!(wrong.iter().any(|error| error.starts_with("..1: may be written to by everybody")), "{wrong:?}");
}
