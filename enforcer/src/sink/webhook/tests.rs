use std::{
    collections::VecDeque,
    convert::Infallible,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use http_body_util::{BodyExt as _, Full};
use hyper::{Response, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::TcpListener;

use super::*;
use crate::{
    journal::{EventType, Filter, Journal, RawEvent, Subject},
    sink::{BatchSettings, feed::Feed},
};

/// A request as the receiver saw it.
#[derive(Clone, Debug)]
struct Seen {
    method: String,
    target: String,
    headers: HeaderMap,
    body: Bytes,
    connection: usize,
}

/// How a receiver answers a request.
#[derive(Clone, Debug)]
enum Say {
    Status(u16, Vec<(&'static str, String)>),
    /// It never does.
    Nothing,
    /// It ends the connection behind its status.
    Break,
}

/// A receiver that gives the set answers, and 204 after them.
#[derive(Clone, Debug)]
struct Receiver {
    port: u16,
    seen: Arc<Mutex<Vec<Seen>>>,
    says: Arc<Mutex<VecDeque<Say>>>,
}

impl Receiver {
    async fn start(says: impl IntoIterator<Item = Say>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let receiver =
            Self { port, seen: Arc::default(), says: Arc::new(Mutex::new(says.into_iter().collect())) };
        let shared = receiver.clone();
        tokio::spawn(async move {
            for connection in 0.. {
                let (stream, _) = listener.accept().await.unwrap();
                let shared = shared.clone();
                tokio::spawn(async move {
                    let service = service_fn(|request| shared.answer(request, connection));
                    // A client may go at any time.
                    drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
                });
            }
        });
        receiver
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        connection: usize,
    ) -> Result<Response<Full<Bytes>>, io::Error> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let (method, target) = (head.method.to_string(), head.uri.to_string());
        self.seen.lock().unwrap().push(Seen { method, target, headers: head.headers, body, connection });
        let say = self.says.lock().unwrap().pop_front().unwrap_or(Say::Status(204, Vec::new()));
        match say {
            Say::Status(status, headers) => {
                let answer =
                    headers.iter().fold(Response::builder().status(status), |answer, (name, value)| {
                        answer.header(*name, value)
                    });
                Ok(answer.body(Full::default()).unwrap())
            }
            Say::Nothing => {
                std::future::pending::<Result<_, Infallible>>().await.map_err(|_never| unreachable())
            }
            Say::Break => Err(io::Error::other("hangs up")),
        }
    }

    fn settings(&self) -> WebhookSettings {
        WebhookSettings {
            name: String::from("r"),
            url: format!("http://127.0.0.1:{}/in?a=b", self.port).parse().unwrap(),
            types: Vec::new(),
            secret_file: None,
            token_file: None,
            ca_file: None,
            batch: None,
            connect_timeout_ms: 2_000,
            timeout_ms: 5_000,
            handshake: false,
        }
    }

    fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

fn unreachable() -> io::Error {
    io::Error::other("never")
}

fn status(status: u16) -> Say {
    Say::Status(status, Vec::new())
}

fn with(code: u16, headers: &[(&'static str, &str)]) -> Say {
    Say::Status(code, headers.iter().map(|(name, value)| (*name, (*value).to_owned())).collect())
}

fn items(count: usize, bytes: usize) -> Vec<Item> {
    let journal = Journal::new("n1", "b");
    for _ in 0..count {
        let data = json!({"pad": "x".repeat(bytes)});
        journal.append_raw(RawEvent { kind: EventType::PodAdded, subject: Subject::Node, data });
    }
    Feed::new(journal, 0, Filter::default(), Arc::default()).front(count, usize::MAX)
}

/// A webhook whose network process is a thread.
fn hook_to(settings: WebhookSettings) -> Webhook {
    Webhook::new(settings, "n1", Network::in_this_process().unwrap())
}

fn batching(settings: WebhookSettings, max_events: usize) -> WebhookSettings {
    WebhookSettings { batch: Some(BatchSettings { max_events, max_bytes: 1 << 20 }), ..settings }
}

fn file(dir: &tempfile::TempDir, name: &str, content: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt as _;
    let path = dir.path().join(name);
    std::fs::write(&path, content).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path
}

fn later(outcome: Result<usize, Trouble>) -> (String, Option<Duration>) {
    match outcome {
        Err(Trouble::Later { why, after }) => (why, after),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_event_is_sent_as_it_stands_and_signed() {
    let receiver = Receiver::start([]).await;
    let dir = tempfile::tempdir().unwrap();
    let secret = "a secret that is long enough";
    let secret_file = Some(file(&dir, "secret", secret));
    let token_file = Some(file(&dir, "token", "a-token-of-the-receiver\n"));
    let mut webhook = hook_to(WebhookSettings { secret_file, token_file, ..receiver.settings() });
    let items = items(1, 10);
    assert_eq!(webhook.limits().0, 1);
    assert_eq!(webhook.deliver(&items).await, Ok(1));
    let seen = &receiver.seen()[0];
    assert_eq!((seen.method.as_str(), seen.target.as_str()), ("POST", "/in?a=b"));
    assert_eq!(seen.headers["content-type"], "application/cloudevents+json; charset=UTF-8");
    assert_eq!(seen.headers["host"], format!("127.0.0.1:{}", receiver.port));
    assert_eq!(seen.headers["authorization"], "Bearer a-token-of-the-receiver");
    assert_eq!(seen.body[..], items[0].line[..items[0].line.len() - 1]);
    let signature = seen.headers["enforcer-signature"].to_str().unwrap();
    let time: i64 = signature[2..].split(',').next().unwrap().parse().unwrap();
    assert!((jiff::Timestamp::now().as_second() - time).abs() < 60);
    assert_eq!(signature, secret::signature(&[secret.as_bytes().to_vec()], time, &seen.body));
    assert!(!signature.contains(secret));
}

#[tokio::test]
async fn many_events_are_one_array() {
    let receiver = Receiver::start([]).await;
    let mut webhook = hook_to(batching(receiver.settings(), 5));
    let items = items(3, 10);
    assert_eq!(webhook.limits(), (5, (1 << 20) - 2));
    assert_eq!(webhook.deliver(&items).await, Ok(3));
    let seen = &receiver.seen()[0];
    assert_eq!(seen.headers["content-type"], "application/cloudevents-batch+json; charset=UTF-8");
    let events: Vec<serde_json::Value> = serde_json::from_slice(&seen.body).unwrap();
    let sequences: Vec<_> = events.iter().map(|event| event["sequence"].as_str().unwrap()).collect();
    assert_eq!(sequences, [format!("{:020}", 1), format!("{:020}", 2), format!("{:020}", 3)]);
}

#[tokio::test]
async fn without_its_secret_nothing_is_sent() {
    let receiver = Receiver::start([]).await;
    let secret_file = Some("/nonexistent/secret".into());
    let mut webhook = hook_to(WebhookSettings { secret_file, ..receiver.settings() });
    let (why, _) = later(webhook.deliver(&items(1, 1)).await);
    assert!(why.contains("/nonexistent/secret"), "{why}");
    assert!(receiver.seen().is_empty());
}

#[tokio::test]
async fn a_connection_is_used_again_and_one_that_was_broken_is_replaced() {
    let receiver = Receiver::start([status(204), status(200), Say::Break, status(204), status(204)]).await;
    let mut webhook = hook_to(receiver.settings());
    let items = items(1, 1);
    for _ in 0..4 {
        assert_eq!(webhook.deliver(&items).await, Ok(1));
    }
    let connections: Vec<_> = receiver.seen().iter().map(|seen| seen.connection).collect();
    assert_eq!(connections, [0, 0, 0, 1, 1], "what broke is sent again at once, over another connection");
}

#[tokio::test]
async fn a_receiver_that_breaks_a_new_connection_has_failed() {
    let receiver = Receiver::start([Say::Break]).await;
    let mut webhook = hook_to(receiver.settings());
    let (why, after) = later(webhook.deliver(&items(1, 1)).await);
    assert!(why.contains("did not answer") && after.is_none(), "{why}");
    let unreachable = WebhookSettings { url: "http://127.0.0.1:1/".parse().unwrap(), ..receiver.settings() };
    let (why, _) = later(hook_to(unreachable).deliver(&items(1, 1)).await);
    assert!(why.contains("cannot connect to 127.0.0.1:1"), "{why}");
}

#[tokio::test]
async fn a_receiver_that_hangs_is_not_waited_for() {
    let receiver = Receiver::start([Say::Nothing]).await;
    let settings = WebhookSettings { timeout_ms: 200, ..receiver.settings() };
    let mut webhook = hook_to(settings);
    let start = Instant::now();
    let (why, _) = later(webhook.deliver(&items(1, 1)).await);
    assert!(why.contains("no answer within 200 ms"), "{why}");
    assert!(start.elapsed() < Duration::from_secs(30));
    assert_eq!(webhook.deliver(&items(1, 1)).await, Ok(1));
    assert_eq!(receiver.seen()[1].connection, 1, "the hanging connection is not used again");
    // One that accepts and never says a word, not even TLS.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://127.0.0.1:{}/", silent.local_addr().unwrap().port()).parse().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let ca_file = Some(file(&dir, "ca.pem", CERTIFICATE));
    let settings = WebhookSettings { url, ca_file, connect_timeout_ms: 200, ..receiver.settings() };
    let (why, _) = later(hook_to(settings).deliver(&items(1, 1)).await);
    assert!(why.contains("within 200 ms"), "{why}");
}

/// What was taken is not sent again, whatever becomes of the answer's words.
#[tokio::test]
async fn an_answer_that_does_not_end_counts() {
    let receiver = Receiver::start([]).await;
    let answered = async |status: &'static str| {
        // Less than the rest of the answer is waited for.
        let url = format!("http://127.0.0.1:{}/", stalling(status).await).parse().unwrap();
        let settings = WebhookSettings { url, timeout_ms: 900, ..receiver.settings() };
        hook_to(settings).deliver(&items(1, 1)).await
    };
    let (taken, gone, too_large, slow_down) = tokio::join!(
        answered("200 OK"),
        answered("410 Gone"),
        answered("413 Too Large"),
        answered("429 Too Many\r\nRetry-After: 7"),
    );
    assert_eq!(taken, Ok(1));
    assert!(matches!(gone, Err(Trouble::Gone { .. })), "{gone:?}");
    assert!(matches!(too_large, Err(Trouble::Never { .. })), "{too_large:?}");
    assert_eq!(later(slow_down).1, Some(Duration::from_secs(7)));
}

/// The port of a receiver that begins one answer and does not end it.
async fn stalling(status: &'static str) -> u16 {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut buffer = vec![0; 65_536];
        assert!(stream.read(&mut buffer).await.unwrap() > 0);
        let begun = format!("HTTP/1.1 {status}\r\nContent-Length: 9\r\n\r\nta");
        stream.write_all(begun.as_bytes()).await.unwrap();
        std::future::pending::<()>().await;
    });
    port
}

#[tokio::test]
async fn refusals_are_understood() {
    let redirect = with(308, &[("location", "/elsewhere")]);
    let slow_down = with(429, &[("retry-after", "7")]);
    let receiver =
        Receiver::start([slow_down, status(503), redirect, status(415), status(410), status(413)]).await;
    let mut webhook = hook_to(receiver.settings());
    let items = items(1, 1);
    assert_eq!(later(webhook.deliver(&items).await).1, Some(Duration::from_secs(7)));
    assert_eq!(later(webhook.deliver(&items).await).1, None);
    assert!(later(webhook.deliver(&items).await).0.contains("redirects are not followed"));
    assert!(later(webhook.deliver(&items).await).0.contains("415"));
    assert!(matches!(webhook.deliver(&items).await, Err(Trouble::Gone { .. })));
    assert!(matches!(webhook.deliver(&items).await, Err(Trouble::Never { .. })));
    assert!(receiver.seen().iter().all(|seen| seen.target == "/in?a=b"), "nothing went elsewhere");
}

#[tokio::test]
async fn what_is_too_large_is_halved_and_grows_again() {
    let receiver = Receiver::start([status(413), status(413)]).await;
    let mut webhook = hook_to(batching(receiver.settings(), 8));
    let items = items(8, 1);
    for half in [4, 2] {
        let (most, _) = webhook.limits();
        assert_eq!(webhook.deliver(&items[..most]).await, Err(Trouble::Less));
        assert_eq!(webhook.limits().0, half);
    }
    for most in [3, 4, 5, 6, 7, 8, 8] {
        assert_eq!(webhook.deliver(&items[..2]).await, Ok(2));
        assert_eq!(webhook.limits().0, most);
    }
}

#[tokio::test]
async fn the_receiver_is_asked_first_and_its_rate_kept() {
    let yes = with(200, &[("webhook-allowed-origin", "n1"), ("webhook-allowed-rate", "600")]);
    let receiver = Receiver::start([status(405), yes]).await;
    let settings = WebhookSettings { handshake: true, ..receiver.settings() };
    let mut webhook = hook_to(settings);
    let items = items(1, 1);
    assert!(later(webhook.deliver(&items).await).0.contains("handshake"));
    let start = Instant::now();
    for _ in 0..4 {
        assert_eq!(webhook.deliver(&items).await, Ok(1));
    }
    assert!(start.elapsed() >= Duration::from_millis(300), "600 in a minute are one in 100 ms");
    let seen = receiver.seen();
    let methods: Vec<_> = seen.iter().map(|seen| seen.method.as_str()).collect();
    assert_eq!(methods, ["OPTIONS", "OPTIONS", "POST", "POST", "POST", "POST"]);
    assert_eq!(seen[0].headers["webhook-request-origin"], "n1");
    assert!(seen[0].body.is_empty());
}

/// A certificate authority that signed nothing but `LEAF`, for localhost and 127.0.0.1.
const CERTIFICATE: &str = include_str!("tests/ca.pem");
const LEAF: &[u8] = include_bytes!("tests/leaf.pem");
const LEAF_KEY: &[u8] = include_bytes!("tests/leaf.key");

/// Ends TLS before a receiver, as a proxy would.
async fn tls_before(receiver: &Receiver) -> u16 {
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
    let builder =
        rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let config = builder
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(LEAF).unwrap()],
            PrivateKeyDer::from_pem_slice(LEAF_KEY).unwrap(),
        )
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    // 127.0.0.2 is here as well.
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let (port, behind) = (listener.local_addr().unwrap().port(), receiver.port);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            // A client that does not trust us says so here.
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut plain = tokio::net::TcpStream::connect(("127.0.0.1", behind)).await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut stream, &mut plain).await });
        }
    });
    port
}

