//! The line that the daemon's log begins with: what it was told to do.

use crate::{
    config::Config,
    serve::{Admin, Observe},
};

/// Version, mode, thresholds, sources of pods, and sockets.
pub(super) fn start_line(config: &Config, kubelets: bool) -> String {
    let thresholds: Vec<_> = config
        .settings
        .eviction
        .thresholds
        .iter()
        .map(|threshold| {
            let kind = if threshold.is_hard() { "hard" } else { "soft" };
            format!("{kind} {}<{}", threshold.signal.as_str(), threshold.value)
        })
        .collect();
    let thresholds = if thresholds.is_empty() { String::from("none") } else { thresholds.join(", ") };
    let kubelets_pods = if kubelets { ", and the kubelet's pods" } else { "" };
    let metrics = config.metrics_listen.map(|address| format!(", metrics on {address}")).unwrap_or_default();
    format!(
        "enforcer {} starts: mode {}; thresholds: {thresholds}; pods of {}{kubelets_pods}; sockets {} and {}{metrics}",
        env!("CARGO_PKG_VERSION"),
        config.mode,
        config.static_pod_path.display(),
        Observe::path(&config.run_dir).display(),
        Admin::path(&config.run_dir).display(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_says_what_the_configuration_has_the_daemon_do() {
        let config = Config {
            metrics_listen: Some("127.0.0.1:9".parse().unwrap()),
            run_dir: "/run/e".into(),
            static_pod_path: "/pods".into(),
            ..Config::default()
        };
        let line = start_line(&config, false);
        assert!(
            line.starts_with(&format!("enforcer {} starts: mode dry-run; ", env!("CARGO_PKG_VERSION"))),
            "{line}"
        );
        assert!(line.contains("hard memory.available<100Mi"), "{line}");
        let end =
            "; pods of /pods; sockets /run/e/observe.sock and /run/e/admin.sock, metrics on 127.0.0.1:9";
        assert!(line.ends_with(end), "{line}");
        let mut bare = config;
        bare.settings.eviction.thresholds.clear();
        assert!(
            start_line(&bare, true).contains("thresholds: none; pods of /pods, and the kubelet's pods; ")
        );
    }
}
