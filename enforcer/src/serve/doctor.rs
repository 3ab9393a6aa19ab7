//! `GET /v1/doctor`, as the daemon gives it and `enforcer doctor` reads it.

use serde::{Deserialize, Serialize};

use crate::sense::{Facility, Failure};

/// What the daemon found at its start and what it uses: the answer to `GET /v1/doctor`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Doctor {
    /// All facilities, and the rung in use of each.
    pub facilities: Vec<Facility>,
    /// Its eBPF programs.
    pub programs: Programs,
}

/// The daemon's eBPF programs.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Programs {
    /// Why none could be loaded, if so.
    pub error: Option<String>,
    /// The attached programs.
    pub attached: Vec<String>,
    /// The programs that the kernel refused.
    pub failed: Vec<Refused>,
}

/// A program that the kernel refused.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Refused {
    /// Its name.
    pub program: String,
    /// Where it should have been attached.
    pub hook: String,
    /// The error.
    pub error: String,
    /// The end of the verifier's log, if the verifier refused it.
    pub verifier_tail: Option<String>,
    /// What does not work without it.
    pub lost: String,
}

impl From<&Failure> for Refused {
    fn from(failure: &Failure) -> Self {
        let Failure { program, hook, error, verifier_tail, consequence } = failure;
        Self {
            program: (*program).to_owned(),
            hook: hook.clone(),
            error: error.clone(),
            verifier_tail: verifier_tail.clone(),
            lost: (*consequence).to_owned(),
        }
    }
}
