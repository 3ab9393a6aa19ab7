use std::{
    fs,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
};

use super::*;
use crate::{policy::order::What, serve::OrderRequest};

struct Served {
    temp: tempfile::TempDir,
    asked: mpsc::Receiver<Asked>,
    stop: watch::Sender<bool>,
    _view: watch::Sender<View>,
    task: tokio::task::JoinHandle<()>,
}

/// Served on a node whose kubepods is that.
fn serve(kubepods: &str) -> Served {
    let temp = tempfile::tempdir().unwrap();
    let (asking, asked) = mpsc::channel(4);
    let (view, views) = watch::channel(View::default());
    let (stop, stopping) = watch::channel(false);
    let admin = Admin::bind(temp.path(), &Sockets::default()).unwrap();
    let kubepods = CgroupPath::parse(kubepods).unwrap();
    let task = tokio::spawn(admin.serve(asking, kubepods, views, stopping));
    Served { temp, asked, stop, _view: view, task }
}

impl Served {
    async fn open(&self) -> UnixStream {
        UnixStream::connect(Admin::path(self.temp.path())).await.unwrap()
    }

    async fn post(&self, body: &str) -> String {
        let mut stream = self.open().await;
        let head = format!("POST /v1/orders HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(body.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }
}

const NOWHERE: &str = "/no/such/kubepods";

const PAUSE: &str = r#"{"do":"give","what":{"order":"pause"},"reason":"an upgrade","forMs":60000}"#;

#[tokio::test]
async fn only_its_owner_can_open_it_and_a_wish_is_handed_on() {
    let mut served = serve(NOWHERE);
    let metadata = fs::metadata(Admin::path(served.temp.path())).unwrap();
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.mode() & 0o777, 0o600);
    let mut asked = std::mem::replace(&mut served.asked, mpsc::channel(1).1);
    let answering = tokio::spawn(async move {
        let Asked { request, peer, answer } = asked.recv().await.unwrap();
        let done = Done { message: String::from("paused"), durable: true, ..Done::default() };
        answer.send(Ok(done)).unwrap();
        (request, peer)
    });
    let answer = served.post(PAUSE).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(r#""message":"paused""#), "{answer}");
    let (request, peer) = answering.await.unwrap();
    assert_eq!(
        request,
        AdminRequest::Order(OrderRequest::Give {
            what: What::Pause,
            reason: "an upgrade".into(),
            for_ms: 60_000
        })
    );
    assert_eq!((peer.uid, peer.pid), (rustix::process::geteuid().as_raw(), std::process::id()));
    served.stop.send_replace(true);
    served.task.await.unwrap();
}

/// A cgroup of its own, gone when it is dropped; none where none can be made.
struct Cgroup {
    folder: PathBuf,
    path: String,
}

impl Cgroup {
    fn new() -> Option<Self> {
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        let is_unified = |line: &&str| line.split(' ').nth(2) == Some("cgroup2");
        let mount = mounts.lines().find(is_unified)?.split(' ').nth(1)?.to_owned();
        let path = format!("/enforcer-test-{}", std::process::id());
        let folder = PathBuf::from(format!("{mount}{path}"));
        fs::create_dir(&folder).ok().map(|()| Self { folder, path })
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Who was in it may still be on its way out.
        for _ in 0..100 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[tokio::test]
async fn a_process_in_a_pod_changes_nothing() {
    let Some(cgroup) = Cgroup::new() else { return };
    // kubepods is that cgroup, and curl goes into it before it asks.
    let mut served = serve(&cgroup.path);
    let (procs, socket) = (cgroup.folder.join("cgroup.procs"), Admin::path(served.temp.path()));
    let script =
        r#"echo $$ > "$0" && exec curl --silent --include --unix-socket "$1" -d "$2" http://x/v1/orders"#;
    let asking = move || {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", script]).arg(&procs).arg(&socket).arg(PAUSE).output().unwrap()
    };
    let output = tokio::task::spawn_blocking(asking).await.unwrap();
    let answer = String::from_utf8(output.stdout).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 403") && answer.contains("in a pod"),
        "{answer} {:?}",
        output.stderr
    );
    assert!(served.asked.try_recv().is_err());
    drop(cgroup);
}

#[tokio::test]
async fn what_is_no_order_is_refused() {
    let mut served = serve(NOWHERE);
    for wrong in [
        "",
        "{}",
        "[",
        r#"{"do":"give","what":{"order":"rest"},"reason":"r","forMs":1}"#,
        r#"{"do":"give","what":{"order":"pause"},"reason":"r","forMs":-1}"#,
        r#"{"do":"give","what":{"order":"pause"},"reason":"r","forMs":1,"more":1}"#,
    ] {
        let answer = served.post(wrong).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{wrong}: {answer}");
    }
    let answer = served.post(&"x".repeat(BODY_BYTES + 1)).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    let mut stream = served.open().await;
    stream.write_all(b"GET /v1/orders HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 405"), "{answer}");
    assert!(served.asked.try_recv().is_err());
}

#[tokio::test]
async fn a_client_that_says_nothing_is_disconnected_and_keeps_no_place() {
    let served = serve(NOWHERE);
    let mut silent = Vec::new();
    for _ in 0..AdminService::PLACES {
        silent.push(served.open().await);
    }
    // Its turn comes when the silent ones are gone.
    let answer = served.post("{}").await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    let mut rest = Vec::new();
    for mut stream in silent {
        stream.read_to_end(&mut rest).await.unwrap();
    }
}
