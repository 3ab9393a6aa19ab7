//! Where the kubelet's HTTPS server and the API server are, who this is to them, and which server certificate to trust: from
//! a kubeconfig, or from a mounted service account. Files are looked at anew each time, because they are
//! replaced while the daemon runs.

mod files;

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use hyper::Uri;
use serde::Deserialize;

use self::files::Files;
use super::message::{ApiServerFeed, Feed, HttpsFeed};
use crate::{
    helper::is_name,
    network::{Certificates, Endpoint, Identity, Security, Trust},
};

/// How long connecting may take, in milliseconds.
const CONNECT_TIMEOUT_MS: u64 = 5_000;

/// The files in which the kubelet keeps its serving certificate: that of a rotated one, which has the key too, and that which
/// it signed itself.
const SERVING: [&str; 2] = ["kubelet-server-current.pem", "kubelet.crt"];

/// Where the kubelet serves its Pods API, below its root directory.
const PODS_API: &str = "pods-api/pods-api.sock";

/// What begins and ends a certificate in PEM.
const CERTIFICATE: [&str; 2] = ["-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"];

/// Where to look for a kubelet, for the API server, and for credentials.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ClusterAccess {
    /// Where the kubelet keeps its certificate and its sockets.
    pub kubelet: KubeletFolders,
    /// The port of the kubelet's HTTPS server.
    pub kubelet_port: u16,
    /// The kubeconfig, if it is configured.
    pub kubeconfig: Option<PathBuf>,
    /// Where a cluster mounts the token of a pod's service account.
    pub service_account: PathBuf,
    /// Host and port of the API server as a cluster gives them to a pod, if it did.
    pub in_cluster: Option<(String, String)>,
}

/// Where a kubelet keeps what others read.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KubeletFolders {
    /// Its root directory (`--root-dir`).
    pub root: PathBuf,
    /// Where its certificate is (`--cert-dir`).
    pub certificates: PathBuf,
}

impl Default for KubeletFolders {
    /// Those of a kubelet without flags (`NewKubeletFlags` in `cmd/kubelet/app/options`): the one does not follow the other.
    fn default() -> Self {
        Self::below(Path::new("/var/lib/kubelet"))
    }
}

impl KubeletFolders {
    /// Those of a kubelet that keeps everything in that root directory.
    #[must_use]
    pub fn below(root: &Path) -> Self {
        Self { root: root.to_owned(), certificates: root.join("pki") }
    }
}

/// What was made of credentials last, for as long as their files stay the same.
pub struct KeptCredentials<F> {
    last: Option<Kept<F>>,
}

struct Kept<F> {
    /// The node's name that it is for, and where it was looked for.
    node: String,
    place: ClusterAccess,
    files: Files,
    feed: F,
}

/// What proves who this is, and whose certificates to trust.
struct Credentials {
    /// Who has signed the API server's certificate.
    authority: Option<Certificates>,
    identity: Option<Identity>,
    token: Option<String>,
    /// Where the API server is; `None` if the cluster did not say it.
    server: Option<ServerPlace>,
}

/// Where the API server is, as it is written.
#[derive(Default)]
struct ServerPlace {
    url: String,
    /// The name that its certificate must have, if that is not the host's.
    tls_server_name: Option<String>,
    /// What makes it impossible to use, and what to do.
    obstacle: Option<&'static str>,
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
    /// It is not known where the API server is.
    #[error(
        "no address of the API server: set kubeconfig, or run where KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT say it"
    )]
    NoServer,
    /// The address of the API server cannot be used.
    #[error("{server:?} of {} is not the address of an API server: {why}", place.display())]
    Server {
        /// Where it is written.
        place: PathBuf,
        /// The address.
        server: String,
        /// What is wrong with it.
        why: String,
    },
    /// No node can have that name.
    #[error("{0:?} cannot be a node's name, which has only a-z, 0-9, '-' and '.': set nodeName")]
    Node(String),
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
    server: String,
    tls_server_name: Option<String>,
    insecure_skip_tls_verify: bool,
    proxy_url: Option<serde::de::IgnoredAny>,
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

impl<F> Default for KeptCredentials<F> {
    fn default() -> Self {
        Self { last: None }
    }
}

impl<F> fmt::Debug for KeptCredentials<F> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("KeptCredentials").finish_non_exhaustive()
    }
}

