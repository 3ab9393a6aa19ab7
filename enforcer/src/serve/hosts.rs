//! The host names that are accepted in requests over TCP.
//!
//! A web page can make its own name resolve to this machine, and then read the answers under that name (DNS rebinding).
//! It cannot leave its name out of the request.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use axum::http::{
    HeaderMap, Uri, Version, header,
    uri::{Authority, InvalidUri},
};

/// The accepted names, besides IP addresses and `localhost`.
#[derive(Clone, Debug)]
pub struct Hosts(Arc<BTreeSet<String>>);

/// Why a request is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum Misdirected {
    #[error("the request has no Host header")]
    Missing,
    #[error("the request has several Host headers")]
    Several,
    #[error("the Host header cannot be read")]
    Malformed,
    #[error(
        "the request is for the host {0:?}, which is not a name of this node: use its IP address, or add the name to metricsHosts"
    )]
    Foreign(String),
}

impl From<InvalidUri> for Misdirected {
    fn from(_: InvalidUri) -> Self {
        Self::Malformed
    }
}

impl Hosts {
    /// The node's own name and the configured ones.
    #[must_use]
    pub fn new(node: &str, configured: &[String]) -> Self {
        let names = configured.iter().map(String::as_str).chain([node]);
        Self(Arc::new(names.map(plain).collect()))
    }

    /// Checks whether a request is meant for this machine.
    ///
    /// HTTP/1.0 is always accepted: it need not name a host, and no browser sends it.
    pub(super) fn check(&self, version: Version, uri: &Uri, headers: &HeaderMap) -> Result<(), Misdirected> {
        if version <= Version::HTTP_10 {
            return Ok(());
        }
        if let Some(authority) = uri.authority() {
            self.check_name(authority)?;
        }
        let mut hosts = headers.get_all(header::HOST).iter();
        match (hosts.next(), hosts.next()) {
            (None, _) => Err(Misdirected::Missing),
            (Some(_), Some(_)) => Err(Misdirected::Several),
            (Some(host), None) => self.check_name(&Authority::try_from(host.as_bytes())?),
        }
    }

    fn check_name(&self, authority: &Authority) -> Result<(), Misdirected> {
        let name = plain(authority.host());
        let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(&name);
        let is_ours = address.parse::<IpAddr>().is_ok() || name == "localhost" || self.0.contains(&name);
        if is_ours { Ok(()) } else { Err(Misdirected::Foreign(name)) }
    }
}

/// Normalizes a name: lower case, without the trailing dot of the root.
fn plain(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn check(version: Version, uri: &str, hosts: &[&'static str]) -> Result<(), Misdirected> {
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(header::HOST, HeaderValue::from_static(host));
        }
        let names = Hosts::new("Node-1", &[String::from("node-1.example.com")]);
        names.check(version, &uri.parse().unwrap(), &headers)
    }

    #[test]
    fn addresses_and_names_of_the_node_are_answered_and_no_others() {
        for host in [
            "127.0.0.1:9464",
            "10.1.2.3",
            "[::1]:9464",
            "localhost:9464",
            "node-1",
            "NODE-1:9464",
            "node-1.example.com.",
        ] {
            assert!(check(Version::HTTP_11, "/metrics", &[host]).is_ok(), "{host}");
        }
        for host in
            ["evil.example:9464", "node-1.evil.example", "localhost.evil.example", "10.1.2.3.evil.example"]
        {
            let refused = check(Version::HTTP_11, "/metrics", &[host]);
            assert!(matches!(refused, Err(Misdirected::Foreign(_))), "{host}");
        }
        let refused = check(Version::HTTP_11, "http://evil.example/metrics", &["127.0.0.1"]);
        assert!(matches!(refused, Err(Misdirected::Foreign(_))));
        assert!(matches!(check(Version::HTTP_11, "/metrics", &["a b"]), Err(Misdirected::Malformed)));
        assert!(matches!(check(Version::HTTP_11, "/metrics", &[]), Err(Misdirected::Missing)));
        assert!(matches!(check(Version::HTTP_11, "/metrics", &["a", "a"]), Err(Misdirected::Several)));
        assert!(check(Version::HTTP_10, "/metrics", &[]).is_ok());
    }
}
