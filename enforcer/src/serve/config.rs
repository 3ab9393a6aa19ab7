//! `GET /v1/config`: the running configuration, and the daemon's build.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Json,
    extract::State,
    response::{IntoResponse as _, Response},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::server::Shared;

/// The running configuration: the answer to `GET /v1/config`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigView {
    /// The daemon's build.
    pub daemon: Build,
    /// Its hash, as in events.
    pub config_hash: String,
    /// Each field's value as in a file; null if it is not set. Of a file that a value names, it has the path alone.
    pub configuration: Map<String, Value>,
    /// Where each value comes from: `FILE:LINE`, a flag, the kubelet, this host, or `default`.
    pub origins: BTreeMap<String, String>,
}

/// A build of this program.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Build {
    /// Its version.
    pub version: String,
    /// The commit that it was made of; `None` if the build did not get it.
    #[serde(default)]
    pub commit: Option<String>,
    /// The processor's architecture.
    pub architecture: String,
}

impl Build {
    /// This program's.
    #[must_use]
    pub fn own() -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: option_env!("ENFORCER_COMMIT").map(str::to_owned),
            architecture: std::env::consts::ARCH.to_owned(),
        }
    }
}

pub(super) async fn config(State(shared): State<Shared>) -> Response {
    let view = Arc::clone(&shared.config.borrow());
    Json(&*view).into_response()
}
