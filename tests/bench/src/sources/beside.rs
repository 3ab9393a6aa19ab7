//! A node as a kubelet and a container runtime keep it: cgroups, names, and one source of specs.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
};

use anyhow::Context as _;
use enforcer::{
    model::{CgroupPath, PodUid, QosClass},
    policy::{CgroupDriver, cpu, name},
    specs::{ClusterAccess, Feed, KeptCredentials, KubeletFolders},
};
use enforcer_tests::cgroup::Cgroup;

use self::{
    fake::FakeKubelet,
    fake_api::{FakeApi, Streams},
};
use super::{CONTAINERS, CONTROLLER, POD_BYTES, Source, labels, manifest, uid};

#[path = "../../../../enforcer/src/specs/fake.rs"]
#[expect(dead_code, reason = "the client's own tests use more of it")]
mod fake;
#[path = "../../../../enforcer/src/specs/fake_api.rs"]
#[expect(dead_code, reason = "the client's own tests use more of it")]
mod fake_api;
#[path = "../../../../enforcer/src/cri/fake.rs"]
#[expect(dead_code, reason = "the client's own tests use more of it")]
mod runtime;

/// The kubelet's `--cgroup-root`: nothing else is there.
const CGROUP_ROOT: &str = "/bench-beside";

const TOKEN: &str = "secret";

/// How an annotation of a padded pod is called, and how long it is.
const ANNOTATION: (&str, usize) = ("bench.example/annotation", 160);

/// The node; its cgroups are removed when it is dropped.
pub(super) struct Beside {
    settings: String,
    /// The kubelet whose list is read, if that is the source.
    kubelet: Option<FakeKubelet>,
    /// Dropped before what is above them.
    _leaves: Vec<Cgroup>,
    _pods: Vec<Cgroup>,
    _above: Vec<Cgroup>,
}

impl Beside {
    /// One with so many pods, each with a sandbox and its containers, whose specs that source has.
    pub(super) fn new(folder: &Path, source: Source, pods: u32) -> anyhow::Result<Self> {
        let driver = CgroupDriver::Cgroupfs;
        let root = CgroupPath::parse(CGROUP_ROOT).ok().context("the root is a path")?;
        let kubepods = name::kubepods(&root, driver);
        let mut above = Vec::new();
        for class in [QosClass::Burstable, QosClass::BestEffort] {
            above.push(Cgroup::create(below(&name::qos(&kubepods, class, driver)))?);
        }
        above.push(Cgroup::create(below(&kubepods))?);
        above.push(Cgroup::create(below(&root))?);
        let cpus = u64::try_from(thread::available_parallelism()?.get())?;
        for (cgroup, cpus) in above.iter().zip([0, 0, cpus]) {
            weigh(cgroup, cpus)?;
        }
        let (mut leaves, mut own, mut node) = (Vec::new(), Vec::new(), runtime::Node::default());
        for number in 0..pods {
            let uid = uid(number);
            let sandbox = node.add_pod("bench", &format!("p{number}"), &uid);
            let containers = CONTAINERS.map(|name| node.add_container(&sandbox, name, 1));
            let uid = PodUid::new(&uid).context("a uid")?;
            let pod = name::pod(&kubepods, QosClass::Burstable, &uid, driver);
            let cgroup = Cgroup::create(below(&pod))?;
            weigh(&cgroup, 0)?;
            own.push(cgroup);
            for id in containers.iter().chain([&sandbox]) {
                let cgroup = Cgroup::create(&format!("{}/{id}", below(&pod)))?;
                weigh(&cgroup, 0)?;
                leaves.push(cgroup);
            }
        }
        let kubelet_root = folder.join("kubelet");
        fs::create_dir_all(&kubelet_root)?;
        let socket = folder.join("runtime.sock");
        let listener = unix(&socket)?;
        serve(move || runtime::serve(listener.into_listener(), move |path, message| node.say(path, message)));
        let (further, kubelet) = match source {
            Source::Static => (String::new(), None),
            Source::PodsApi => (pods_api(&kubelet_root, pods)?, None),
            Source::Kubelet => {
                https(&kubelet_root, pods).map(|(further, kubelet)| (further, Some(kubelet)))?
            }
            Source::ApiServer => (api_server(&kubelet_root, pods)?, None),
        };
        let settings = format!(
            "mode: enforce\nownership: kubelet\nmemoryAvailableSource: memAvailable\ncgroupRoot: {CGROUP_ROOT}\n\
             criSocket: {}\nkubeletRootDir: {}\npodSource: {}\n{further}",
            socket.display(),
            kubelet_root.display(),
            source.name()
        );
        Ok(Self { settings, kubelet, _leaves: leaves, _pods: own, _above: above })
    }

