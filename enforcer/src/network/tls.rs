//! TLS to a receiver: rustls with given certificates or the system's. Nothing is loaded without `https`.

use std::{
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, InvalidDnsNameError, ServerName, pem, pem::PemObject as _},
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::message::Certificates;
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
pub(super) enum TlsError {
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
    #[error("{} has no certificate that can be trusted", path.display())]
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
    certificates: Option<&Certificates>,
) -> Result<TlsStream<TcpStream>, TlsError> {
    let name = ServerName::try_from(host.to_owned())?;
    let connector = TlsConnector::from(Arc::new(config(certificates)?));
    connector.connect(name, stream).await.map_err(TlsError::Handshake)
}

fn config(certificates: Option<&Certificates>) -> Result<ClientConfig, TlsError> {
    let roots = if let Some(Certificates { path, bytes }) = certificates {
        roots(path, bytes)?
    } else {
        let path = SYSTEM.iter().map(Path::new).find(|path| path.exists()).ok_or(TlsError::NoSystem)?;
        roots(path, &read(path)?)?
    };
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let mut config =
        builder.with_safe_default_protocol_versions()?.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let mut bytes = Vec::new();
    match regular::open(path).and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes)) {
        Ok(_) => Ok(bytes),
        Err(source) => Err(TlsError::Read { path: path.to_owned(), source }),
    }
}

fn roots(path: &Path, bytes: &[u8]) -> Result<RootCertStore, TlsError> {
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
            config(Some(&Certificates { path, bytes }))
        };
        assert!(matches!(read_config("no pem"), Err(TlsError::NoRoot { .. })));
        let wrong = "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n";
        assert!(matches!(read_config(wrong), Err(TlsError::Pem { .. })));
    }
}
