//! The permission to send: the abuse protection of the CloudEvents webhook specification (HTTP OPTIONS).

use std::time::Duration;

use bytes::Bytes;
use hyper::{HeaderMap, Method, Request, StatusCode, header, http};

use crate::{
    USER_AGENT,
    sink::{WebhookSettings, run::Trouble},
};

const REQUEST_ORIGIN: &str = "webhook-request-origin";
const ALLOWED_ORIGIN: &str = "webhook-allowed-origin";
const ALLOWED_RATE: &str = "webhook-allowed-rate";

/// A receiver's permission.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct Leave {
    /// How many requests it allows in a minute, if limited.
    per_minute: Option<u32>,
}

impl Leave {
    /// The least time between the starts of two requests.
    pub(super) fn gap(&self) -> Option<Duration> {
        self.per_minute.map(|per_minute| Duration::from_mins(1) / per_minute.max(1))
    }
}

/// The request for permission to send as `node`.
pub(super) fn request(settings: &WebhookSettings, node: &str) -> Result<Request<Bytes>, http::Error> {
    Request::builder()
        .method(Method::OPTIONS)
        .uri(settings.url.target.as_str())
        .header(header::HOST, settings.url.authority.as_str())
        .header(header::USER_AGENT, USER_AGENT)
        .header(REQUEST_ORIGIN, node)
        .body(Bytes::new())
}

/// Evaluates the receiver's answer.
pub(super) fn leave(status: StatusCode, headers: &HeaderMap, node: &str) -> Result<Leave, Trouble> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let later = |why: String| Err(Trouble::Later { why, after: None });
    if status == StatusCode::GONE {
        return Err(Trouble::Gone { why: format!("the receiver answers {status} to the handshake") });
    }
    if !status.is_success() {
        return later(format!("the receiver answers {status} to the handshake (OPTIONS)"));
    }
    match text(ALLOWED_ORIGIN) {
        Some(origin) if origin == "*" || origin.eq_ignore_ascii_case(node) => {}
        _ => {
            return later(format!(
                "the receiver does not allow {node} to send: its answer to OPTIONS has no WebHook-Allowed-Origin of * or \
                 {node}"
            ));
        }
    }
    let per_minute = match text(ALLOWED_RATE) {
        None | Some("*") => None,
        Some(rate) => match rate.parse() {
            Ok(rate) if rate > 0 => Some(rate),
            Ok(_) | Err(_) => {
                return later(String::from("the receiver's WebHook-Allowed-Rate allows nothing"));
            }
        },
    };
    Ok(Leave { per_minute })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(status: u16, origin: Option<&str>, rate: Option<&str>) -> Result<Leave, Trouble> {
        let mut headers = HeaderMap::new();
        for (name, value) in [(ALLOWED_ORIGIN, origin), (ALLOWED_RATE, rate)] {
            if let Some(value) = value {
                headers.insert(name, value.parse().unwrap());
            }
        }
        leave(StatusCode::from_u16(status).unwrap(), &headers, "node-1")
    }

    #[test]
    fn leave_is_given_to_us_or_everybody_and_may_have_a_rate() {
        assert_eq!(reported(200, Some("*"), None).unwrap().gap(), None);
        assert_eq!(reported(204, Some("Node-1"), Some("*")).unwrap().gap(), None);
        assert_eq!(reported(200, Some("*"), Some("120")).unwrap().gap(), Some(Duration::from_millis(500)));
        for (status, origin, rate) in [
            (200, None, None),
            (200, Some("node-2"), None),
            (405, Some("*"), None),
            (200, Some("*"), Some("0")),
            (200, Some("*"), Some("often")),
        ] {
            assert!(
                matches!(reported(status, origin, rate), Err(Trouble::Later { .. })),
                "{status} {origin:?}"
            );
        }
        assert!(matches!(reported(410, None, None), Err(Trouble::Gone { .. })));
    }
}
