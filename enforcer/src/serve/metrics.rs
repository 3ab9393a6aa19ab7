//! `GET /metrics`: on the observe socket, and on a TCP address if one is configured.

use std::{
    cmp::Reverse,
    fmt, io,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use axum::{
    Router,
    body::Body,
    http::{HeaderMap, StatusCode, Uri, Version, header},
    response::{IntoResponse as _, Response},
    routing::get,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    task::{AbortHandle, JoinSet},
};

use super::{
    accept::{self, Offer},
    brief,
    hosts::Hosts,
    spare::Shortage,
};
use crate::{metrics::Format, threads};

/// The formats of the page, the preferred one first. A scraper names a version, and a way to escape names, of which these
/// have none to escape.
const OFFERS: &[Offer<Format>] = &[
    Offer {
        format: Format::OpenMetrics,
        main: "application",
        sub: "openmetrics-text",
        parameters: &[("version", "1.0.0"), ("escaping", "")],
    },
    Offer {
        format: Format::Classic,
        main: "text",
        sub: "plain",
        parameters: &[("version", "0.0.4"), ("escaping", "")],
    },
];

/// Writes the metrics, which may take a few milliseconds.
#[derive(Clone)]
pub struct Scrape(Arc<Writer>);

struct Writer {
    write: Box<dyn Fn(Format) -> Result<String, fmt::Error> + Send + Sync>,
    /// One write at a time: there are few blocking threads, and other requests need them.
    permits: Arc<Semaphore>,
}

impl Scrape {
    /// Uses this function, which may block.
    pub fn by(write: impl Fn(Format) -> Result<String, fmt::Error> + Send + Sync + 'static) -> Self {
        Self(Arc::new(Writer { write: Box::new(write), permits: Arc::new(Semaphore::new(1)) }))
    }

    /// The answer to a request for the metrics, in the format that the headers prefer; `OpenMetrics` if they prefer none.
    pub(super) async fn answer(&self, headers: &HeaderMap) -> Response {
        let format = format(headers);
        match self.write(format).await {
            Ok(text) => answer(format, text),
            Err(error) => {
                tracing::error!(%error, "the metrics could not be written");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        }
    }

    /// The metrics as text, written on a blocking thread of the present runtime.
    pub(super) async fn write(&self, format: Format) -> Result<String, fmt::Error> {
        let writer = Arc::clone(&self.0);
        // Held until the write ends, even if no request waits for it any more. The semaphore is never closed.
        let permit = Arc::clone(&self.0.permits).acquire_owned().await.ok();
        let written = threads::blocking(move || {
            let _permit = permit;
            (writer.write)(format)
        });
        written.await
    }
}

/// The format that a request prefers. A scraper whose header cannot be read gets the metrics all the same.
pub(super) fn format(headers: &HeaderMap) -> Format {
    accept::preferred(headers, OFFERS).ok().flatten().unwrap_or(Format::OpenMetrics)
}

/// The answer with the metrics.
pub(super) fn answer(format: Format, text: impl Into<Body>) -> Response {
    let head = [(header::CONTENT_TYPE, format.content_type()), (header::VARY, "accept")];
    (head, text.into()).into_response()
}

/// The answer to a request under the name of another host; `None` if it is this one's.
pub(super) fn misdirected(
    hosts: &Hosts,
    version: Version,
    uri: &Uri,
    headers: &HeaderMap,
) -> Option<Response> {
    let error = hosts.check(version, uri, headers).err()?;
    tracing::debug!(%error, "a request for metrics is refused");
    Some((StatusCode::MISDIRECTED_REQUEST, format!("{error}\n")).into_response())
}

impl fmt::Debug for Scrape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scrape")
    }
}

/// The configuration field of the address.
const NAME: &str = "metricsListen";

/// How many connections are accepted at once when no descriptors are left.
const SPARE_CONNECTIONS: usize = 1;

/// The most connections to the TCP address. One more displaces another.
pub(super) const PLACES: usize = 32;

/// A TCP address that serves only metrics: bound, and served by [`MetricsListener::serve`], or over TLS by
/// [`SecureMetrics`](super::SecureMetrics).
#[derive(Debug)]
pub struct MetricsListener(TcpListener);

impl MetricsListener {
    /// Binds it. Must be called inside a tokio runtime.
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        TcpListener::bind(address).await.map(Self)
    }

    /// The listener itself, for another process.
    pub(super) fn into_std(self) -> io::Result<std::net::TcpListener> {
        self.0.into_std()
    }

    /// Answers requests for these hosts until `stopping` becomes true. Answers that are under way then end: the scraper
    /// will ask again.
    pub async fn serve(self, scrape: Scrape, hosts: Hosts, mut stopping: watch::Receiver<bool>) {
        let talk = move |stream: TcpStream, asked| {
            brief::answer(NAME, stream, router(scrape.clone(), hosts.clone(), asked))
        };
        tokio::select! {
            _ = stopping.wait_for(|stopping| *stopping) => {}
            () = welcome(&self.0, talk) => {}
        }
    }
}

