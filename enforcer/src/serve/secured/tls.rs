//! What a client is served with: the certificate, and how it shows that it may read metrics.

use std::sync::Arc;

use axum::http::{HeaderMap, header};
use ring::{hmac, rand::SystemRandom};
use rustls::{
    CertificateError, RootCertStore, ServerConfig,
    client::verify_server_cert_signed_by_trust_anchor,
    crypto::ring as provider,
    pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject as _},
    server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier},
};

use super::message::Contents;
use crate::network::{TlsError, certificates, roots};

/// The scheme of tokens in the header `Authorization`.
const SCHEME: &str = "Bearer";

/// The contents of the files, ready for use.
pub(super) struct Served {
    pub(super) config: Arc<ServerConfig>,
    certificate: CertificateDer<'static>,
    /// Whether clients must show something.
    asks: bool,
    tokens: Tokens,
}

/// Tokens are compared by their tags under a key of this process: in the same time, whatever differs.
struct Tokens {
    key: hmac::Key,
    tags: Vec<hmac::Tag>,
}

impl Served {
    /// Fails if a file holds not what it should, or the key is another certificate's.
    pub(super) fn new(contents: &Contents) -> Result<Self, TlsError> {
        let Contents { certificate, key, client_ca, tokens } = contents;
        let provider = Arc::new(provider::default_provider());
        // TLS 1.2 and 1.3: rustls has no other.
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?;
        let builder = match client_ca {
            None => builder.with_no_client_auth(),
            Some(file) => {
                let roots = Arc::new(roots(&file.path, &file.bytes)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
                // Without a certificate there is a token to show; where there are none, the handshake fails.
                let verifier = if tokens.is_empty() { verifier } else { verifier.allow_unauthenticated() };
                let no_root = |_error| TlsError::NoRoot { path: file.path.clone() };
                builder.with_client_cert_verifier(verifier.build().map_err(no_root)?)
            }
        };
        let chain = certificates(certificate)?;
        let no_certificate = || TlsError::NoRoot { path: certificate.path.clone() };
        let first = chain.first().ok_or_else(no_certificate)?.clone();
        let pem = |source| TlsError::Pem { path: key.path.clone(), source };
        let key = PrivateKeyDer::from_pem_slice(&key.bytes).map_err(pem)?;
        let mut config = builder.with_single_cert(chain, key)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        // Each connection shows who it is by itself: a session that is resumed would outlive a certificate.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Self {
            config: Arc::new(config),
            certificate: first,
            asks: client_ca.is_some() || !tokens.is_empty(),
            tokens: Tokens::new(tokens)?,
        })
    }

    /// Why clients refuse the certificate at that time, as far as that follows from its dates.
    pub(super) fn outdated(&self, now: UnixTime) -> Option<&'static str> {
        let algorithms = provider::default_provider().signature_verification_algorithms;
        let parsed = match ParsedCertificate::try_from(&self.certificate) {
            Ok(parsed) => parsed,
            Err(_error) => return Some("cannot be parsed"),
        };
        // Nobody is trusted here. The dates are checked before that.
        let checked = verify_server_cert_signed_by_trust_anchor(
            &parsed,
            &RootCertStore::empty(),
            &[],
            now,
            algorithms.all,
        );
        match checked {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::Expired | CertificateError::ExpiredContext { .. },
            )) => Some("has expired"),
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
            )) => Some("is not valid yet"),
            _ => None,
        }
    }

    /// Whether a client may read metrics, by the certificate that it has shown or by the headers of its request.
    pub(super) fn admits(&self, has_certificate: bool, headers: &HeaderMap) -> bool {
        !self.asks || has_certificate || bearer(headers).is_some_and(|token| self.tokens.has(token))
    }
}

