use std::{
    fs,
    net::SocketAddr,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring as provider,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsConnector;

use super::*;
use crate::{
    metrics::Format,
    network::fake::{Authority, Validity},
};

/// The name in the server's certificate.
const NODE: &str = "node";

const TOKEN: &str = "a-token-of-some-length";

/// A folder like a mounted Secret: its files are symlinks through `..data`, which is replaced as a whole.
struct Secret {
    folder: TempDir,
    count: usize,
}

impl Secret {
    fn new(files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, _) in files {
            symlink(Path::new("..data").join(name), folder.path().join(name)).unwrap();
        }
        let mut secret = Self { folder, count: 0 };
        secret.replace(files);
        secret
    }

    fn replace(&mut self, files: &[(&str, &str)]) {
        self.count += 1;
        let version = format!("..version{}", self.count);
        fs::create_dir(self.folder.path().join(&version)).unwrap();
        for (name, text) in files {
            fs::write(self.folder.path().join(&version).join(name), text).unwrap();
        }
        let next = self.folder.path().join("..data_tmp");
        symlink(&version, &next).unwrap();
        fs::rename(next, self.folder.path().join("..data")).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn files(&self, client_ca: bool, token: bool) -> MetricsFiles {
        MetricsFiles {
            cert: self.path("tls.crt"),
            key: self.path("tls.key"),
            client_ca: client_ca.then(|| self.path("ca.crt")),
            token: token.then(|| self.path("token")),
        }
    }
}

type Reports = Arc<Mutex<Vec<Option<String>>>>;

struct Server {
    address: SocketAddr,
    reports: Reports,
    started: Arc<Mutex<usize>>,
    _stop: watch::Sender<bool>,
}

impl Server {
    /// One whose process is a thread.
    fn start(files: MetricsFiles) -> Self {
        Self::serving(files, Scrape::by(|format| Ok(format!("{format:?} 1\n"))))
    }

    /// The same with other metrics.
    fn serving(files: MetricsFiles, scrape: Scrape) -> Self {
        Self::start_with(files, scrape, |theirs, listener| {
            theirs.set_nonblocking(true)?;
            listener.set_nonblocking(true)?;
            thread::spawn(move || {
                let runtime = Builder::new_current_thread().enable_all().build().unwrap();
                let served = runtime.block_on(async {
                    let listener = TcpListener::from_std(listener)?;
                    process::serve(UnixStream::from_std(theirs)?, listener).await
                });
                drop(served);
            });
            Ok(None)
        })
    }

    fn start_with(
        files: MetricsFiles,
        scrape: Scrape,
        mut spawn: impl FnMut(StdStream, StdListener) -> io::Result<Option<Child>> + Send + 'static,
    ) -> Self {
        let reports = Reports::default();
        let reported = Arc::clone(&reports);
        let (stop, stopping) = watch::channel(false);
        let service = Service {
            files,
            hosts: vec![NODE.to_owned()],
            scrape,
            report: Box::new(move |problem| {
                reported.lock().unwrap().push(problem.map(str::to_owned));
            }),
            problem: None,
            reread: Duration::from_millis(10),
        };
        let started = Arc::new(Mutex::new(0));
        let count = Arc::clone(&started);
        let metrics = SecureMetrics::start_with(service, stopping, move |theirs, listener| {
            *count.lock().unwrap() += 1;
            spawn(theirs, listener)
        });
        let listener = StdListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        metrics.unwrap().0.send(listener).unwrap();
        Self { address, reports, started, _stop: stop }
    }

    fn reports(&self) -> Vec<Option<String>> {
        self.reports.lock().unwrap().clone()
    }

    /// Waits until a problem is reported, and returns it.
    async fn problem(&self) -> String {
        loop {
            if let Some(Some(problem)) = self.reports().last() {
                return problem.clone();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn no_problem(&self) {
        while self.reports().last() != Some(&None) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// A client that trusts this authority, and shows that certificate.
fn client(trusted: &Authority, own: Option<&(String, String)>) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(trusted.pem().as_bytes()).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(provider::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match own {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    };
    TlsConnector::from(Arc::new(config))
}

/// The whole answer to a request with these headers.
async fn ask(address: SocketAddr, client: &TlsConnector, headers: &str) -> io::Result<String> {
    let stream = TcpStream::connect(address).await?;
    let mut stream = client.connect(ServerName::try_from(NODE).unwrap(), stream).await?;
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {NODE}\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

fn assert_has_metrics(answer: &io::Result<String>) {
    let has = |text: &String| text.starts_with("HTTP/1.1 200") && text.ends_with("OpenMetrics 1\n");
    assert!(answer.as_ref().is_ok_and(has), "{answer:?}");
}

fn assert_is_unauthorized(answer: &io::Result<String>) {
    let is = |text: &String| {
        text.starts_with("HTTP/1.1 401")
            && text.contains("www-authenticate: Bearer\r\n")
            && !text.contains("OpenMetrics")
    };
    assert!(answer.as_ref().is_ok_and(is), "{answer:?}");
}

/// Asks until the answer is so: files are read again in a while.
async fn until(
    address: SocketAddr,
    client: &TlsConnector,
    headers: &str,
    is_so: impl Fn(&io::Result<String>) -> bool,
) -> io::Result<String> {
    loop {
        let answer = ask(address, client, headers).await;
        if is_so(&answer) {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A server for whoever shows the token, with what its files are in.
fn with_token() -> (Authority, Secret, Server) {
    let authority = Authority::new().unwrap();
    let (certificate, key) = authority.sign(NODE, Validity::Valid).unwrap();
    let secret = Secret::new(&[("tls.crt", &certificate), ("tls.key", &key), ("token", TOKEN)]);
    let server = Server::start(secret.files(false, true));
    (authority, secret, server)
}

#[tokio::test]
async fn who_shows_the_token_gets_the_metrics_and_no_other_client() {
    let (authority, _secret, server) = with_token();
    let client = client(&authority, None);
    assert_has_metrics(&ask(server.address, &client, &bearer(TOKEN)).await);
    assert_is_unauthorized(&ask(server.address, &client, "").await);
    assert_is_unauthorized(&ask(server.address, &client, &bearer("another-token-of-some-length")).await);
    let classic = format!("{}Accept: text/plain\r\n", bearer(TOKEN));
    let answer = ask(server.address, &client, &classic).await.unwrap();
    assert!(answer.ends_with("Classic 1\n"), "{answer}");
    let foreign = ask(server.address, &client, &format!("{}Host: evil.example\r\n", bearer(TOKEN))).await;
    assert!(foreign.unwrap().starts_with("HTTP/1.1 421"), "two hosts");
    // Without TLS there is no answer in HTTP.
    let mut plain = TcpStream::connect(server.address).await.unwrap();
    plain.write_all(format!("GET /metrics HTTP/1.0\r\n{}\r\n", bearer(TOKEN)).as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // The connection may be reset instead of closed.
    drop(plain.read_to_end(&mut answer).await);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    assert!(server.reports().is_empty(), "nothing is wrong");
}

#[tokio::test]
async fn without_tokens_the_handshake_takes_a_certificate_of_the_authority() {
    let authority = Authority::new().unwrap();
    let (certificate, key) = authority.sign(NODE, Validity::Valid).unwrap();
    let readers = Authority::new().unwrap();
    let secret = Secret::new(&[("tls.crt", &certificate), ("tls.key", &key), ("ca.crt", &readers.pem())]);
    let server = Server::start(secret.files(true, false));
    let signed = |by: &Authority, validity| by.sign("prometheus", validity).unwrap();
    let right = signed(&readers, Validity::Valid);
    assert_has_metrics(&ask(server.address, &client(&authority, Some(&right)), "").await);
    for wrong in [None, Some(signed(&authority, Validity::Valid)), Some(signed(&readers, Validity::Expired))]
    {
        let answer = ask(server.address, &client(&authority, wrong.as_ref()), &bearer(TOKEN)).await;
        assert!(answer.is_err(), "{answer:?}");
    }
}

#[tokio::test]
async fn with_tokens_and_an_authority_either_is_enough() {
    let authority = Authority::new().unwrap();
    let (certificate, key) = authority.sign(NODE, Validity::Valid).unwrap();
    let ca = authority.pem();
    let secret =
        Secret::new(&[("tls.crt", &certificate), ("tls.key", &key), ("ca.crt", &ca), ("token", TOKEN)]);
    let server = Server::start(secret.files(true, true));
    let own = authority.sign("prometheus", Validity::Valid).unwrap();
    assert_has_metrics(&ask(server.address, &client(&authority, Some(&own)), "").await);
    assert_has_metrics(&ask(server.address, &client(&authority, None), &bearer(TOKEN)).await);
    assert_is_unauthorized(&ask(server.address, &client(&authority, None), "").await);
}

#[tokio::test]
async fn certificates_and_tokens_are_in_force_once_they_are_replaced() {
    let [old, new] = [(); 2].map(|()| Authority::new().unwrap());
    let (certificate, key) = old.sign(NODE, Validity::Valid).unwrap();
    let mut secret = Secret::new(&[("tls.crt", &certificate), ("tls.key", &key), ("token", TOKEN)]);
    let server = Server::start(secret.files(false, true));
    let [with_old, with_new] = [&old, &new].map(|authority| client(authority, None));
    assert_has_metrics(&ask(server.address, &with_old, &bearer(TOKEN)).await);
    let (certificate, key) = new.sign(NODE, Validity::Valid).unwrap();
    let next = "the-next-token-of-some-length";
    secret.replace(&[("tls.crt", &certificate), ("tls.key", &key), ("token", next)]);
    until(server.address, &with_new, &bearer(next), |answer| {
        answer.as_ref().is_ok_and(|text| text.starts_with("HTTP/1.1 200"))
    })
    .await
    .unwrap();
    assert_is_unauthorized(&ask(server.address, &with_new, &bearer(TOKEN)).await);
    assert!(ask(server.address, &with_old, &bearer(next)).await.is_err(), "the old certificate is shown");
    assert!(server.reports().is_empty(), "no moment has a certificate with the key of another");
}

#[tokio::test]
async fn what_cannot_be_read_serves_no_client_until_it_can() {
    let authority = Authority::new().unwrap();
    let (certificate, key) = authority.sign(NODE, Validity::Valid).unwrap();
    let good = [("tls.crt", &*certificate), ("tls.key", &*key), ("token", TOKEN)];
    let mut secret = Secret::new(&good);
    let server = Server::start(secret.files(false, true));
    let client = client(&authority, None);
    assert_has_metrics(&ask(server.address, &client, &bearer(TOKEN)).await);
    let (_, other_key) = authority.sign(NODE, Validity::Valid).unwrap();
    for (wrong, why) in [
        ([("tls.crt", &*certificate), ("tls.key", &*other_key), ("token", TOKEN)], "TLS"),
        ([("tls.crt", &*certificate), ("tls.key", &*key), ("token", "short")], "token"),
        ([("tls.crt", "no PEM"), ("tls.key", &*key), ("token", TOKEN)], "tls.crt"),
    ] {
        secret.replace(&wrong);
        let problem = server.problem().await;
        assert!(problem.contains(why), "{problem}");
        let refused = ask(server.address, &client, &bearer(TOKEN)).await;
        assert!(refused.is_err(), "{refused:?}");
        secret.replace(&good);
        server.no_problem().await;
        assert_has_metrics(&ask(server.address, &client, &bearer(TOKEN)).await);
    }
    fs::remove_file(secret.path("..data")).unwrap();
    let problem = server.problem().await;
    assert!(problem.contains("cannot read") && problem.contains("tls.crt"), "{problem}");
    assert!(ask(server.address, &client, &bearer(TOKEN)).await.is_err());
}

#[tokio::test]
async fn a_certificate_that_has_expired_is_reported_and_clients_refuse_it() {
    let authority = Authority::new().unwrap();
    let (certificate, key) = authority.sign(NODE, Validity::Expired).unwrap();
    let mut secret = Secret::new(&[("tls.crt", &certificate), ("tls.key", &key), ("token", TOKEN)]);
    let server = Server::start(secret.files(false, true));
    let client = client(&authority, None);
    let problem = server.problem().await;
    assert!(problem.contains("tls.crt has expired"), "{problem}");
    let refused = ask(server.address, &client, &bearer(TOKEN)).await.unwrap_err();
    assert!(refused.to_string().contains("expired"), "{refused}");
    let (certificate, key) = authority.sign(NODE, Validity::Valid).unwrap();
    secret.replace(&[("tls.crt", &certificate), ("tls.key", &key), ("token", TOKEN)]);
    server.no_problem().await;
    assert_has_metrics(&ask(server.address, &client, &bearer(TOKEN)).await);
}

#[tokio::test]
async fn clients_that_are_slow_in_the_handshake_or_in_the_request_keep_no_other_out() {
    let (authority, _secret, server) = with_token();
    let client = client(&authority, None);
    assert_has_metrics(&ask(server.address, &client, &bearer(TOKEN)).await);
    let (mut silent, mut slow) = (Vec::new(), Vec::new());
    for count in [4, PLACES, PLACES] {
        for number in 0..count {
            let mut stream = TcpStream::connect(server.address).await.unwrap();
            if number % 2 == 0 {
                // The begin of a handshake's record.
                stream.write_all(&[22, 3, 1]).await.unwrap();
                silent.push(stream);
            } else {
                let name = ServerName::try_from(NODE).unwrap();
                // One that is displaced meanwhile is closed.
                if let Ok(mut stream) = client.connect(name, stream).await {
                    drop(stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: ").await);
                    slow.push(stream);
                }
            }
        }
        assert_has_metrics(&ask(server.address, &client, &bearer(TOKEN)).await);
    }
    // Each of them is hung up on by itself.
    for mut stream in silent {
        drop(stream.read_to_end(&mut Vec::new()).await);
    }
    for mut stream in slow {
        drop(stream.read_to_end(&mut Vec::new()).await);
    }
}

#[tokio::test]
async fn a_page_that_is_too_long_is_an_error_and_no_silence() {
    let authority = Authority::new().unwrap();
    let (certificate, key) = authority.sign(NODE, Validity::Valid).unwrap();
    let secret = Secret::new(&[("tls.crt", &certificate), ("tls.key", &key), ("token", TOKEN)]);
    let scrape = Scrape::by(|format| {
        Ok(match format {
            Format::Classic => "#".repeat(MOST_PAGE_BYTES + 1),
            Format::OpenMetrics => "#".repeat(MOST_PAGE_BYTES),
        })
    });
    let server = Server::serving(secret.files(false, true), scrape);
    let client = client(&authority, None);
    let classic = format!("{}Accept: text/plain\r\n", bearer(TOKEN));
    let answer = ask(server.address, &client, &classic).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 500"), "{answer:?}");
    let longest = ask(server.address, &client, &bearer(TOKEN)).await.unwrap();
    assert!(longest.starts_with("HTTP/1.1 200") && longest.len() > MOST_PAGE_BYTES);
}

#[tokio::test]
async fn a_process_that_ends_is_started_again_and_reported() {
    let authority = Authority::new().unwrap();
    let (certificate, key) = authority.sign(NODE, Validity::Valid).unwrap();
    let secret = Secret::new(&[("tls.crt", &certificate), ("tls.key", &key)]);
    let scrape = Scrape::by(|_format| Ok(String::new()));
    let server = Server::start_with(secret.files(false, false), scrape, |_theirs, _listener| Ok(None));
    while *server.started.lock().unwrap() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let problem = server.problem().await;
    assert!(problem.contains("the metrics process has ended; it is started again"), "{problem}");
    assert_eq!(server.reports().len(), 1, "once");
}
