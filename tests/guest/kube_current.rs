//! On a Kubernetes node of 1.36 or later, by hand: `KUBE_ASSETS=FOLDER cargo xtask vm test kube_current::`.
//!
//! What the release has that the node of every run has not.
mod chart;
mod kinds;
mod policy;
mod race;
mod resize;
mod sources;

use std::fs;

use enforcer_tests::{
    daemon::Daemon,
    kube::{self, wait_for},
};
use serde_json::Value;

use crate::kube::shown;

const MIB: u64 = 1 << 20;

/// The kubelet with other settings. It gets its own ones back when this is dropped.
struct Kubelet {
    own: String,
}

impl Kubelet {
    /// Replaces its configuration by what `change` makes of it, and waits until it works with that.
    fn with(change: impl Fn(&str) -> String) -> Self {
        let own = fs::read_to_string(kube::KUBELET).unwrap();
        let changed = change(&own);
        assert_ne!(changed, own, "nothing is changed");
        let kubelet = Self { own };
        kube::restart_kubelet(&changed).unwrap();
        kubelet
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        // A scene that fails is unwinding here: another panic would end the whole run.
        if let Err(error) = kube::restart_kubelet(&self.own) {
            eprintln!("the kubelet has not its own settings: {error:#}");
        }
    }
}

/// Waits until what the daemon knows of a pod is as `holds` says, by a spec that a source has given it.
fn wait_for_spec(daemon: &Daemon, pod: &Value, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let known = wait_for(&format!("{}: {what}", kube::name(pod)), || {
        Ok(shown(daemon, pod).filter(|known| known["spec"]["provenance"] == "live" && holds(known)))
    });
    known.unwrap_or_else(|error| panic!("{error:#}: {:?}", shown(daemon, pod)))
}