impl<F: Clone> KeptCredentials<F> {
    /// What `read` made of the files last, if it is for that node and place and none of them has changed; or else what it makes
    /// now.
    fn get(
        &mut self,
        (node, place): (&str, &ClusterAccess),
        read: impl FnOnce(&mut Files) -> Result<F, CredentialsError>,
    ) -> Result<F, CredentialsError> {
        match self.last.take() {
            Some(kept) if kept.node == node && kept.place == *place && kept.files.are_as_read() => {
                return Ok(self.last.insert(kept).feed.clone());
            }
            _ => {}
        }
        let mut files = Files::default();
        let feed = read(&mut files)?;
        self.last = Some(Kept { node: node.to_owned(), place: place.clone(), files, feed: feed.clone() });
        Ok(feed)
    }
}

impl ClusterAccess {
    /// The kubelet's Pods API: a socket that takes root and no more.
    #[must_use]
    pub fn pods_api(&self) -> Feed {
        Feed::PodsApi(self.kubelet.root.join(PODS_API))
    }

    /// The kubelet's HTTPS server on this machine, with the credentials that there are now. `node` is the node's name. Files
    /// that are as they were when `kept` was made are not read again. Fails if there are no credentials, a file cannot be read
    /// or trusted, or no certificate is known.
    pub fn kubelet(&self, node: &str, kept: &mut KeptCredentials<Feed>) -> Result<Feed, CredentialsError> {
        kept.get((node, self), |files| self.read_kubelet(node, files))
    }

