use std::{fs, os::unix::fs::PermissionsExt as _};

use super::*;

const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
const KEY: &str = "-----BEGIN PRIVATE KEY-----\nBBBB\n-----END PRIVATE KEY-----\n";

struct Scene {
    folder: tempfile::TempDir,
    place: ClusterAccess,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let place = ClusterAccess {
            kubelet: KubeletFolders::below(&at("kubelet")),
            kubelet_port: 10_250,
            kubeconfig: None,
            service_account: at("account"),
            in_cluster: None,
        };
        Self { folder, place }
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    fn kubelet(&self) -> Result<HttpsFeed, String> {
        match self.place.kubelet("node-1", &mut KeptCredentials::default()) {
            Ok(Feed::Kubelet(feed)) => Ok(*feed),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(crate::chain(&error)),
        }
    }
}

impl Scene {
    fn api_server(&self) -> Result<ApiServerFeed, String> {
        self.api_server_for("node-1")
    }

    fn api_server_for(&self, node: &str) -> Result<ApiServerFeed, String> {
        self.place.api_server(node, &mut KeptCredentials::default()).map_err(|error| crate::chain(&error))
    }
}

#[test]
fn what_is_kept_is_of_that_node_and_place_and_of_files_that_are_the_same() {
    let scene = Scene::new();
    let token = scene.write("token", "abc");
    let mut kept = KeptCredentials::default();
    let mut count = 0;
    let mut get_at = |place: &ClusterAccess, node: &str, path: Option<&Path>| {
        let read = kept.get((node, place), |files| {
            count += 1;
            path.map_or_else(|| Ok(String::new()), |path| files.read(path))
        });
        (read.ok(), count)
    };
    let mut get = |node: &str, path: Option<&Path>| get_at(&scene.place, node, path);
    let nothing = Some(String::new());
    assert_eq!([get("a", None), get("a", None)], [(nothing.clone(), 1), (nothing.clone(), 1)]);
    assert_eq!([get("b", None), get("b", None)], [(nothing.clone(), 2), (nothing.clone(), 2)]);
    assert_eq!(get("c", Some(&token)), (Some(String::from("abc")), 3));
    assert_eq!(get("c", Some(&token)), (Some(String::from("abc")), 4), "it was just written");
    fs::remove_file(&token).unwrap();
    assert_eq!([get("c", Some(&token)), get("c", Some(&token))], [(None, 5), (None, 6)], "no error is kept");
    assert_eq!(get("c", None), (nothing.clone(), 7));
    let kubelet = KubeletFolders::below(Path::new("/elsewhere"));
    let elsewhere = ClusterAccess { kubelet, ..scene.place.clone() };
    assert_eq!(get_at(&elsewhere, "c", None), (nothing.clone(), 8));
    assert_eq!(get_at(&elsewhere, "c", None), (nothing, 8));
}

#[test]
fn the_kubelets_own_certificate_is_pinned_without_its_key() {
    let scene = Scene::new();
    scene.write("account/token", "abc\n");
    scene.write("account/ca.crt", CERTIFICATE);
    let feed = scene.kubelet().unwrap();
    assert_eq!(feed.token.as_deref(), Some("abc"));
    assert_eq!(feed.security.server_name.as_deref(), Some("node-1"));
    assert!(matches!(&feed.security.trust, Trust::Roots(file) if file.bytes == CERTIFICATE));

    scene.write("kubelet/pki/kubelet.crt", CERTIFICATE);
    scene.write("kubelet/pki/kubelet-server-current.pem", &format!("{KEY}{CERTIFICATE}{CERTIFICATE}{KEY}"));
    let feed = scene.kubelet().unwrap();
    let Trust::Pinned { certificates, authority } = &feed.security.trust else { panic!("not pinned") };
    assert_eq!(certificates.bytes, CERTIFICATE.repeat(3));
    assert!(authority.is_some());
    assert_eq!(feed.endpoint.authority, "127.0.0.1:10250");
}

