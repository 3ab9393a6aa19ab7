//! Certificates and keys of a node's components, made anew for each guest, and the kubeconfigs that name them.
use anyhow::Context as _;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};

use crate::guest::kube::{
    Made,
    configuration::{CLUSTER_ADDRESS, FOLDER, NODE_ADDRESS},
};

/// The clients of the API server: the name of the files, who it is, and in which group.
const CLIENTS: [(&str, &str, Option<&str>); 4] = [
    ("admin", "admin", Some("system:masters")),
    // Its many controllers would each need a service account.
    ("kube-controller-manager", "system:kube-controller-manager", Some("system:masters")),
    ("kubelet", "system:node:guest", Some("system:nodes")),
    ("enforcer", "enforcer", None),
];

/// The authority's certificate; the API server's certificate and the clients' with their keys; the pair of keys for service
/// accounts; a kubeconfig for each client.
pub(super) fn files() -> anyhow::Result<Vec<Made>> {
    let mut files = Vec::new();
    let (authority, issuer) = authority().context("cannot make a certificate authority")?;
    files.push(Made::text(format!("{FOLDER}/pki/ca.crt"), authority));

    let names = ["localhost", "guest", "kubernetes.default.svc", "127.0.0.1", NODE_ADDRESS, CLUSTER_ADDRESS];
    let server = CertificateParams::new(names.map(str::to_owned))?;
    files.extend(signed(
        "kube-apiserver",
        &with_name(server, "kube-apiserver", None, ExtendedKeyUsagePurpose::ServerAuth),
        &issuer,
    )?);
    for (file, name, group) in CLIENTS {
        let client =
            with_name(CertificateParams::default(), name, group, ExtendedKeyUsagePurpose::ClientAuth);
        files.extend(signed(file, &client, &issuer)?);
        files.push(kubeconfig(file));
    }
    let accounts = KeyPair::generate()?;
    files.push(key("service-accounts", &accounts));
    files.push(Made::text(format!("{FOLDER}/pki/service-accounts.pub"), accounts.public_key_pem()));
    Ok(files)
}

/// The authority's certificate, and what signs with it.
fn authority() -> anyhow::Result<(String, Issuer<'static, KeyPair>)> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "kubernetes");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    Ok((certificate.pem(), Issuer::new(params, key)))
}

fn with_name(
    mut params: CertificateParams,
    name: &str,
    group: Option<&str>,
    usage: ExtendedKeyUsagePurpose,
) -> CertificateParams {
    params.distinguished_name = DistinguishedName::new();
    if let Some(group) = group {
        params.distinguished_name.push(DnType::OrganizationName, group);
    }
    params.distinguished_name.push(DnType::CommonName, name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![usage];
    params
}

/// A certificate and its key.
fn signed(file: &str, params: &CertificateParams, issuer: &Issuer<'_, KeyPair>) -> anyhow::Result<[Made; 2]> {
    let own = KeyPair::generate()?;
    let certificate =
        params.signed_by(&own, issuer).with_context(|| format!("cannot sign the certificate of {file}"))?;
    Ok([Made::text(format!("{FOLDER}/pki/{file}.crt"), certificate.pem()), key(file, &own)])
}

fn key(file: &str, key: &KeyPair) -> Made {
    Made { path: format!("{FOLDER}/pki/{file}.key"), mode: 0o600, content: key.serialize_pem().into() }
}

/// Paths in a kubeconfig begin at its folder.
fn kubeconfig(client: &str) -> Made {
    let text = format!(
        "apiVersion: v1\n\
         kind: Config\n\
         current-context: guest\n\
         contexts:\n\
         - name: guest\n\
         \x20 context: {{cluster: guest, user: {client}}}\n\
         clusters:\n\
         - name: guest\n\
         \x20 cluster: {{server: 'https://127.0.0.1', certificate-authority: pki/ca.crt}}\n\
         users:\n\
         - name: {client}\n\
         \x20 user: {{client-certificate: pki/{client}.crt, client-key: pki/{client}.key}}\n"
    );
    Made::text(format!("{FOLDER}/{client}.conf"), text)
}
