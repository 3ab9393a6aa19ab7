//! The files that hold secrets, and the signatures. The files are read for each request: replacing a file changes the
//! secret.

use std::{
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use hyper::header::{HeaderValue, InvalidHeaderValue};
use ring::hmac;

use crate::regular;

/// The largest file that is read.
const MAX_BYTES: u64 = 4 << 10;

/// A shorter secret can be guessed.
const LEAST_BYTES: usize = 16;

/// How many secrets may be in force at once, during a rotation.
const MOST_SECRETS: usize = 4;

/// The mode bits of the group and others, which must be clear.
const OTHERS: u32 = 0o077;

/// Why there is no secret. The text reveals nothing of the file's content.
#[derive(Debug, thiserror::Error)]
pub(super) enum SecretError {
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "{} belongs to the user {owner} with the mode {mode:o}: it must be a file of the daemon's own user that only \
         that user may read (chown root, chmod 600)",
        path.display()
    )]
    Open { path: PathBuf, owner: u32, mode: u32 },
    #[error(
        "{} must have one secret a line, 1 to {MOST_SECRETS} of them, each of {LEAST_BYTES} bytes or more, and at most \
         {MAX_BYTES} bytes together",
        path.display()
    )]
    Content { path: PathBuf },
    #[error("{} holds bytes that an HTTP header cannot carry", path.display())]
    Header {
        path: PathBuf,
        #[source]
        source: InvalidHeaderValue,
    },
}

/// Reads the secrets of a file.
pub(super) fn read(path: &Path) -> Result<Vec<Vec<u8>>, SecretError> {
    let failed = |source| SecretError::Read { path: path.to_owned(), source };
    let file = regular::open_unwaiting(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o7777);
    let own = rustix::process::geteuid().as_raw();
    if !metadata.is_file() || (owner != own && owner != 0) || mode & OTHERS != 0 {
        return Err(SecretError::Open { path: path.to_owned(), owner, mode });
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    let is_large = u64::try_from(bytes.len()).is_ok_and(|length| length > MAX_BYTES);
    let secrets: Vec<Vec<u8>> = bytes
        .split(|byte| *byte == b'\n')
        .map(|line| line.trim_ascii().to_vec())
        .filter(|line| !line.is_empty())
        .collect();
    let is_good = (1..=MOST_SECRETS).contains(&secrets.len())
        && secrets.iter().all(|secret| secret.len() >= LEAST_BYTES);
    if is_large || !is_good {
        return Err(SecretError::Content { path: path.to_owned() });
    }
    Ok(secrets)
}

/// The value of the `Authorization` header, with the first line of the file.
pub(super) fn bearer(path: &Path) -> Result<HeaderValue, SecretError> {
    let secrets = read(path)?;
    let token = secrets.first().map(Vec::as_slice).unwrap_or_default();
    let mut value = HeaderValue::from_bytes(&[b"Bearer ", token].concat())
        .map_err(|source| SecretError::Header { path: path.to_owned(), source })?;
    value.set_sensitive(true);
    Ok(value)
}

/// `t=<seconds since 1970>,v1=<hex>`: HMAC-SHA256 over the seconds, a full stop and the body, once for each secret.
pub(super) fn signature(secrets: &[Vec<u8>], now: i64, body: &[u8]) -> String {
    let mut value = format!("t={now}");
    for secret in secrets {
        let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, secret));
        context.update(format!("{now}.").as_bytes());
        context.update(body);
        value.push_str(",v1=");
        value.push_str(&hex(context.sign().as_ref()));
    }
    value
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        text.push_str(&format!("{byte:02x}"));
        text
    })
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    /// Reckoned with Python's hmac and openssl alike.
    #[test]
    fn a_signature_is_the_known_one() {
        let body = br#"{"specversion":"1.0","id":"1"}"#;
        assert_eq!(
            signature(&[b"0123456789abcdef0123456789abcdef".to_vec()], 1_700_000_000, body),
            "t=1700000000,v1=3ac0f5a5cedb4b1f0e76676854958a77302e14a3de2032d3882a4d9b64409be1"
        );
        let two = [b"0123456789abcdef0123456789abcdef".to_vec(), b"another-secret-of-mine".to_vec()];
        assert_eq!(
            signature(&two, 1_700_000_000, body),
            "t=1700000000,v1=3ac0f5a5cedb4b1f0e76676854958a77302e14a3de2032d3882a4d9b64409be1,v1=ff3b2994d5ae9fb5a3c18af9a0a902a67fe84a7636a68b84faf7aed7511dc038"
        );
    }

    /// RFC 4231, test case 2, through the same calls.
    #[test]
    fn the_algorithm_is_that_of_the_rfc() {
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"Jefe");
        let tag = hmac::sign(&key, b"what do ya want for nothing?");
        assert_eq!(hex(tag.as_ref()), "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    }

    #[test]
    fn a_file_that_others_may_read_or_that_holds_no_secret_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        let set = |content: &str, mode: u32| {
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            read(&path)
        };
        let secret = "0123456789abcdef";
        assert_eq!(set(&format!("{secret}\r\n\n"), 0o600).unwrap(), [secret.as_bytes()]);
        assert_eq!(set(&format!("{secret}\n{secret}x"), 0o400).unwrap().len(), 2);
        for mode in [0o640, 0o604, 0o620, 0o601] {
            let error = set(secret, mode).unwrap_err().to_string();
            assert!(error.contains("chmod 600") && !error.contains(secret), "{error}");
        }
        for content in ["", "short", &format!("{secret}\n").repeat(5), &"x".repeat(5_000)] {
            let error = set(content, 0o600).unwrap_err();
            assert!(matches!(error, SecretError::Content { .. }), "{error}");
        }
        assert!(matches!(read(dir.path()), Err(SecretError::Open { .. })));
        let pipe = dir.path().join("pipe");
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert!(matches!(read(&pipe), Err(SecretError::Open { .. })));
        assert!(matches!(read(&dir.path().join("none")), Err(SecretError::Read { .. })));
        set("0123456789abc\u{1}def", 0o600).unwrap();
        assert!(matches!(bearer(&path), Err(SecretError::Header { .. })));
        set(secret, 0o600).unwrap();
        let bearer = bearer(&path).unwrap();
        assert_eq!(bearer.as_bytes(), b"Bearer 0123456789abcdef");
        assert!(!format!("{bearer:?}").contains(secret));
    }
}
