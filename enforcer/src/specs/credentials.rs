//! The credentials for the kubelet's HTTPS server, and which server certificate to trust: from a kubeconfig, or from a
//! mounted service account. Files are read again for each question, because they are replaced while the daemon runs.

use std::{
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use serde::Deserialize;

use super::message::{Feed, HttpsFeed};
use crate::{
    network::{Certificates, Endpoint, Identity, Security, Trust},
    regular, trust,
};

/// The largest file that is read: a kubeconfig with certificates in it.
const MAX_BYTES: u64 = 256 << 10;

/// How long connecting may take, in milliseconds.
const CONNECT_TIMEOUT_MS: u64 = 5_000;

/// The files in which the kubelet keeps its serving certificate, below its root directory: that of a rotated one, which
/// has the key too, and that which it signed itself.
const SERVING: [&str; 2] = ["pki/kubelet-server-current.pem", "pki/kubelet.crt"];

/// Where the kubelet serves its Pods API, below its root directory.
const PODS_API: &str = "pods-api/pods-api.sock";

/// What begins and ends a certificate in PEM.
const CERTIFICATE: [&str; 2] = ["-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"];

/// Where to look for a kubelet and for credentials.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KubeletAccess {
    /// The kubelet's root directory, `/var/lib/kubelet` unless it is configured.
    pub kubelet_root: PathBuf,
    /// The port of the kubelet's HTTPS server.
    pub kubelet_port: u16,
    /// The kubeconfig, if it is configured.
    pub kubeconfig: Option<PathBuf>,
    /// Where a cluster mounts the token of a pod's service account.
    pub service_account: PathBuf,
}

/// What proves who this is, and whose certificates to trust.
struct Credentials {
    /// Whose certificates the API server's is signed by.
    authority: Option<Certificates>,
    identity: Option<Identity>,
    token: Option<String>,
}

/// Why a source cannot be asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialsError {
    /// There is neither a kubeconfig nor a mounted token.
    #[error("no credentials: set kubeconfig, or mount a service account's token at {}", .0.display())]
    None(PathBuf),
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The underlying error.
        #[source]
        source: io::Error,
    },
    /// Others than root may write to a file that decides whom to trust.
    #[error("{} decides whom to trust, and {why}: {remedy}", path.display())]
    Untrusted {
        /// The file or folder.
        path: PathBuf,
        /// Why it is not trusted.
        why: String,
        /// What to do.
        remedy: String,
    },
    /// It is not a kubeconfig that can be used.
    #[error("{}: {why}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The kubelet's certificate is in none of its files.
    #[error(
        "cannot verify the kubelet: no certificate in {}, and the credentials have no certificate authority; set \
         kubeletRootDir, or certificate-authority in the kubeconfig",
        .0.display()
    )]
    NoCertificate(PathBuf),
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Kubeconfig {
    current_context: String,
    contexts: Vec<Named<Context>>,
    clusters: Vec<Named<Cluster>>,
    users: Vec<Named<User>>,
}