/// Accepts connections for ever; dropping this ends them. `talk` serves one, and sets the flag once a request has come.
///
/// A client that connects and sends or reads nothing cannot keep others out. If all places are taken, the next
/// connection displaces the oldest one without a request, from the network that has most connections.
pub(super) async fn welcome<F>(listener: &TcpListener, talk: impl Fn(TcpStream, Arc<AtomicBool>) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut guests: Vec<Guest> = Vec::with_capacity(PLACES);
    let mut talks = JoinSet::new();
    let mut shortage = Shortage::new(SPARE_CONNECTIONS);
    loop {
        shortage.settle();
        let accepted = tokio::select! {
            Some(_ended) = talks.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                shortage.wait(NAME, &error).await;
                continue;
            }
        };
        guests.retain(|guest| !guest.talk.is_finished());
        if guests.len() >= PLACES {
            let seen: Vec<_> = guests.iter().map(Guest::seen).collect();
            if let Some(displaced) = displaced(&seen) {
                guests.remove(displaced).talk.abort();
            }
        }
        let asked = Arc::new(AtomicBool::new(false));
        let share = shortage.admitted();
        let talking = talk(stream, Arc::clone(&asked));
        let talk = talks.spawn(async move {
            talking.await;
            drop(share);
        });
        guests.push(Guest { network: network(address.ip()), asked, talk });
    }
}

fn router(scrape: Scrape, hosts: Hosts, asked: Arc<AtomicBool>) -> Router {
    let metrics = move |version: Version, uri: Uri, headers: HeaderMap| async move {
        asked.store(true, Ordering::Relaxed);
        match misdirected(&hosts, version, &uri, &headers) {
            None => scrape.answer(&headers).await,
            Some(refused) => refused,
        }
    };
    Router::new().route("/metrics", get(metrics))
}

/// An open connection.
struct Guest {
    network: IpAddr,
    /// Whether its request has come.
    asked: Arc<AtomicBool>,
    talk: AbortHandle,
}

impl Guest {
    fn seen(&self) -> (IpAddr, bool) {
        (self.network, self.asked.load(Ordering::Relaxed))
    }
}

/// The network of a peer: its IPv4 address, or the 64-bit prefix of its IPv6 address.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() & (u128::MAX << 64)).into()),
    }
}

/// The connection to displace: from the network that has most, the oldest without a request, or else the oldest.
/// `guests` are in the order in which they came.
fn displaced(guests: &[(IpAddr, bool)]) -> Option<usize> {
    let of_network = |network: &IpAddr| guests.iter().filter(|(other, _)| other == network).count();
    let places = guests.iter().enumerate();
    places
        .min_by_key(|(place, (network, asked))| (Reverse(of_network(network)), *asked, *place))
        .map(|(place, _)| place)
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpStream,
    };

    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn who_has_most_connections_loses_the_oldest_that_asks_nothing() {
        let [many, few] = [address("10.0.0.1"), address("10.0.0.2")];
        assert_eq!(displaced(&[(few, false), (many, true), (many, false), (many, false)]), Some(2));
        assert_eq!(displaced(&[(few, false), (many, true), (many, true)]), Some(1));
        assert_eq!(displaced(&[(few, true), (many, false)]), Some(1));
        assert_eq!(displaced(&[]), None);
    }

    #[test]
    fn a_network_is_an_address_or_the_64_bits_that_a_peer_has_of_its_own() {
        assert_eq!(network(address("::ffff:10.0.0.1")), address("10.0.0.1"));
        assert_eq!(network(address("2001:db8:1:2:3:4:5:6")), address("2001:db8:1:2::"));
    }

    struct Server {
        address: SocketAddr,
        _stop: watch::Sender<bool>,
    }

    async fn serve() -> Server {
        let listener = MetricsListener::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.0.local_addr().unwrap();
        let (stop, stopping) = watch::channel(false);
        let scrape = Scrape::by(|format| Ok(format!("{format:?} 1\n")));
        tokio::spawn(listener.serve(scrape, Hosts::new("node", &[]), stopping));
        Server { address, _stop: stop }
    }

    async fn ask(address: SocketAddr, host: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn clients_that_ask_nothing_keep_no_other_out() {
        let Server { address, _stop } = serve().await;
        let mut slow = Vec::new();
        for count in [4, PLACES, PLACES] {
            for _ in 0..count {
                let mut stream = TcpStream::connect(address).await.unwrap();
                stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: ").await.unwrap();
                slow.push(stream);
            }
            // Sooner than any of them is hung up on.
            let answer = tokio::time::timeout(brief::HEAD / 2, ask(address, "node")).await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("OpenMetrics 1\n"), "{answer}");
        }
    }

    #[tokio::test]
    async fn a_scraper_gets_the_format_that_it_prefers() {
        let scrape = Scrape::by(|format| Ok(format!("{format:?}")));
        for (accept, format) in [
            ("", Format::OpenMetrics),
            ("*/*", Format::OpenMetrics),
            ("text/plain", Format::Classic),
            ("text/plain;version=0.0.4;charset=utf-8", Format::Classic),
            ("text/html, text/*;q=0.9, */*;q=0.8", Format::Classic),
            ("nonsense", Format::OpenMetrics),
            ("image/png", Format::OpenMetrics),
            (
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
                 application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;q=0.4,\
                 text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
                Format::OpenMetrics,
            ),
            (
                "text/plain;version=0.0.4;q=0.7,application/openmetrics-text;version=1.0.0;q=0.5",
                Format::Classic,
            ),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, accept.parse().unwrap());
            let answer = scrape.answer(&headers).await;
            assert_eq!(answer.headers()[header::CONTENT_TYPE], format.content_type(), "{accept}");
            let body = axum::body::to_bytes(answer.into_body(), 100).await.unwrap();
            assert_eq!(body, format!("{format:?}"));
        }
    }

    #[tokio::test]
    async fn a_request_under_a_name_of_another_host_is_refused() {
        let Server { address, _stop } = serve().await;
        let answer = ask(address, "evil.example:9464").await;
        assert!(answer.starts_with("HTTP/1.1 421") && answer.contains("metricsHosts"), "{answer}");
        assert!(ask(address, &address.to_string()).await.starts_with("HTTP/1.1 200"));
    }
}
