//! The list of checksums, and its Ed25519 signature in the form that `openssl pkeyutl` verifies.
use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, bail};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use ring::signature::{Ed25519KeyPair, KeyPair as _};

use super::Artifact;
use crate::run;

/// Names the file of the key that signs: PKCS#8 in PEM, as `openssl genpkey -algorithm ed25519` writes it.
pub(crate) const KEY_VARIABLE: &str = "ENFORCER_SIGNING_KEY";

/// The public key of releases, below the root of the repository.
pub(crate) const PUBLIC: &str = "packaging/release-key.pem";

/// The list's name, and that of its signature.
pub(crate) const LIST: &str = "SHA256SUMS";
pub(crate) const SIGNATURE: &str = "SHA256SUMS.sig";

/// What comes before the 32 bytes of an Ed25519 key in DER (RFC 8410).
const PUBLIC_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// The list as `sha256sum --check` reads it.
pub(crate) fn list(artifacts: &[Artifact]) -> String {
    let line = |artifact: &Artifact| format!("{}  {}\n", ebpf_object::sha256(&artifact.bytes), artifact.name);
    artifacts.iter().map(line).collect()
}

/// The key that signs, and the path it was read from.
#[derive(Debug)]
pub(crate) struct Key(Ed25519KeyPair);

impl Key {
    /// The key that the environment names, if it names one. If the repository has a public key, it must be this one's.
    pub(crate) fn from_environment(root: &Path) -> anyhow::Result<Option<Self>> {
        let Some(path) = env::var_os(KEY_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from) else {
            return Ok(None);
        };
        let text = String::from_utf8(super::read(&path)?);
        let key = text.map_err(anyhow::Error::from).and_then(|text| Self::parse(&text));
        let key = key.with_context(|| format!("{KEY_VARIABLE} names {}", path.display()))?;
        let public = root.join(PUBLIC);
        if public.exists() && super::read(&public)? != key.public().as_bytes() {
            bail!("{PUBLIC} is not the public half of the key that {KEY_VARIABLE} names");
        }
        Ok(Some(key))
    }

    fn parse(pem: &str) -> anyhow::Result<Self> {
        let lines = pem.lines().skip_while(|line| *line != "-----BEGIN PRIVATE KEY-----").skip(1);
        let body: String = lines.take_while(|line| *line != "-----END PRIVATE KEY-----").collect();
        // Neither the text nor what a decoder says about it belongs into a message: it is a secret.
        let der = STANDARD.decode(body).ok().filter(|der| !der.is_empty());
        let der = der.context("it is not a private key of PKCS#8 in PEM")?;
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&der).ok();
        pair.map(Self).context("it is not an Ed25519 key, which `openssl genpkey -algorithm ed25519` makes")
    }

    /// The public half in PEM.
    pub(crate) fn public(&self) -> String {
        let der = [PUBLIC_PREFIX.as_slice(), self.0.public_key().as_ref()].concat();
        format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", STANDARD.encode(der))
    }

    /// The 64 bytes of the signature.
    pub(crate) fn sign(&self, text: &[u8]) -> Vec<u8> {
        self.0.sign(text).as_ref().to_vec()
    }
}

/// Verifies the signature of the list in `folder` by OpenSSL, as docs/install.md tells users to.
pub(crate) fn verify(public: &Path, folder: &Path) -> anyhow::Result<()> {
    let mut openssl = Command::new("openssl");
    openssl.args(["pkeyutl", "-verify", "-pubin", "-rawin", "-inkey"]).arg(public);
    openssl.args(["-in", LIST, "-sigfile", SIGNATURE]).current_dir(folder);
    run::output(&mut openssl).map(drop)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn openssl_verifies_what_its_key_signed_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mut make = Command::new("openssl");
        run::output(make.args(["genpkey", "-algorithm", "ed25519", "-out"]).arg(at("key.pem"))).unwrap();
        let key = Key::parse(&fs::read_to_string(at("key.pem")).unwrap()).unwrap();

        let mut export = Command::new("openssl");
        export.args(["pkey", "-pubout", "-in"]).arg(at("key.pem"));
        assert_eq!(key.public(), run::text(&mut export).unwrap());
        fs::write(at("public.pem"), key.public()).unwrap();

        let artifacts = [Artifact { name: "a".to_owned(), bytes: b"abc".to_vec() }];
        fs::write(at("a"), "abc").unwrap();
        let sums = list(&artifacts);
        fs::write(at(LIST), &sums).unwrap();
        fs::write(at(SIGNATURE), key.sign(sums.as_bytes())).unwrap();
        verify(&at("public.pem"), folder.path()).unwrap();
        let mut check = Command::new("sha256sum");
        run::output(check.args(["--check", "--strict", LIST]).current_dir(folder.path())).unwrap();

        fs::write(at(LIST), sums.replace('a', "b")).unwrap();
        assert!(verify(&at("public.pem"), folder.path()).is_err());
    }

    #[test]
    fn other_files_are_refused_without_their_text() {
        let rsa = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n";
        for (text, reason) in [
            ("", "it is not a private key of PKCS#8 in PEM"),
            ("secret", "it is not a private key of PKCS#8 in PEM"),
            (rsa, "it is not an Ed25519 key, which `openssl genpkey -algorithm ed25519` makes"),
        ] {
            assert_eq!(format!("{:#}", Key::parse(text).unwrap_err()), reason);
        }
    }
}
