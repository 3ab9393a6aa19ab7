//! The meaning of a receiver's answer.

use std::time::{Duration, SystemTime};

use hyper::{HeaderMap, StatusCode};

use crate::network::retry_after;

#[derive(Debug, Eq, PartialEq)]
pub(super) enum Verdict {
    /// It took the events.
    Taken,
    /// It wants no more requests.
    Gone,
    /// The request was too large.
    TooLarge,
    /// Not now, and not before `after`. The hint says what may be wrong.
    Later { after: Option<Duration>, hint: &'static str },
}

pub(super) fn verdict(status: StatusCode, headers: &HeaderMap, now: SystemTime) -> Verdict {
    match status {
        status if status.is_success() => Verdict::Taken,
        StatusCode::GONE => Verdict::Gone,
        StatusCode::PAYLOAD_TOO_LARGE => Verdict::TooLarge,
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            Verdict::Later { after: retry_after(headers, now), hint: "" }
        }
        status => Verdict::Later { after: None, hint: hint(status) },
    }
}

fn hint(status: StatusCode) -> &'static str {
    match status {
        status if status.is_redirection() => {
            ": redirects are not followed, configure the url that it leads to"
        }
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => ": check tokenFile and secretFile",
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => ": check the url",
        StatusCode::UNSUPPORTED_MEDIA_TYPE => {
            ": it does not accept this format; batches are sent if batch is configured, single events otherwise"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use hyper::header;

    use super::*;

    fn reported(status: u16, after: Option<&str>) -> Verdict {
        let mut headers = HeaderMap::new();
        if let Some(after) = after {
            headers.insert(header::RETRY_AFTER, after.parse().unwrap());
        }
        // Sun, 06 Nov 1994 08:49:37 GMT.
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        verdict(StatusCode::from_u16(status).unwrap(), &headers, now)
    }

    #[test]
    fn answers_mean_what_the_specification_says() {
        for status in [200, 201, 202, 204] {
            assert_eq!(reported(status, None), Verdict::Taken, "{status}");
        }
        assert_eq!(reported(410, None), Verdict::Gone);
        assert_eq!(reported(413, None), Verdict::TooLarge);
        for status in [301, 307, 400, 401, 404, 415, 418, 500, 502] {
            assert!(matches!(reported(status, Some("7")), Verdict::Later { after: None, .. }), "{status}");
        }
        assert!(matches!(reported(308, None), Verdict::Later { hint, .. } if hint.contains("redirects")));
    }

    #[test]
    fn retry_after_is_seconds_or_a_date_and_bounded() {
        let after = |text| match reported(429, Some(text)) {
            Verdict::Later { after, hint: "" } => after.map(|after| after.as_secs()),
            other => panic!("{other:?}"),
        };
        assert_eq!(after("120"), Some(120));
        assert_eq!(after("0"), Some(0));
        assert_eq!(after("Sun, 06 Nov 1994 08:50:07 GMT"), Some(30));
        assert_eq!(after("Sun, 06 Nov 1994 08:49:00 GMT"), Some(0), "a date that has passed");
        assert_eq!(after("Sat, 06 Nov 2094 08:49:37 GMT"), Some(3_600));
        assert_eq!(after("99999999999999999999999"), Some(3_600));
        for wrong in ["", "-1", "1.5", "soon"] {
            assert_eq!(after(wrong), None, "{wrong:?}");
        }
        assert_eq!(
            reported(503, Some("5")),
            Verdict::Later { after: Some(Duration::from_secs(5)), hint: "" }
        );
        assert_eq!(reported(503, None), Verdict::Later { after: None, hint: "" });
    }
}
