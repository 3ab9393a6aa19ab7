//! TLS to a receiver: rustls with given certificates or the system's. Nothing is loaded without `https`.

use std::{
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{
        CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature,
    },
    pki_types::{
        CertificateDer, InvalidDnsNameError, PrivateKeyDer, ServerName, UnixTime, pem, pem::PemObject as _,
    },
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::message::{Certificates, Identity, Security, Trust};
use crate::regular;

/// The files in which systems keep the certificates that they trust.
const SYSTEM: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The largest file of certificates that is read. A system's file is a fifth of this.
const MAX_BYTES: u64 = 2 << 20;

/// Why TLS failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    /// None of the known files with the system's certificates exists.
    #[error("cannot find this system's certificates ({}): set caFile", SYSTEM.join(", "))]
    NoSystem,
    /// The file of certificates cannot be read.
    #[error("cannot read the certificates of {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The underlying error.
        #[source]
        source: io::Error,
    },
    /// It is not PEM.
    #[error("{} cannot be read as PEM", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// The underlying error.
        #[source]
        source: pem::Error,
    },
    /// It has no usable certificate.
    #[error("{} has no certificate that can be used", path.display())]
    NoRoot {
        /// The file.
        path: PathBuf,
    },
    /// rustls refuses the settings.
    #[error("cannot set up TLS")]
    Setup(#[from] rustls::Error),
    /// The host's name is not valid.
    #[error("the host is not a name that a certificate could have")]
    Name(#[from] InvalidDnsNameError),
    /// The handshake failed.
    #[error("the TLS handshake failed")]
    Handshake(#[source] io::Error),
}

/// Does the TLS handshake. The system's certificates are read for each connection: those are rare, and the file may be
/// replaced.
pub(super) async fn wrap(
    stream: TcpStream,
    host: &str,
    security: &Security,
) -> Result<TlsStream<TcpStream>, TlsError> {
    let name = security.server_name.as_deref().unwrap_or(host);
    let name = ServerName::try_from(name.to_owned())?;
    let connector = TlsConnector::from(Arc::new(config(security)?));
    connector.connect(name, stream).await.map_err(TlsError::Handshake)
}

fn config(security: &Security) -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let algorithms = provider.signature_verification_algorithms;
    let builder =
        ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
    let builder = match &security.trust {
        Trust::Pinned { certificates: file, authority } => {
            let otherwise = authority.as_ref().map(|file| verifier(file, &provider)).transpose()?;
            let pinned = Pinned { certificates: certificates(file)?, otherwise, algorithms };
            builder.dangerous().with_custom_certificate_verifier(Arc::new(pinned))
        }
        Trust::Roots(file) => builder.with_root_certificates(roots(&file.path, &file.bytes)?),
        Trust::System => {
            let path = SYSTEM.iter().map(Path::new).find(|path| path.exists()).ok_or(TlsError::NoSystem)?;
            builder.with_root_certificates(roots(path, &read(path)?)?)
        }
    };
    let mut config = match &security.identity {
        None => builder.with_no_client_auth(),
        Some(Identity { certificates: chain, key }) => {
            let chain = certificates(chain)?;
            let pem = |source| TlsError::Pem { path: key.path.clone(), source };
            let key = PrivateKeyDer::from_pem_slice(&key.bytes).map_err(pem)?;
            builder.with_client_auth_cert(chain, key)?
        }
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// Trusts some certificates by themselves. A kubelet signs its own, for a name that is the node's and by an authority
/// that it throws away; what can be known is the file that only root may read.
#[derive(Debug)]
struct Pinned {
    certificates: Vec<CertificateDer<'static>>,
    /// Verifies others.
    otherwise: Option<Arc<WebPkiServerVerifier>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if self.certificates.iter().any(|known| known == end_entity) {
            return Ok(ServerCertVerified::assertion());
        }
        match &self.otherwise {
            Some(verifier) => {
                verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
            }
            None => Err(rustls::Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

fn verifier(
    Certificates { path, bytes }: &Certificates,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<WebPkiServerVerifier>, TlsError> {
    let roots = Arc::new(roots(path, bytes)?);
    let builder = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(provider));
    builder.build().map_err(|_error| TlsError::NoRoot { path: path.clone() })
}

/// The certificates of a file, of which there must be one.
pub(crate) fn certificates(
    Certificates { path, bytes }: &Certificates,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let pem = |source| TlsError::Pem { path: path.clone(), source };
    let found: Vec<_> = CertificateDer::pem_slice_iter(bytes).collect::<Result<_, _>>().map_err(pem)?;
    if found.is_empty() { Err(TlsError::NoRoot { path: path.clone() }) } else { Ok(found) }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let mut bytes = Vec::new();
    match regular::open(path).and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes)) {
        Ok(_) => Ok(bytes),
        Err(source) => Err(TlsError::Read { path: path.to_owned(), source }),
    }
}

/// The authorities of a file, of which one must be usable.
pub(crate) fn roots(path: &Path, bytes: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bytes) {
        let certificate = certificate.map_err(|source| TlsError::Pem { path: path.to_owned(), source })?;
        // A system's file may hold old certificates that cannot be used. The others count.
        if let Err(error) = roots.add(certificate) {
            tracing::debug!(%error, path = %path.display(), "skipped a certificate");
        }
    }
    if roots.is_empty() { Err(TlsError::NoRoot { path: path.to_owned() }) } else { Ok(roots) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_holds_no_certificate_is_reported() {
        assert!(matches!(read(Path::new("/nonexistent/ca.pem")), Err(TlsError::Read { .. })));
        let read_config = |text: &'static str| {
            let (path, bytes) = (PathBuf::from("/ca.pem"), text.as_bytes().into());
            config(&Security { trust: Trust::Roots(Certificates { path, bytes }), ..Security::default() })
        };
        assert!(matches!(read_config("no pem"), Err(TlsError::NoRoot { .. })));
        let wrong = "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n";
        assert!(matches!(read_config(wrong), Err(TlsError::Pem { .. })));
    }
}
