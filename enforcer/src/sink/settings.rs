//! The configuration's field `sinks` as values; secrets are named by their files only.

use std::{fmt, net::IpAddr, path::PathBuf, str::FromStr};

use hyper::Uri;

use crate::journal::EventType;

/// `sinks`: the receivers of events.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct SinkSettings {
    /// `sinks.journald`.
    pub journald: JournaldSettings,
    /// `sinks.kubernetes`.
    pub kubernetes: KubernetesSettings,
    /// `sinks.webhook`, with unique names.
    pub webhooks: Vec<WebhookSettings>,
}

/// `sinks.journald`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct JournaldSettings {
    /// `enabled`.
    pub enabled: bool,
    /// `socket`: the socket on which journald receives entries.
    pub socket: PathBuf,
    /// `types`: only these events; all, if empty.
    pub types: Vec<EventType>,
}

impl Default for JournaldSettings {
    fn default() -> Self {
        Self { enabled: false, socket: "/run/systemd/journal/socket".into(), types: Vec::new() }
    }
}

/// `sinks.kubernetes`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct KubernetesSettings {
    /// `enabled`.
    pub enabled: bool,
    /// `dryRun`: whether evictions that are only decided are reported too.
    pub dry_run: bool,
}

/// One of `sinks.webhook`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct WebhookSettings {
    /// `name`: a DNS label, also the name of its cursor's file.
    pub name: String,
    /// `url`, whose path may be a secret of its receiver's.
    pub url: Url,
    /// `types`: only these events; all, if empty.
    pub types: Vec<EventType>,
    /// `secretFile`: the secrets that sign requests.
    pub secret_file: Option<PathBuf>,
    /// `tokenFile`: a bearer token.
    pub token_file: Option<PathBuf>,
    /// `caFile`: the certificates that https trusts instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// `batch`: many events in a request; without it, one.
    pub batch: Option<BatchSettings>,
    /// `connectTimeout` in milliseconds: 10 ms to a minute.
    pub connect_timeout_ms: u64,
    /// `timeout` in milliseconds, for a request with its connection and answer: 10 ms to ten minutes.
    pub timeout_ms: u64,
    /// `handshake`: whether to ask the receiver for permission first.
    pub handshake: bool,
}

/// `batch` of a webhook.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BatchSettings {
    /// `maxEvents`: 1 to 256.
    pub max_events: usize,
    /// `maxBytes` of a request's body: 1 KiB to 4 MiB; a larger event is sent alone.
    pub max_bytes: usize,
}

impl Default for BatchSettings {
    fn default() -> Self {
        Self { max_events: 100, max_bytes: 256 << 10 }
    }
}

/// A webhook's url: `http` or `https`, a host, and the request target.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Url {
    text: String,
    /// Whether it is `https`.
    pub(super) tls: bool,
    /// Without the brackets of an IPv6 address.
    pub(super) host: String,
    pub(super) port: u16,
    /// Host and port as written in the url.
    pub(super) authority: String,
    /// The path and query.
    pub(super) target: String,
}

/// The text is not a webhook's url.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("is not the url of a webhook: {why}; write such as https://events.example.com/enforcer")]
pub struct InvalidUrl {
    /// What is wrong with it.
    pub why: &'static str,
}

impl FromStr for Url {
    type Err = InvalidUrl;

    fn from_str(text: &str) -> Result<Self, InvalidUrl> {
        let invalid = |why| InvalidUrl { why };
        if text.contains('#') {
            return Err(invalid("a receiver never sees the part after a #"));
        }
        let uri: Uri = text.parse().map_err(|_error| invalid("it cannot be read"))?;
        let tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            Some(_) | None => return Err(invalid("it begins with neither http:// nor https://")),
        };
        let authority = uri.authority().ok_or(invalid("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(invalid("it has a user or password, which anyone could read: use tokenFile"));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err(invalid("it has no host"));
        }
        // `Uri` reports a port that is not a 16-bit number as no port.
        let digits = authority.as_str().strip_prefix(authority.host()).unwrap_or_default();
        let port = match digits.strip_prefix(':') {
            None => {
                if tls {
                    443
                } else {
                    80
                }
            }
            Some(digits) => {
                digits.parse().map_err(|_error| invalid("its port is not a number up to 65535"))?
            }
        };
        Ok(Self {
            text: text.to_owned(),
            tls,
            host: host.to_owned(),
            port,
            authority: authority.as_str().to_owned(),
            target: uri.path_and_query().map_or_else(|| String::from("/"), ToString::to_string),
        })
    }
}

impl Url {
    /// Whether requests can be read in transit.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        let address: Option<IpAddr> = self.host.parse().ok();
        let on_this_machine =
            self.host == "localhost" || address.is_some_and(|address| address.is_loopback());
        !self.tls && !on_this_machine
    }

    /// What anyone may know of it: not the path and the query, by which some receivers know who sends. It cannot be taken
    /// for a url.
    #[must_use]
    pub fn without_path(&self) -> String {
        match self.target.as_str() {
            "/" => self.text.clone(),
            _ => format!("{}://{}/<removed>", if self.tls { "https" } else { "http" }, self.authority),
        }
    }

    /// Whether it is `https`.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.tls
    }
}

impl fmt::Display for Url {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_taken_apart() {
        let url: Url = "https://[::1]:8443/a/b?c=d".parse().unwrap();
        assert_eq!((url.tls, url.host.as_str(), url.port), (true, "::1", 8443));
        assert_eq!((url.authority.as_str(), url.target.as_str()), ("[::1]:8443", "/a/b?c=d"));
        assert_eq!(url.without_path(), "https://[::1]:8443/<removed>");
        assert!(url.without_path().parse::<Url>().is_err(), "a file that is made of it is refused");
        let url: Url = "http://example.com".parse().unwrap();
        assert_eq!(url.without_path(), "http://example.com");
        assert_eq!((url.port, url.target.as_str(), url.is_readable()), (80, "/", true));
        for here in ["http://localhost/", "http://127.0.0.1:1/", "http://[::1]/", "https://example.com/"] {
            assert!(!here.parse::<Url>().unwrap().is_readable(), "{here}");
        }
    }

    #[test]
    fn what_is_no_url_says_why() {
        for (text, why) in [
            ("", "cannot be read"),
            ("/a", "neither"),
            ("ftp://a/", "neither"),
            ("http://u:p@a/", "tokenFile"),
            ("http://a/#b", "#"),
            ("http://a:99999/", "port"),
            ("http://a:/", "port"),
            ("https://", "cannot be read"),
            ("http://a b/", "cannot be read"),
        ] {
            let error = text.parse::<Url>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
