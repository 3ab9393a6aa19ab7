//! What the daemon and the network process say to each other.

use std::{fmt, path::PathBuf};

use bytes::Bytes;
use hyper::{HeaderMap, Request, StatusCode, header::HeaderName};
use serde::{Deserialize, Serialize};

/// The most headers of an answer that are taken from the network process, which is not trusted.
const MOST_HEADERS: usize = 128;

/// The longest text that is taken from it.
const MOST_CHARACTERS: usize = 1_000;

/// Where requests go. Those of one client share a connection, and are made one after the other.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// The client's name, unique in the daemon.
    pub client: String,
    /// Whether to speak TLS.
    pub tls: bool,
    /// The host's name or address, without the brackets of an IPv6 address.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Host and port for messages.
    pub authority: String,
    /// How long connecting may take, in milliseconds.
    pub connect_timeout_ms: u64,
}

/// A request, and how long it may take with its connection and answer.
pub struct Exchange {
    /// Where it goes.
    pub endpoint: Endpoint,
    /// The certificates that a new connection trusts; the system's without them.
    pub certificates: Option<Certificates>,
    /// The request itself.
    pub request: Request<Bytes>,
    /// The whole time that it may take, in milliseconds.
    pub timeout_ms: u64,
}

impl fmt::Debug for Exchange {
    /// Without headers, which carry secrets.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Exchange").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

/// A file of certificates in PEM.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Certificates {
    /// Where it is, for messages.
    pub path: PathBuf,
    /// Its content.
    #[serde(with = "text")]
    pub bytes: Bytes,
}

/// PEM is text.
mod text {
    use bytes::Bytes;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &Bytes, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&String::from_utf8_lossy(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
        String::deserialize(from).map(Bytes::from)
    }
}

/// How a connection is secured: whom to trust, and who this is.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Security {
    /// Whom to trust.
    pub trust: Trust,
    /// Who this is, if the other end is to know by a certificate.
    pub identity: Option<Identity>,
    /// The name that the other end's certificate must have; the host's without it.
    pub server_name: Option<String>,
}

/// Whose certificates are trusted.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Trust {
    /// Those of the authorities that this system trusts.
    #[default]
    System,
    /// Those of these authorities.
    Roots(Certificates),
    /// These themselves, whatever names they have and whoever signed them; and those of an authority.
    Pinned {
        /// The certificates.
        certificates: Certificates,
        /// The authority.
        authority: Option<Certificates>,
    },
}

/// A client's certificate and its key.
#[derive(Clone, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    /// The certificate, with those that lead to its authority.
    pub certificates: Certificates,
    /// The private key.
    pub key: Certificates,
}

impl fmt::Debug for Identity {
    /// Without the key.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Identity").field("path", &self.certificates.path).finish_non_exhaustive()
    }
}

/// A receiver's answer; its body is not read.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// The headers whose values are text.
    pub headers: HeaderMap,
}

/// The head of a request's frame. Its body is the certificates, followed by the request's body.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Ask {
    pub(super) endpoint: Endpoint,
    pub(super) method: String,
    pub(super) target: String,
    pub(super) headers: Vec<(String, Vec<u8>)>,
    pub(super) timeout_ms: u64,
    /// Where the certificates are, and how many bytes of the frame's body they are.
    pub(super) certificates: Option<(PathBuf, usize)>,
}

/// The head of an answer's frame, which has no body.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Outcome {
    Answered {
        status: u16,
        headers: Vec<(String, String)>,
    },
    /// Why there is no answer.
    Failed(String),
}

impl Ask {
    /// The frame's head and body.
    pub(super) fn new(exchange: Exchange) -> (Self, Vec<u8>) {
        let Exchange { endpoint, certificates, request, timeout_ms } = exchange;
        let (head, body) = request.into_parts();
        let headers = head.headers.iter();
        let ask = Self {
            endpoint,
            method: head.method.to_string(),
            target: head.uri.to_string(),
            headers: headers.map(|(name, value)| (name.to_string(), value.as_bytes().to_vec())).collect(),
            timeout_ms,
            certificates: certificates.as_ref().map(|file| (file.path.clone(), file.bytes.len())),
        };
        let certificates = certificates.map(|file| file.bytes).unwrap_or_default();
        (ask, [&certificates[..], &body[..]].concat())
    }

