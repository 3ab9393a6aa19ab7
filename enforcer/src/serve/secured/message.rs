//! What the daemon and the metrics process say to each other.

use serde::{Deserialize, Serialize};

use crate::{metrics::Format, network::Certificates};

/// The longest page: some hundred times an ordinary one.
pub(super) const MOST_PAGE_BYTES: usize = 8 << 20;

/// What the daemon says.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Say {
    /// What is served from now on, and to whom. It is said again and again, and answered by [`Heard::Settled`].
    Settings(Box<Settings>),
    /// The answer to [`Heard::Wanted`]: the page is the body, if it could be written.
    Page {
        /// The number of the request.
        id: u64,
        /// Whether the body is the page.
        written: bool,
    },
}

/// How to serve.
#[derive(Clone, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Settings {
    /// The names of this node that requests may give as their host.
    pub(super) hosts: Vec<String>,
    /// The contents of the files; without them every connection is closed at once.
    pub(super) contents: Option<Contents>,
}

/// The contents of the files.
#[derive(Clone, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Contents {
    /// The server's certificate, and those between it and its authority.
    pub(super) certificate: Certificates,
    /// Its private key.
    pub(super) key: Certificates,
    /// The authorities of clients.
    pub(super) client_ca: Option<Certificates>,
    /// The tokens of clients; empty if none are asked for.
    pub(super) tokens: Vec<String>,
}

/// What the process says. It is not trusted.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Heard {
    /// The settings are in force.
    Settled {
        /// Why a client cannot be served with them, or will not accept them.
        problem: Option<String>,
    },
    /// A client wants the metrics, and may have them.
    Wanted {
        /// The number of the request.
        id: u64,
        /// Whether it prefers the classic format.
        classic: bool,
    },
}

/// The format that was asked for.
pub(super) fn format_of(classic: bool) -> Format {
    if classic { Format::Classic } else { Format::OpenMetrics }
}