#[test]
fn without_credentials_it_says_what_to_set() {
    let scene = Scene::new();
    let why = scene.kubelet().unwrap_err();
    assert!(why.contains("kubeconfig") && why.contains("account"), "{why}");
}

/// A kubeconfig as `kubeadm` and `kubectl` write it, with a user of these lines.
fn kubeconfig(user: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\npreferences: {{}}\n\
         contexts:\n- name: other\n  context: {{cluster: none, user: none}}\n\
         - name: c\n  context: {{cluster: k, user: u}}\n\
         clusters:\n- name: k\n  cluster:\n    server: https://10.0.0.1:6443\n    certificate-authority: ca.crt\n\
         users:\n- name: u\n  user:\n{user}"
    )
}

#[test]
fn a_kubeconfig_gives_a_token_or_a_certificate() {
    let mut scene = Scene::new();
    scene.write("etc/ca.crt", CERTIFICATE);
    scene.write("etc/token", "from a file\n");
    scene.write("etc/cert.pem", CERTIFICATE);
    let key = BASE64_STANDARD.encode(KEY);
    for (user, token, has_identity) in [
        ("    token: abc\n", Some("abc"), false),
        ("    token: abc\n    tokenFile: token\n", Some("from a file"), false),
        (&format!("    client-certificate: cert.pem\n    client-key-data: {key}\n"), None, true),
    ] {
        scene.place.kubeconfig = Some(scene.write("etc/kubelet.conf", &kubeconfig(user)));
        let feed = scene.kubelet().unwrap();
        assert_eq!(
            (feed.token.as_deref(), feed.security.identity.is_some()),
            (token, has_identity),
            "{user}"
        );
        assert!(!format!("{:?}", feed.security.identity).contains("BBBB"));
    }
}

#[test]
fn a_kubeconfig_that_cannot_be_used_says_why() {
    let mut scene = Scene::new();
    scene.write("etc/ca.crt", CERTIFICATE);
    for (text, why) in [
        (kubeconfig("    exec: {command: aws}\n"), "a program"),
        (kubeconfig("    client-certificate-data: '!'\n"), "client-certificate-data"),
        (kubeconfig("    client-certificate: none.pem\n"), "none.pem"),
        (kubeconfig("    username: x\n"), "neither a token"),
        (
            kubeconfig("    token: a\n").replace("current-context: c", "current-context: x"),
            "no context \"x\"",
        ),
        (kubeconfig("    token: a\n").replace("user: u", "user: x"), "no user \"x\""),
        (String::from("["), "etc/kubelet.conf"),
        (kubeconfig("    token: [secret\n"), "on line"),
    ] {
        scene.place.kubeconfig = Some(scene.write("etc/kubelet.conf", &text));
        let error = scene.kubelet().unwrap_err();
        assert!(error.contains(why) && !error.contains("secret"), "{error}");
    }
    let path = scene.write("etc/kubelet.conf", &kubeconfig("    token: a\n"));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    let error = scene.kubelet().unwrap_err();
    assert!(error.contains("whom to trust"), "{error}");
}

/// A link on the way could be turned between the check of its ends and the reading.
#[test]
fn a_kubeconfig_that_is_reached_through_a_folder_of_others_is_refused() {
    let mut scene = Scene::new();
    scene.write("etc/ca.crt", CERTIFICATE);
    let at = |name: &str| scene.folder.path().join(name);
    scene.write("etc/kubelet.conf", &kubeconfig("    token: a\n"));
    fs::create_dir(at("shared")).unwrap();
    std::os::unix::fs::symlink("../etc/kubelet.conf", at("shared/hop")).unwrap();
    std::os::unix::fs::symlink("../shared/hop", at("etc/link")).unwrap();
    let (shared, link) = (at("shared"), at("etc/link"));
    scene.place.kubeconfig = Some(link);
    for (mode, is_safe) in [(0o755, true), (0o777, false)] {
        fs::set_permissions(&shared, fs::Permissions::from_mode(mode)).unwrap();
        let feed = scene.api_server();
        assert_eq!(feed.is_ok(), is_safe, "{mode:o}");
        assert!(is_safe || feed.unwrap_err().contains("shared"), "{mode:o}");
    }
}