    /// How many lists a kubelet has given, if that is the source.
    pub(super) fn lists(&self) -> Option<u64> {
        self.kubelet.as_ref().map(FakeKubelet::lists)
    }

    /// The configuration of a daemon beside it.
    pub(super) fn settings(&self) -> &str {
        &self.settings
    }
}

/// Gives a cgroup the weight that a kubelet does; of what else it writes, these pods need nothing.
fn weigh(cgroup: &Cgroup, requested_cpus: u64) -> anyhow::Result<()> {
    cgroup.write("cpu.weight", &cpu::weight_linear(cpu::shares(1_000 * requested_cpus)).to_string())
}

fn below(path: &CgroupPath) -> &str {
    path.as_str().trim_start_matches('/')
}

/// A kubelet with these pods, padded by annotations: the only field of any length that both of its interfaces have.
fn kubelet(pods: u32) -> FakeKubelet {
    let kubelet = FakeKubelet::new();
    let (name, bytes) = ANNOTATION;
    let annotations = (0..POD_BYTES / (name.len() + bytes + "-000\":\"\",\"".len()))
        .map(|number| (format!("{name}-{number:03}"), "v".repeat(bytes)))
        .collect::<std::collections::BTreeMap<_, _>>();
    for number in 0..pods {
        kubelet.put(fake::FakePod {
            uid: uid(number),
            namespace: String::from("bench"),
            name: format!("p{number}"),
            class: String::from("Burstable"),
            phase: String::from("Running"),
            annotations: annotations.clone(),
            labels: labels(number),
            controller: String::from(CONTROLLER),
            containers: CONTAINERS.map(|name| (name.to_owned(), String::from("1Mi"), String::new())).into(),
            ..fake::FakePod::default()
        });
    }
    kubelet
}

fn pods_api(kubelet_root: &Path, pods: u32) -> anyhow::Result<String> {
    let folder = kubelet_root.join("pods-api");
    fs::create_dir_all(&folder)?;
    let listener = unix(&folder.join("pods-api.sock"))?;
    let kubelet = kubelet(pods);
    serve(move || kubelet.serve_pods_api(listener.into_listener()));
    Ok(String::new())
}

fn https(kubelet_root: &Path, pods: u32) -> anyhow::Result<(String, FakeKubelet)> {
    let Kubelet { access, fake } = Kubelet::serve(kubelet_root, pods)?;
    let kubeconfig = access.kubeconfig.context("it has none")?;
    let (kubeconfig, port) = (kubeconfig.display(), access.kubelet_port);
    Ok((format!("kubeconfig: {kubeconfig}\nkubeletPort: {port}\nnodeName: node-1"), fake))
}

/// A kubelet's HTTPS server, and what a daemon knows of it.
pub(super) struct Kubelet {
    access: ClusterAccess,
    fake: FakeKubelet,
}