/// An entry of one of the lists; its content has the list's name in the singular.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Named<T> {
    name: String,
    #[serde(alias = "context", alias = "cluster", alias = "user")]
    content: T,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Context {
    cluster: String,
    user: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Cluster {
    certificate_authority: Option<PathBuf>,
    certificate_authority_data: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct User {
    client_certificate: Option<PathBuf>,
    client_certificate_data: Option<String>,
    client_key: Option<PathBuf>,
    client_key_data: Option<String>,
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<PathBuf>,
    exec: Option<serde::de::IgnoredAny>,
    auth_provider: Option<serde::de::IgnoredAny>,
}

impl KubeletAccess {
    /// The kubelet's Pods API: a socket that takes root and no more.
    #[must_use]
    pub fn pods_api(&self) -> Feed {
        Feed::PodsApi(self.kubelet_root.join(PODS_API))
    }

    /// The kubelet's HTTPS server on this machine, with the credentials that there are now. `node` is the node's name. Fails
    /// if there are no credentials, a file cannot be read or trusted, or no certificate is known.
    pub fn kubelet(&self, node: &str) -> Result<Feed, CredentialsError> {
        let Credentials { authority, identity, token } = Credentials::read(self)?;
        let (trust, server_name) = match (self.serving_certificate()?, authority) {
            (Some(certificates), authority) => {
                (Trust::Pinned { certificates, authority }, Some(node.to_owned()))
            }
            (None, Some(authority)) => (Trust::Roots(authority), Some(node.to_owned())),
            (None, None) => return Err(CredentialsError::NoCertificate(self.kubelet_root.join("pki"))),
        };
        let host = String::from("127.0.0.1");
        let endpoint = Endpoint {
            client: String::from("kubelet"),
            tls: true,
            authority: format!("{host}:{}", self.kubelet_port),
            host,
            port: self.kubelet_port,
            connect_timeout_ms: CONNECT_TIMEOUT_MS,
        };
        let security = Security { trust, identity, server_name };
        Ok(Feed::Kubelet(Box::new(HttpsFeed { endpoint, security, token })))
    }

    /// The certificates that the kubelet may serve with, without a key that is in the same file.
    fn serving_certificate(&self) -> Result<Option<Certificates>, CredentialsError> {
        let mut found = String::new();
        for path in SERVING.map(|file| self.kubelet_root.join(file)) {
            let text = match read(&path) {
                Ok(text) => text,
                Err(CredentialsError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                    continue;
                }
                Err(error) => return Err(error),
            };
            found.push_str(&certificates(&text));
        }
        let path = self.kubelet_root.join("pki");
        Ok((!found.is_empty()).then(|| Certificates { path, bytes: found.into() }))
    }
}

impl Credentials {
    fn read(place: &KubeletAccess) -> Result<Self, CredentialsError> {
        if let Some(path) = &place.kubeconfig {
            return Self::of_kubeconfig(path);
        }
        let of_account = |file| place.service_account.join(file);
        let token = match read(&of_account("token")) {
            Ok(token) => Some(token.trim().to_owned()),
            Err(CredentialsError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Err(CredentialsError::None(place.service_account.clone()));
            }
            Err(error) => return Err(error),
        };
        Ok(Self { authority: Some(file(&of_account("ca.crt"))?), identity: None, token })
    }

    fn of_kubeconfig(path: &Path) -> Result<Self, CredentialsError> {
        let wrong = |why: String| CredentialsError::Kubeconfig { path: path.to_owned(), why };
        match trust::check_file(path)
            .map_err(|source| CredentialsError::Read { path: path.to_owned(), source })?
        {
            Ok(()) => {}
            Err((path, trust::Untrusted { why, remedy })) => {
                return Err(CredentialsError::Untrusted { path, why, remedy });
            }
        }
        let Kubeconfig { current_context, contexts, clusters, users } =
            serde_saphyr::from_str(&read(path)?).map_err(|error| wrong(place(&error)))?;
        let missing = |kind: &str, name: &str| wrong(format!("it has no {kind} {name:?}"));
        let context = find(contexts, &current_context).ok_or_else(|| missing("context", &current_context))?;
        let cluster = find(clusters, &context.cluster).ok_or_else(|| missing("cluster", &context.cluster))?;
        let user = find(users, &context.user).ok_or_else(|| missing("user", &context.user))?;
        if user.exec.is_some() || user.auth_provider.is_some() {
            let why = "its user gets credentials from a program, which enforcer does not run: give a token, a tokenFile or a \
                       client certificate";
            return Err(wrong(why.to_owned()));
        }
        let folder = path.parent().unwrap_or(Path::new("/"));
        let part = |file: Option<PathBuf>, data: Option<String>, name: &str| match (data, file) {
            (Some(data), _) => {
                let decoded = BASE64_STANDARD.decode(data.trim());
                let bytes = decoded.map_err(|error| wrong(format!("{name}-data is not base64: {error}")))?;
                Ok(Some(Certificates { path: path.to_owned(), bytes: bytes.into() }))
            }
            (None, Some(path)) => crate::specs::credentials::file(&folder.join(path)).map(Some),
            (None, None) => Ok(None),
        };
        let authority =
            part(cluster.certificate_authority, cluster.certificate_authority_data, "certificate-authority")?;
        let certificate = part(user.client_certificate, user.client_certificate_data, "client-certificate")?;
        let key = part(user.client_key, user.client_key_data, "client-key")?;
        let token = match (user.token_file, user.token) {
            (Some(file), _) => Some(read(&folder.join(file))?.trim().to_owned()),
            (None, token) => token.map(|token| token.trim().to_owned()),
        };
        let identity = certificate.zip(key).map(|(certificates, key)| Identity { certificates, key });
        if identity.is_none() && token.is_none() {
            return Err(wrong(String::from(
                "its user has neither a token nor a client certificate with its key",
            )));
        }
        Ok(Self { authority, identity, token })
    }
}

/// Where a kubeconfig is wrong. What it says there may be a secret.
fn place(error: &serde_saphyr::Error) -> String {
    let line = error.location().map(|location| format!(" on line {}", location.line()));
    format!("it is not a kubeconfig: the YAML is wrong{}", line.unwrap_or_default())
}

fn find<T>(list: Vec<Named<T>>, name: &str) -> Option<T> {
    list.into_iter().find(|entry| entry.name == name).map(|entry| entry.content)
}

fn file(path: &Path) -> Result<Certificates, CredentialsError> {
    Ok(Certificates { path: path.to_owned(), bytes: Bytes::from(read(path)?) })
}

fn read(path: &Path) -> Result<String, CredentialsError> {
    let mut text = String::new();
    let reading = regular::open(path).and_then(|file| file.take(MAX_BYTES).read_to_string(&mut text));
    reading.map(|_| text).map_err(|source| CredentialsError::Read { path: path.to_owned(), source })
}

/// The certificates of a PEM file, and nothing else of it.
fn certificates(text: &str) -> String {
    let [begin, end] = CERTIFICATE;
    let mut found = String::new();
    let mut rest = text;
    while let Some((_, from)) = rest.split_once(begin)
        && let Some((body, behind)) = from.split_once(end)
    {
        found.extend([begin, body, end, "\n"]);
        rest = behind;
    }
    found
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    const KEY: &str = "-----BEGIN PRIVATE KEY-----\nBBBB\n-----END PRIVATE KEY-----\n";

    struct Scene {
        folder: tempfile::TempDir,
        place: KubeletAccess,
    }

    impl Scene {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let at = |name: &str| folder.path().join(name);
            let place = KubeletAccess {
                kubelet_root: at("kubelet"),
                kubelet_port: 10_250,
                kubeconfig: None,
                service_account: at("account"),
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
            match self.place.kubelet("node-1") {
                Ok(Feed::Kubelet(feed)) => Ok(*feed),
                Ok(other) => panic!("{other:?}"),
                Err(error) => Err(crate::chain(&error)),
            }
        }
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
        scene.write(
            "kubelet/pki/kubelet-server-current.pem",
            &format!("{KEY}{CERTIFICATE}{CERTIFICATE}{KEY}"),
        );
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
}
