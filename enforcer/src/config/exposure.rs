//! `metricsTLS` and `metricsTokenFile`: how metrics are kept from others on the way, and from whom.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::{Config, fields::Fields, read::absolute, table::Form};

/// The form of `metricsTLS`.
pub(super) const FORM: Form =
    Form::Object(&[("certFile", Form::Path), ("keyFile", Form::Path), ("clientCAFile", Form::Path)]);

/// `metricsTLS`: PEM files, which are read again while the daemon runs.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MetricsTls {
    /// The server's certificate, and those between it and its authority.
    pub cert_file: PathBuf,
    /// Its private key.
    pub key_file: PathBuf,
    /// The authorities that sign clients' certificates.
    pub client_ca_file: Option<PathBuf>,
}

/// Reads `metricsTLS`.
pub(super) fn tls(fields: &mut Fields) -> Option<MetricsTls> {
    let mut inner = fields.inner("metricsTLS")?;
    let cert_file = fields.inner_text(&mut inner, "certFile", absolute);
    let key_file = fields.inner_text(&mut inner, "keyFile", absolute);
    let client_ca_file = fields.inner_text(&mut inner, "clientCAFile", absolute);
    for (field, what) in [("certFile", "the certificate"), ("keyFile", "its private key")] {
        if !inner.has(field) {
            let message = format!("missing: write the absolute path of the PEM file with {what}");
            fields.wrong_inner(&inner, field, &message);
        }
    }
    fields.inner_end(inner);
    Some(MetricsTls { cert_file: cert_file?, key_file: key_file?, client_ca_file })
}

/// Refuses an address that others reach without TLS, or without showing who they are; and what has no effect.
pub(super) fn check(fields: &mut Fields, config: &Config) {
    let Config { metrics_listen, metrics_tls, metrics_token_file, .. } = config;
    let asks = metrics_token_file.is_some()
        || metrics_tls.as_ref().is_some_and(|files| files.client_ca_file.is_some());
    if let Some(address) = metrics_listen
        && !address.ip().to_canonical().is_loopback()
        && !(metrics_tls.is_some() && asks)
    {
        let lacking = if metrics_tls.is_some() { "" } else { "metricsTLS and " };
        let message = format!(
            "{address} can be reached from other machines: set {lacking}metricsTokenFile or metricsTLS.clientCAFile, or \
             listen on the loopback interface, such as 127.0.0.1:{}",
            address.port()
        );
        fields.wrong("metricsListen", &message);
    }
    if metrics_tls.is_some() && metrics_listen.is_none() {
        fields.wrong("metricsTLS", "has no use: metricsListen is not set");
    }
    if metrics_token_file.is_some() && metrics_tls.is_none() {
        fields.wrong("metricsTokenFile", "tokens could be read in transit: set metricsTLS too");
    }
}

/// The field as written in a file; null if it is not set.
pub(super) fn show(config: &Config) -> Value {
    let Some(MetricsTls { cert_file, key_file, client_ca_file }) = &config.metrics_tls else {
        return Value::Null;
    };
    let mut shown = json!({"certFile": cert_file, "keyFile": key_file});
    if let Some(path) = client_ca_file {
        shown["clientCAFile"] = json!(path);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "apiVersion: enforcer.dev/v1alpha1\nkind: EnforcerConfiguration\n";

    const FILES: &str = "metricsTLS: {certFile: /c.pem, keyFile: /k.pem}\n";

    /// What is wrong with a file of these fields.
    fn problem(fields: &str) -> Option<String> {
        Config::parse("c.yaml", &format!("{HEAD}{fields}")).err().map(|error| error.to_string())
    }

    #[test]
    fn beyond_loopback_metrics_need_tls_and_a_token_or_an_authority_of_clients() {
        let with_ca = FILES.replace('}', ", clientCAFile: /ca.pem}");
        let token = "metricsTokenFile: /token\n";
        for address in ["10.1.2.3:9464", "0.0.0.0:9464", "'[::]:9464'", "'[2001:db8::1]:9464'"] {
            let listen = format!("metricsListen: {address}\n");
            for (rest, lacking) in
                [("", "set metricsTLS and metricsTokenFile or"), (FILES, "set metricsTokenFile or")]
            {
                let problem = problem(&format!("{listen}{rest}")).unwrap();
                assert!(problem.starts_with("c.yaml:3: metricsListen: "), "{problem}");
                assert!(problem.contains("127.0.0.1:9464") && problem.contains(lacking), "{problem}");
            }
            for enough in [format!("{FILES}{token}"), with_ca.clone(), format!("{with_ca}{token}")] {
                assert_eq!(problem(&format!("{listen}{enough}")), None);
            }
        }
        for address in ["127.0.0.1:9464", "127.8.9.10:9464", "'[::1]:9464'", "'[::ffff:127.0.0.1]:9464'"] {
            let listen = format!("metricsListen: {address}\n");
            for rest in ["", FILES] {
                assert_eq!(problem(&format!("{listen}{rest}")), None, "{address}");
            }
        }
    }

    #[test]
    fn what_is_missing_or_has_no_effect_is_reported() {
        let listen = "metricsListen: 127.0.0.1:9464\n";
        for (fields, expected) in [
            (String::from(FILES), "c.yaml:3: metricsTLS: has no use"),
            (format!("{listen}metricsTokenFile: /t\n"), "c.yaml:4: metricsTokenFile: tokens could be read"),
            (format!("{listen}metricsTLS: {{certFile: /c}}\n"), "c.yaml:4: metricsTLS.keyFile: missing"),
            (format!("{listen}metricsTLS: {{keyFile: /c}}\n"), "c.yaml:4: metricsTLS.certFile: missing"),
            (
                format!("{listen}metricsTLS: {{certFile: c, keyFile: /k}}\n"),
                "c.yaml:4: metricsTLS.certFile: \"c\"",
            ),
            (format!("{listen}metricsTLS: {{caFile: /c}}\n"), "metricsTLS.caFile: unknown"),
        ] {
            let problem = problem(&fields).unwrap();
            assert!(problem.contains(expected), "{problem}");
        }
    }
}