#[test]
fn a_kubeconfig_says_where_the_api_server_is() {
    let mut scene = Scene::new();
    scene.write("etc/ca.crt", CERTIFICATE);
    let with = |server: &str, more: &str| {
        let text = kubeconfig("    token: a\n");
        text.replace("https://10.0.0.1:6443", server).replace("ca.crt\n", &format!("ca.crt\n{more}"))
    };
    for (server, host, port, authority, base) in [
        ("https://10.0.0.1:6443", "10.0.0.1", 6443, "10.0.0.1:6443", ""),
        ("https://api.example/", "api.example", 443, "api.example:443", ""),
        ("'https://[fd00::1]:6443/k8s/c-1/'", "fd00::1", 6443, "[fd00::1]:6443", "/k8s/c-1"),
    ] {
        scene.place.kubeconfig =
            Some(scene.write("etc/k.conf", &with(server, "    tls-server-name: kubernetes\n")));
        let feed = scene.api_server().unwrap();
        let Endpoint { host: its, port: own, authority: shown, .. } = &feed.https.endpoint;
        assert_eq!((its.as_str(), *own, shown.as_str(), feed.base.as_str()), (host, port, authority, base));
        assert_eq!(feed.https.security.server_name.as_deref(), Some("kubernetes"));
        assert!(matches!(&feed.https.security.trust, Trust::Roots(file) if file.bytes == CERTIFICATE));
    }
    let secure = "https://10.0.0.1";
    for (server, more, why) in [
        ("http://10.0.0.1", "", "https://"),
        ("10.0.0.1:6443", "", "https://"),
        ("https://a:b@10.0.0.1", "", "no user"),
        ("https://10.0.0.1:70000", "", "port"),
        ("''", "", "is not the address"),
        (secure, "    insecure-skip-tls-verify: true\n", "certificate-authority"),
        (secure, "    proxy-url: http://proxy\n", "proxy-url"),
    ] {
        scene.place.kubeconfig = Some(scene.write("etc/k.conf", &with(server, more)));
        let error = scene.api_server().unwrap_err();
        assert!(error.contains(why) && error.contains("k.conf"), "{error}");
        assert!(scene.kubelet().is_ok(), "the kubelet is elsewhere");
    }
    let text = kubeconfig("    token: a\n").replace("    certificate-authority: ca.crt\n", "");
    scene.place.kubeconfig = Some(scene.write("etc/k.conf", &text));
    assert_eq!(scene.api_server().unwrap().https.security.trust, Trust::System);
    for wrong in ["", "a,metadata.namespace=b", "Node", "a/b"] {
        assert!(scene.api_server_for(wrong).unwrap_err().contains("nodeName"), "{wrong}");
    }
}

#[test]
fn a_pod_finds_its_api_server() {
    let mut scene = Scene::new();
    assert!(scene.api_server().unwrap_err().contains("no credentials"));
    scene.write("account/token", "abc\n");
    scene.write("account/ca.crt", CERTIFICATE);
    assert!(scene.api_server().unwrap_err().contains("KUBERNETES_SERVICE_HOST"));
    for (host, authority) in [("10.0.0.1", "10.0.0.1:443"), ("fd00::1", "[fd00::1]:443")] {
        scene.place.in_cluster = Some((host.to_owned(), String::from("443")));
        let feed = scene.api_server().unwrap();
        assert_eq!(
            (feed.https.endpoint.authority.as_str(), feed.https.endpoint.host.as_str()),
            (authority, host)
        );
        assert_eq!(feed.https.token.as_deref(), Some("abc"));
    }
    // The cluster replaces it while the daemon runs.
    scene.write("account/token", "def\n");
    assert_eq!(scene.api_server().unwrap().https.token.as_deref(), Some("def"));
    scene.place.in_cluster = Some((String::from("10.0.0.1"), String::from("x")));
    assert!(scene.api_server().unwrap_err().contains("KUBERNETES_SERVICE_HOST"));
}