#[tokio::test]
async fn https_trusts_the_configured_certificates_and_no_other() {
    let receiver = Receiver::start([]).await;
    let port = tls_before(&receiver).await;
    let dir = tempfile::tempdir().unwrap();
    let ca_file = Some(file(&dir, "ca.pem", CERTIFICATE));
    let of = |url: String, ca_file: Option<PathBuf>| {
        let settings = WebhookSettings { url: url.parse().unwrap(), ca_file, ..receiver.settings() };
        hook_to(settings)
    };
    let items = items(1, 1);
    for host in ["localhost", "127.0.0.1"] {
        let mut webhook = of(format!("https://{host}:{port}/tls"), ca_file.clone());
        assert_eq!(webhook.deliver(&items).await, Ok(1), "{host}");
        assert_eq!(webhook.deliver(&items).await, Ok(1), "{host}");
    }
    assert_eq!(receiver.seen().len(), 4);
    // The leaf is no authority, and 127.0.0.2 is not in it.
    let other = Some(file(&dir, "other.pem", &String::from_utf8_lossy(LEAF)));
    for (host, ca_file) in [("127.0.0.1", other), ("127.0.0.2", ca_file)] {
        let (why, _) = later(of(format!("https://{host}:{port}/"), ca_file).deliver(&items).await);
        assert!(why.contains("the TLS handshake failed"), "{why}");
    }
    assert_eq!(receiver.seen().len(), 4, "nothing is sent to whom is not trusted");
}