    /// The request again, and the certificates.
    pub(super) fn into_request(
        self,
        body: &Bytes,
    ) -> Result<(Request<Bytes>, Option<Certificates>), hyper::http::Error> {
        let of_certificates = self.certificates.as_ref().map_or(0, |(_, length)| *length).min(body.len());
        let (file, body) = (body.slice(..of_certificates), body.slice(of_certificates..));
        let certificates = self.certificates.map(|(path, _)| Certificates { path, bytes: file });
        let mut request = Request::builder().method(self.method.as_str()).uri(self.target);
        for (name, value) in self.headers {
            request = request.header(name, value);
        }
        Ok((request.body(body)?, certificates))
    }
}

impl Outcome {
    pub(super) fn answered(status: StatusCode, headers: &HeaderMap) -> Self {
        let text = headers
            .iter()
            .filter_map(|(name, value)| Some((name.to_string(), value.to_str().ok()?.to_owned())));
        Self::Answered { status: status.as_u16(), headers: text.collect() }
    }

    /// The answer; the error says why there is none.
    pub(super) fn into_answer(self) -> Result<Answer, String> {
        match self {
            Self::Failed(why) => Err(why.chars().take(MOST_CHARACTERS).collect()),
            Self::Answered { status, headers } => {
                let status = StatusCode::from_u16(status).map_err(|error| error.to_string())?;
                let mut taken = HeaderMap::new();
                for (name, value) in headers.into_iter().take(MOST_HEADERS) {
                    if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), value.parse()) {
                        taken.append(name, value);
                    }
                }
                Ok(Answer { status, headers: taken })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint() -> Endpoint {
        Endpoint {
            client: String::from("c"),
            tls: true,
            host: String::from("::1"),
            port: 443,
            authority: String::from("[::1]"),
            connect_timeout_ms: 1,
        }
    }

    #[test]
    fn a_request_arrives_as_it_was_sent() {
        let request = || {
            let body = Bytes::from_static(b"body");
            Request::post("/in?a=b").header("x-opaque", &b"\xff"[..]).body(body).unwrap()
        };
        for bytes in [None, Some(Bytes::from_static(b"pem"))] {
            let certificates = bytes.map(|bytes| Certificates { path: PathBuf::from("/ca.pem"), bytes });
            let exchange = Exchange {
                endpoint: endpoint(),
                certificates: certificates.clone(),
                request: request(),
                timeout_ms: 7,
            };
            let (ask, body) = Ask::new(exchange);
            let sent: Ask = serde_json::from_slice(&serde_json::to_vec(&ask).unwrap()).unwrap();
            assert_eq!((sent.timeout_ms, &sent.endpoint), (7, &endpoint()));
            let (arrived, file) = sent.into_request(&body.into()).unwrap();
            assert_eq!((arrived.method(), arrived.uri()), (request().method(), request().uri()));
            assert_eq!((arrived.headers(), arrived.body()), (request().headers(), request().body()));
            assert_eq!(file, certificates);
        }
    }

    #[test]
    fn an_answer_that_is_none_is_an_error() {
        let headers =
            vec![(String::from("retry-after"), String::from("7")), (String::from("\n"), String::new())];
        let answer = Outcome::Answered { status: 503, headers }.into_answer().unwrap();
        assert_eq!((answer.status.as_u16(), answer.headers.len()), (503, 1));
        assert!(Outcome::Answered { status: 7, headers: Vec::new() }.into_answer().is_err());
        // More than a map of headers can hold.
        let headers = (0..40_000).map(|number| (format!("h{number}"), String::new())).collect();
        let answer = Outcome::Answered { status: 200, headers }.into_answer().unwrap();
        assert_eq!(answer.headers.len(), MOST_HEADERS);
        let long = Outcome::Failed("x".repeat(100_000)).into_answer().unwrap_err();
        assert_eq!(long.len(), MOST_CHARACTERS);
    }
}