    fn read_kubelet(&self, node: &str, files: &mut Files) -> Result<Feed, CredentialsError> {
        let Credentials { authority, identity, token, server: _ } = Credentials::read(self, files)?;
        let (trust, server_name) = match (self.serving_certificate(files)?, authority) {
            (Some(certificates), authority) => {
                (Trust::Pinned { certificates, authority }, Some(node.to_owned()))
            }
            (None, Some(authority)) => (Trust::Roots(authority), Some(node.to_owned())),
            (None, None) => return Err(CredentialsError::NoCertificate(self.kubelet.certificates.clone())),
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

    /// The API server, for the pods of the node of that name, with the credentials that there are now. Files that are as they
    /// were when `kept` was made are not read again. Fails if there are none, a file cannot be read or trusted, or the server
    /// cannot be verified or its address is not known.
    pub fn api_server(
        &self,
        node: &str,
        kept: &mut KeptCredentials<ApiServerFeed>,
    ) -> Result<ApiServerFeed, CredentialsError> {
        kept.get((node, self), |files| self.read_api_server(node, files))
    }

    fn read_api_server(&self, node: &str, files: &mut Files) -> Result<ApiServerFeed, CredentialsError> {
        let is_of_a_name = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.');
        if !is_name(node) || !node.bytes().all(is_of_a_name) {
            return Err(CredentialsError::Node(node.to_owned()));
        }
        let Credentials { authority, identity, token, server } = Credentials::read(self, files)?;
        let ServerPlace { url, tls_server_name, obstacle } = server.ok_or(CredentialsError::NoServer)?;
        let place = self.kubeconfig.clone().unwrap_or_else(|| PathBuf::from("KUBERNETES_SERVICE_HOST"));
        if let Some(why) = obstacle {
            return Err(CredentialsError::Kubeconfig { path: place, why: why.to_owned() });
        }
        let (endpoint, base) =
            endpoint(&url).map_err(|why| CredentialsError::Server { place, server: url, why })?;
        // As other clients do, where the kubeconfig names no authority.
        let trust = authority.map_or(Trust::System, Trust::Roots);
        let security = Security { trust, identity, server_name: tls_server_name };
        let https = HttpsFeed { endpoint, security, token };
        Ok(ApiServerFeed { https, base, node: node.to_owned() })
    }

    /// The certificates that the kubelet may serve with, without a key that is in the same file.
    fn serving_certificate(&self, files: &mut Files) -> Result<Option<Certificates>, CredentialsError> {
        let mut found = String::new();
        for path in SERVING.map(|file| self.kubelet.certificates.join(file)) {
            let text = match files.read(&path) {
                Ok(text) => text,
                Err(CredentialsError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                    continue;
                }
                Err(error) => return Err(error),
            };
            found.push_str(&certificates(&text));
        }
        let path = self.kubelet.certificates.clone();
        Ok((!found.is_empty()).then(|| Certificates { path, bytes: found.into() }))
    }
}

impl Credentials {
    fn read(place: &ClusterAccess, files: &mut Files) -> Result<Self, CredentialsError> {
        if let Some(path) = &place.kubeconfig {
            return Self::of_kubeconfig(path, files);
        }
        let of_account = |file| place.service_account.join(file);
        let token = match files.read(&of_account("token")) {
            Ok(token) => Some(token.trim().to_owned()),
            Err(CredentialsError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Err(CredentialsError::None(place.service_account.clone()));
            }
            Err(error) => return Err(error),
        };
        let server = place.in_cluster.as_ref().map(|(host, port)| {
            let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
            ServerPlace { url: format!("https://{host}:{port}"), ..ServerPlace::default() }
        });
        let authority = Some(certificates_in(files, &of_account("ca.crt"))?);
        Ok(Self { authority, identity: None, token, server })
    }

    fn of_kubeconfig(path: &Path, files: &mut Files) -> Result<Self, CredentialsError> {
        let wrong = |why: String| CredentialsError::Kubeconfig { path: path.to_owned(), why };
        let Kubeconfig { current_context, contexts, clusters, users } =
            serde_saphyr::from_str(&files.read_trusted(path)?).map_err(|error| wrong(place(&error)))?;
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
        let mut part = |file: Option<PathBuf>, data: Option<String>, name: &str| match (data, file) {
            (Some(data), _) => {
                let decoded = BASE64_STANDARD.decode(data.trim());
                let bytes = decoded.map_err(|error| wrong(format!("{name}-data is not base64: {error}")))?;
                Ok(Some(Certificates { path: path.to_owned(), bytes: bytes.into() }))
            }
            (None, Some(path)) => certificates_in(files, &folder.join(path)).map(Some),
            (None, None) => Ok(None),
        };
        let authority =
            part(cluster.certificate_authority, cluster.certificate_authority_data, "certificate-authority")?;
        let certificate = part(user.client_certificate, user.client_certificate_data, "client-certificate")?;
        let key = part(user.client_key, user.client_key_data, "client-key")?;
        let token = match (user.token_file, user.token) {
            (Some(file), _) => Some(files.read(&folder.join(file))?.trim().to_owned()),
            (None, token) => token.map(|token| token.trim().to_owned()),
        };
        let identity = certificate.zip(key).map(|(certificates, key)| Identity { certificates, key });
        if identity.is_none() && token.is_none() {
            return Err(wrong(String::from(
                "its user has neither a token nor a client certificate with its key",
            )));
        }
        let obstacle = if cluster.insecure_skip_tls_verify {
            Some(
                "its cluster has insecure-skip-tls-verify, and enforcer gives its credentials to no server that it cannot \
                 verify: give certificate-authority or certificate-authority-data",
            )
        } else {
            let by_proxy =
                "its cluster has a proxy-url, which enforcer does not use: give a server that can be reached";
            cluster.proxy_url.map(|_| by_proxy)
        };
        let server = ServerPlace { url: cluster.server, tls_server_name: cluster.tls_server_name, obstacle };
        Ok(Self { authority, identity, token, server: Some(server) })
    }
}

/// Where the server of that URL is, and what the paths of its resources begin with.
fn endpoint(url: &str) -> Result<(Endpoint, String), String> {
    let uri: Uri = url.parse().map_err(|error| format!("{error}"))?;
    if uri.scheme_str() != Some("https") {
        return Err(String::from("it must begin with https://, as credentials are sent there"));
    }
    let authority = uri.authority().ok_or("it has no host")?;
    if authority.as_str().contains('@') || uri.query().is_some() {
        return Err(String::from("it must have no user and no query"));
    }
    let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
    let port = match (authority.port_u16(), authority.as_str().strip_prefix(authority.host())) {
        (Some(port), _) => port,
        (None, Some("")) => 443,
        (None, _) => return Err(String::from("its port is not a number from 1 to 65535")),
    };
    let endpoint = Endpoint {
        client: String::from("apiServer"),
        tls: true,
        authority: format!("{}:{port}", authority.host()),
        host,
        port,
        connect_timeout_ms: CONNECT_TIMEOUT_MS,
    };
    Ok((endpoint, uri.path().trim_end_matches('/').to_owned()))
}

/// Where a kubeconfig is wrong. What it says there may be a secret.
fn place(error: &serde_saphyr::Error) -> String {
    let line = error.location().map(|location| format!(" on line {}", location.line()));
    format!("it is not a kubeconfig: the YAML is wrong{}", line.unwrap_or_default())
}

fn find<T>(list: Vec<Named<T>>, name: &str) -> Option<T> {
    list.into_iter().find(|entry| entry.name == name).map(|entry| entry.content)
}

fn certificates_in(files: &mut Files, path: &Path) -> Result<Certificates, CredentialsError> {
    Ok(Certificates { path: path.to_owned(), bytes: Bytes::from(files.read(path)?) })
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
mod tests;