impl Tokens {
    fn new(tokens: &[String]) -> Result<Self, TlsError> {
        let no_random = |_unspecified| rustls::Error::FailedToGetRandomBytes;
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).map_err(no_random)?;
        let tags = tokens.iter().map(|token| hmac::sign(&key, token.as_bytes())).collect();
        Ok(Self { key, tags })
    }

    fn has(&self, token: &[u8]) -> bool {
        // All are compared, whichever is the right one.
        let matches = |tag: &&hmac::Tag| hmac::verify(&self.key, token, tag.as_ref()).is_ok();
        self.tags.iter().filter(matches).count() > 0
    }
}

/// The token of a request that has one header with one.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut given = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (given.next(), given.next()) else { return None };
    let (scheme, token) = value.as_bytes().split_at_checked(SCHEME.len())?;
    let token = token.strip_prefix(b" ")?.trim_ascii();
    scheme.eq_ignore_ascii_case(SCHEME.as_bytes()).then_some(token).filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use std::{path::PathBuf, time::Duration};

    use super::*;
    use crate::network::{
        Certificates,
        fake::{Authority, Validity},
    };

    fn file(text: String) -> Certificates {
        Certificates { path: PathBuf::from("/f.pem"), bytes: text.into() }
    }

    fn contents(validity: Validity, tokens: &[&str]) -> Contents {
        let (certificate, key) = Authority::new().unwrap().sign("node", validity).unwrap();
        let tokens = tokens.iter().map(|token| (*token).to_owned()).collect();
        Contents { certificate: file(certificate), key: file(key), client_ca: None, tokens }
    }

    #[test]
    fn a_certificate_is_known_to_be_outdated_without_its_authority() {
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let valid = Served::new(&contents(Validity::Valid, &[])).unwrap();
        assert_eq!(valid.outdated(UnixTime::now()), None);
        // It begins in the year 2000.
        assert_eq!(valid.outdated(at(1)), Some("is not valid yet"));
        let expired = Served::new(&contents(Validity::Expired, &[])).unwrap();
        assert_eq!(expired.outdated(UnixTime::now()), Some("has expired"));
    }

    #[test]
    fn a_key_of_another_certificate_and_a_file_without_any_are_refused() {
        let good = contents(Validity::Valid, &[]);
        let other = contents(Validity::Valid, &[]);
        let mixed = Contents { key: other.key, ..good.clone() };
        assert!(matches!(Served::new(&mixed), Err(TlsError::Setup(_))));
        for wrong in [
            Contents { certificate: file(String::from("none")), ..good.clone() },
            Contents { key: file(String::new()), ..good.clone() },
            Contents { client_ca: Some(file(String::from("none"))), ..good.clone() },
        ] {
            assert!(Served::new(&wrong).is_err());
        }
    }

    #[test]
    fn one_of_the_tokens_is_asked_for_and_nothing_that_is_like_it() {
        let [old, new] = ["an-old-token-of-16", "a-new-token-of-16-"];
        let served = Served::new(&contents(Validity::Valid, &[old, new])).unwrap();
        let admits = |values: &[String]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::AUTHORIZATION, value.parse().unwrap());
            }
            served.admits(false, &headers)
        };
        for right in [format!("Bearer {old}"), format!("bearer {new}"), format!("BEARER   {new} ")] {
            assert!(admits(std::slice::from_ref(&right)), "{right}");
        }
        for wrong in [
            vec![],
            vec![String::from("Bearer")],
            vec![String::from("Bearer ")],
            vec![old.to_owned()],
            vec![format!("Basic {old}")],
            vec![format!("Bearer{old}")],
            vec![format!("Bearer {}", &old[..old.len() - 1])],
            vec![format!("Bearer {old}x")],
            vec![format!("Bearer {old} {new}")],
            vec![format!("Bearer {old}"), format!("Bearer {old}")],
        ] {
            assert!(!admits(&wrong), "{wrong:?}");
        }
        assert!(served.admits(true, &HeaderMap::new()), "a certificate is enough");
        let open = Served::new(&contents(Validity::Valid, &[])).unwrap();
        assert!(open.admits(false, &HeaderMap::new()), "the configuration allows that on loopback only");
    }
}
