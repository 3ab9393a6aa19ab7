//! GET requests over one connection, to a server that speaks HTTPS.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::{
    HeaderMap, Request, StatusCode,
    body::Incoming,
    header::{ACCEPT, AUTHORIZATION, HOST, HeaderValue, USER_AGENT},
};
use tokio::time::sleep;

use super::{items::Items, message::HttpsFeed, pod::ApiPod, process::Failure, store::Store};
use crate::network::{Connection, ConnectionError, Endpoint, Security};

/// How much of an answer that is not what was asked for is shown.
const MOST_WORDS_BYTES: usize = 1 << 10;

/// The pause between the end of a connection and the next try to connect, which only finds out whether the server listens.
const AGAIN: Duration = Duration::from_secs(10);

/// A connection that is used for one request after the other.
#[derive(Debug, Default)]
pub(super) struct Https {
    open: Option<Open>,
}

/// A connection, and whom it was opened to as whom.
#[derive(Debug)]
struct Open {
    connection: Connection,
    endpoint: Endpoint,
    security: Security,
}

impl Open {
    async fn new(feed: &HttpsFeed) -> Result<Self, Failure> {
        let connection = Connection::open(&feed.endpoint, &feed.security).await?;
        Ok(Self { connection, endpoint: feed.endpoint.clone(), security: feed.security.clone() })
    }
}

impl Https {
    /// Makes a request with the feed's credentials, over the connection that is open if those are the same. Returns the
    /// answer's status, headers and unread body.
    pub(super) async fn get(
        &mut self,
        feed: &HttpsFeed,
        target: &str,
    ) -> Result<(StatusCode, HeaderMap, Incoming), Failure> {
        let asked = request(feed, target)?;
        let is_same = |open: &Open| open.endpoint == feed.endpoint && open.security == feed.security;
        if let Some(mut open) = self.open.take().filter(|open| is_same(open) && open.connection.is_open()) {
            // The server may close a connection just as it is used again.
            if let Ok(answer) = open.connection.send(asked).await {
                self.open = Some(open);
                return Ok(answer);
            }
        }
        let open = self.open.insert(Open::new(feed).await?);
        Ok(open.connection.send(request(feed, target)?).await?)
    }

    /// Waits until the server can no longer be connected to, and returns why. One that only closes a connection that is not
    /// used, as a kubelet does after a while, is connected to again.
    pub(super) async fn away(&mut self, feed: &HttpsFeed) -> Failure {
        loop {
            if let Some(open) = &mut self.open {
                open.connection.closed().await;
            }
            sleep(AGAIN).await;
            match Open::new(feed).await {
                Ok(open) => self.open = Some(open),
                Err(failure) => return failure,
            }
        }
    }

    /// Closes the connection. The next request opens another.
    pub(super) fn close(&mut self) {
        self.open = None;
    }
}

fn request(feed: &HttpsFeed, target: &str) -> Result<Request<Bytes>, Failure> {
    let mut request = Request::get(target)
        .header(HOST, feed.endpoint.authority.as_str())
        .header(ACCEPT, "application/json")
        .header(USER_AGENT, crate::USER_AGENT);
    if let Some(token) = &feed.token {
        let mut value = HeaderValue::try_from(format!("Bearer {token}")).map_err(|_error| Failure::Token)?;
        value.set_sensitive(true);
        request = request.header(AUTHORIZATION, value);
    }
    Ok(request.body(Bytes::new())?)
}

/// The pods of a list that comes in one or several documents.
#[derive(Debug, Default)]
pub(super) struct Listed {
    pods: Vec<Option<ApiPod>>,
    /// How long the documents were.
    bytes: u64,
}

impl Listed {
    /// Reads a document. `annotations` leaves those that count. Returns the document without its elements.
    pub(super) async fn read(
        &mut self,
        mut body: Incoming,
        annotations: fn(&mut ApiPod),
    ) -> Result<Vec<u8>, Failure> {
        let mut items = Items::default();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(ConnectionError::from)?;
            if let Some(data) = frame.data_ref() {
                self.bytes = self.bytes.saturating_add(u64::try_from(data.len()).unwrap_or(u64::MAX));
                items.add(data, |item| self.take(item, annotations))?;
            }
        }
        Ok(items.end()?)
    }

    /// One that cannot be read must not hide the others; its cgroup is known all the same.
    fn take(&mut self, item: Option<&[u8]>, annotations: fn(&mut ApiPod)) {
        let mut pod = item.and_then(|item| serde_json::from_slice::<ApiPod>(item).ok());
        pod.iter_mut().for_each(annotations);
        pod.iter_mut().for_each(ApiPod::cut);
        self.add(pod);
    }

    /// Takes a pod, cut already; `None` is one that cannot be read.
    pub(super) fn add(&mut self, pod: Option<ApiPod>) {
        // Pods that have ended stay in the list, any number of them.
        if self.pods.len() >= 2 * Store::MOST_PODS {
            self.pods.retain(|pod| pod.as_ref().is_some_and(|pod| !pod.has_ended()));
        }
        let is_room = self.pods.len() < 2 * Store::MOST_PODS;
        self.pods.push(pod.filter(|_| is_room));
    }

    /// Forgets a pod that has come: it is gone or is another meanwhile.
    pub(super) fn remove(&mut self, uid: &str) {
        self.pods.retain(|pod| pod.as_ref().is_none_or(|pod| pod.metadata.uid != uid));
    }

    /// How long the documents were.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The pods; those that run come first, if there is no room for all.
    pub(super) fn into_pods(mut self) -> Vec<Option<ApiPod>> {
        self.pods.sort_by_key(|pod| pod.as_ref().is_some_and(ApiPod::has_ended));
        self.pods
    }
}

/// The beginning of an answer that says why it is not what was asked for.
pub(super) async fn words(mut body: Incoming) -> String {
    let mut words = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        words.extend_from_slice(frame.data_ref().map_or(&[][..], |data| &data[..]));
        if words.len() >= MOST_WORDS_BYTES {
            break;
        }
    }
    words.truncate(MOST_WORDS_BYTES);
    String::from_utf8_lossy(&words).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::{super::client::https_feed, *};

    #[tokio::test(start_paused = true)]
    async fn a_server_that_closes_what_is_not_used_is_there_and_one_that_no_longer_listens_is_away() {
        let certificate = rcgen::generate_simple_self_signed([String::from("node-1")]).unwrap().cert.pem();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut feed = https_feed(listener.local_addr().unwrap().port(), &certificate, "secret");
        feed.endpoint.tls = false;
        let serving = async move {
            for _ in 0..3 {
                drop(listener.accept().await.unwrap());
            }
        };
        let mut https = Https::default();
        let (failure, ()) = tokio::join!(https.away(&feed), serving);
        let why = crate::chain(&failure);
        assert!(why.contains("cannot connect"), "{why}");
    }
}
