//! A daemon that observes, in folders of its own.

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::net::UnixStream,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// How long anything may take before it counts as stuck.
const STUCK: Duration = Duration::from_mins(1);

/// A process that does not outlive the test.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already, which is what is wanted.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

pub(crate) struct Daemon {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) process: Running,
}

/// An address of this machine without a listener.
pub(crate) fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Waits for something to be so.
pub(crate) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < STUCK, "waited too long for {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

impl Daemon {
    /// With these fields beside its folders; it answers on the observe socket.
    pub(crate) fn start(fields: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let shown = folder.path().display();
        let config = folder.path().join("config.yaml");
        fs::create_dir_all(folder.path().join("pods")).unwrap();
        let content = format!(
            "apiVersion: enforcer.dev/v1alpha1\nkind: EnforcerConfiguration\nmode: observe\n\
             stateDir: {shown}/state\nrunDir: {shown}/run\nstaticPodPath: {shown}/pods\n{fields}"
        );
        fs::write(&config, content).unwrap();
        let process = Command::new(assert_cmd::cargo::cargo_bin!("enforcer"))
            .arg("--config")
            .arg(&config)
            .arg("run")
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut daemon = Self { folder, process: Running(process) };
        wait_for("the observe socket", || {
            assert!(daemon.process.0.try_wait().unwrap().is_none(), "the daemon ended");
            daemon.try_get("/readyz").filter(|answer| answer.starts_with("HTTP/1.0 200"))
        });
        daemon
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("run/observe.sock")
    }

    fn try_get(&self, target: &str) -> Option<String> {
        Some(ask(UnixStream::connect(self.socket()).ok()?, "GET", target))
    }

    /// The whole answer of the observe socket.
    pub(crate) fn get(&self, target: &str) -> String {
        self.try_get(target).unwrap()
    }

    /// Puts a manifest into its folder.
    pub(crate) fn add_pod(&self, file: &str, manifest: &str) {
        let pods = self.folder.path().join("pods");
        fs::write(pods.join(".new"), manifest).unwrap();
        fs::rename(pods.join(".new"), pods.join(file)).unwrap();
    }
}

/// The whole answer of a TCP address.
pub(crate) fn get(address: SocketAddr, target: &str) -> String {
    ask(TcpStream::connect(address).unwrap(), "GET", target)
}

/// Asks by HTTP/1.0, which ends with the connection.
pub(crate) fn ask(mut stream: impl Read + Write, method: &str, target: &str) -> String {
    write!(stream, "{method} {target} HTTP/1.0\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8(answer).unwrap()
}

/// What follows an answer's head.
pub(crate) fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").unwrap().1
}