impl Kubelet {
    /// One with so many pods, whose files are in that folder.
    pub(super) fn serve(folder: &Path, pods: u32) -> anyhow::Result<Self> {
        let (certificate, key) = certificate()?;
        fs::create_dir_all(folder.join("pki"))?;
        fs::write(folder.join("pki/kubelet.crt"), &certificate)?;
        let (listener, kubelet_port) = tcp()?;
        let fake = kubelet(pods);
        // One that does not say it is asked each minute.
        fake.configure(String::from(r#"{"kubeletconfig":{"evictionHard":{"memory.available":"100Mi"}}}"#));
        let served = fake.clone();
        serve(move || served.serve_https(listener.into_listener(), (certificate, key), TOKEN));
        let access = ClusterAccess {
            kubelet: KubeletFolders::below(folder),
            kubelet_port,
            // What else is asked for is not the kubelet's.
            kubeconfig: Some(api(folder, 0)?),
            service_account: PathBuf::from("/nonexistent"),
            in_cluster: None,
        };
        Ok(Self { access, fake })
    }

    pub(super) fn feed(&self) -> anyhow::Result<Feed> {
        Ok(self.access.kubelet("node-1", &mut KeptCredentials::default())?)
    }

    /// How many lists it has given.
    pub(super) fn lists(&self) -> u64 {
        self.fake.lists()
    }
}

fn api_server(kubelet_root: &Path, pods: u32) -> anyhow::Result<String> {
    Ok(format!("kubeconfig: {}\nnodeName: node-1", api(kubelet_root, pods)?.display()))
}

/// An API server with so many pods. Returns the kubeconfig for it.
fn api(folder: &Path, pods: u32) -> anyhow::Result<PathBuf> {
    let (certificate, key) = certificate()?;
    fs::write(folder.join("ca.pem"), &certificate)?;
    let (listener, port) = tcp()?;
    let api = FakeApi::new(TOKEN);
    api.set_streams(Streams::Given);
    (0..pods).for_each(|number| api.put(manifest(number)));
    serve(move || api.serve(listener.into_listener(), (certificate, key)));
    kubeconfig(folder, &format!("https://127.0.0.1:{port}"))
}

fn certificate() -> anyhow::Result<(String, String)> {
    let signed = rcgen::generate_simple_self_signed([String::from("127.0.0.1")])?;
    Ok((signed.cert.pem(), signed.signing_key.serialize_pem()))
}

fn kubeconfig(folder: &Path, server: &str) -> anyhow::Result<PathBuf> {
    let path = folder.join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
         clusters: [{{name: k, cluster: {{server: '{server}', certificate-authority: ca.pem}}}}]\nusers: [{{name: u, user: {{token: {TOKEN}}}}}]\n"
    );
    fs::write(&path, text)?;
    Ok(path)
}

/// A socket that listens already, and becomes the runtime's in the thread that serves it.
struct Listening<L>(L);

fn unix(path: &Path) -> anyhow::Result<Listening<std::os::unix::net::UnixListener>> {
    let listener = std::os::unix::net::UnixListener::bind(path)
        .with_context(|| format!("cannot listen at {}", path.display()))?;
    listener.set_nonblocking(true)?;
    Ok(Listening(listener))
}

fn tcp() -> anyhow::Result<(Listening<std::net::TcpListener>, u16)> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port();
    Ok((Listening(listener), port))
}

impl Listening<std::os::unix::net::UnixListener> {
    #[expect(clippy::expect_used, reason = "it is called in a runtime")]
    fn into_listener(self) -> tokio::net::UnixListener {
        tokio::net::UnixListener::from_std(self.0).expect("a socket that does not block")
    }
}

impl Listening<std::net::TcpListener> {
    #[expect(clippy::expect_used, reason = "it is called in a runtime")]
    fn into_listener(self) -> tokio::net::TcpListener {
        tokio::net::TcpListener::from_std(self.0).expect("a socket that does not block")
    }
}

/// A runtime of its own for a fake, which serves as long as this program runs.
#[expect(clippy::print_stderr, reason = "a fake that ends is why nothing more comes")]
fn serve<F>(future: impl FnOnce() -> F + Send + 'static)
where
    F: Future<Output = std::io::Result<()>>,
{
    thread::spawn(move || {
        let served = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .and_then(|runtime| runtime.block_on(async { future().await }));
        eprintln!("a fake has ended: {served:?}");
    });
}
