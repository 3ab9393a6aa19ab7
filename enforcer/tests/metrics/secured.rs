//! What the real daemon answers over TLS, by the process that it starts for that; and how it follows its file.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::Arc,
};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};

use crate::{
    daemon::{Daemon, body, free_address, wait_for},
    page::Page,
};

const NAME: &str = "enforcer-metrics";

const TOKEN: &str = "a-token-of-some-length";

/// The whole answer to a request with that token.
fn ask(address: SocketAddr, config: &Arc<ClientConfig>, token: &str) -> io::Result<String> {
    let connection = ClientConnection::new(Arc::clone(config), ServerName::try_from(NAME).unwrap());
    let mut stream = StreamOwned::new(connection.unwrap(), TcpStream::connect(address)?);
    write!(stream, "GET /metrics HTTP/1.0\r\nAuthorization: Bearer {token}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn over_tls_who_shows_the_token_gets_the_metrics_of_the_daemon() {
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new([NAME.to_owned()]).unwrap().signed_by(&key, &authority).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let certificate = file("tls.crt", &certificate.pem());
    let key = file("tls.key", &key.serialize_pem());
    let token = file("token", TOKEN);
    let address = free_address();
    let daemon = Daemon::start(&format!(
        "metricsListen: {address}\nmetricsTLS: {{certFile: {certificate}, keyFile: {key}}}\nmetricsTokenFile: {token}\n"
    ));
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap()).unwrap();
    let client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let client = Arc::new(client);
    let answer = wait_for("the address", || ask(address, &client, TOKEN).ok());
    assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
    assert_eq!(Page::of(body(&answer)).families, Page::of(body(&daemon.get("/metrics"))).families);
    assert!(ask(address, &client, "another-token").unwrap().starts_with("HTTP/1.0 401"));

    // Without its certificate nobody is served, plainly or not, and the socket says why.
    fs::remove_file(&certificate).unwrap();
    let degraded = r#"enforcer_degraded{reason="metricsTLS"}"#;
    let page = || Page::of(body(&daemon.get("/metrics")));
    wait_for("the degradation", || page().find(degraded).any(|(_, is)| *is == 1.0).then_some(()));
    assert!(ask(address, &client, TOKEN).is_err());
}

#[test]
fn with_auto_the_daemon_follows_its_file_and_keeps_what_is_in_force_when_that_is_wrong() {
    let daemon = Daemon::start("configReload: auto\n");
    let path = daemon.folder.path().join("config.yaml");
    let first = fs::read_to_string(&path).unwrap();
    let write = |rest: &str| {
        let new = daemon.folder.path().join("config.new");
        fs::write(&new, format!("{first}{rest}")).unwrap();
        fs::rename(new, &path).unwrap();
    };
    let page = || Page::of(body(&daemon.get("/metrics")));
    let rejected = r#"enforcer_events_written_total{type="config.rejected"}"#;
    let hash = || {
        let page = page();
        let (row, _) = page.find("enforcer_config_hash_info{").next().unwrap();
        row.clone()
    };
    let before = hash();
    write("onDrift: report\n");
    let after = wait_for("the change", || Some(hash()).filter(|hash| *hash != before));
    assert_eq!(page().get(rejected), 0.0);
    write("onDrift: rep");
    wait_for("the rejection", || (page().get(rejected) == 1.0).then_some(()));
    assert_eq!(hash(), after);
    // A fixed field too.
    write("metricsHosts: [other]\n");
    wait_for("the second rejection", || (page().get(rejected) == 2.0).then_some(()));
    assert_eq!(hash(), after);
}
