//! The files of certificates and tokens: read whole, by the daemon, as they are replaced while it runs.

use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use super::message::Contents;
use crate::{network::Certificates, regular, trust};

/// The largest file that is read; all together fit into one message.
const MAX_BYTES: u64 = 96 << 10;

/// How often the files are read until two readings are the same.
const MOST_READINGS: usize = 4;

/// The most tokens: an old and a new one, of two clients.
const MOST_TOKENS: usize = 4;

/// The shortest token. A shorter one can be guessed.
const LEAST_TOKEN_BYTES: usize = 16;

/// The longest token, which must fit into a request's head.
const MOST_TOKEN_BYTES: usize = 4 << 10;

/// The files that say how metrics are served over TLS, and to whom.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MetricsFiles {
    /// The server's certificate, in PEM.
    pub cert: PathBuf,
    /// Its private key, in PEM.
    pub key: PathBuf,
    /// The authorities that sign clients' certificates, in PEM.
    pub client_ca: Option<PathBuf>,
    /// Tokens, one a line.
    pub token: Option<PathBuf>,
}

/// Why there is nothing to serve with.
#[derive(Debug, thiserror::Error)]
pub(super) enum FilesError {
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The underlying error.
        #[source]
        source: io::Error,
    },
    /// It is too large to be what it should be.
    #[error("{} is larger than {MAX_BYTES} bytes", .0.display())]
    Large(PathBuf),
    /// Others may write to a file that decides who reads metrics.
    #[error("{} decides who may read metrics, and {why}: {remedy}", path.display())]
    Untrusted {
        /// The file or folder.
        path: PathBuf,
        /// Why it is not trusted.
        why: String,
        /// What to do.
        remedy: String,
    },
    /// It does not hold tokens.
    #[error("{} {why}", path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// What is wrong with it. It names no content.
        why: String,
    },
}

impl MetricsFiles {
    /// Reads all of them. They are replaced together, by one symlink as in a mounted Secret, and so are read until two
    /// readings are the same: otherwise a certificate would meet the key of another.
    pub(super) fn read(&self) -> Result<Contents, FilesError> {
        let mut last = self.read_once()?;
        for _ in 1..MOST_READINGS {
            let next = self.read_once()?;
            if next == last {
                break;
            }
            last = next;
        }
        Ok(last)
    }

    fn read_once(&self) -> Result<Contents, FilesError> {
        let plain = |path: &Path| pem(path, regular::open(path));
        let tokens = self.token.as_deref().map(|path| tokens(path, &content(path, trusted(path)?)?));
        Ok(Contents {
            certificate: plain(&self.cert)?,
            key: plain(&self.key)?,
            client_ca: self.client_ca.as_deref().map(|path| pem(path, trusted(path)?)).transpose()?,
            tokens: tokens.transpose()?.unwrap_or_default(),
        })
    }
}

/// Opens a file that decides who is let in: only root and this process's user may change or replace it.
fn trusted(path: &Path) -> Result<io::Result<File>, FilesError> {
    match trust::open(path) {
        Ok(Ok(file)) => Ok(Ok(File::from(file))),
        Ok(Err((path, trust::Untrusted { why, remedy }))) => Err(FilesError::Untrusted { path, why, remedy }),
        Err(error) => Ok(Err(error)),
    }
}

fn pem(path: &Path, file: io::Result<File>) -> Result<Certificates, FilesError> {
    Ok(Certificates { path: path.to_owned(), bytes: content(path, file)?.into() })
}

fn content(path: &Path, file: io::Result<File>) -> Result<String, FilesError> {
    let mut text = String::new();
    let read = file.and_then(|file| file.take(MAX_BYTES + 1).read_to_string(&mut text));
    match read {
        Ok(_) if text.len() as u64 > MAX_BYTES => Err(FilesError::Large(path.to_owned())),
        Ok(_) => Ok(text),
        Err(source) => Err(FilesError::Read { path: path.to_owned(), source }),
    }
}

fn tokens(path: &Path, text: &str) -> Result<Vec<String>, FilesError> {
    let wrong = |why: String| FilesError::Token { path: path.to_owned(), why };
    let found: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if found.is_empty() {
        return Err(wrong(String::from("has no token: write one a line")));
    }
    if found.len() > MOST_TOKENS {
        return Err(wrong(format!("has {} tokens: {MOST_TOKENS} are the most", found.len())));
    }
    for token in &found {
        if !(LEAST_TOKEN_BYTES..=MOST_TOKEN_BYTES).contains(&token.len()) {
            let range = format!("{LEAST_TOKEN_BYTES} to {MOST_TOKEN_BYTES} bytes");
            return Err(wrong(format!("has a token of {} bytes: write {range}", token.len())));
        }
        if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(wrong(String::from("has a token with a character that no HTTP header can carry")));
        }
    }
    Ok(found.into_iter().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    #[test]
    fn tokens_are_lines_and_a_file_without_a_good_one_is_refused() {
        let path = Path::new("/token");
        let read = |text: &str| tokens(path, text);
        assert_eq!(read(&format!("{TOKEN}\n\n  {TOKEN}2\r\n")).unwrap(), [TOKEN, "0123456789abcdef2"]);
        let many = format!("{TOKEN}\n").repeat(5);
        for (text, why) in [
            ("", "has no token"),
            ("\n \n", "has no token"),
            ("short\n", "has a token of 5 bytes"),
            ("0123456789 abcdef", "that no HTTP header can carry"),
            (&many, "has 5 tokens"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.starts_with("/token ") && error.contains(why), "{text:?}: {error}");
            assert!(text.len() < 9 || !error.contains(text.trim()), "it names the secret: {error}");
        }
    }

    #[test]
    fn a_file_that_others_may_write_lets_no_client_in() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            path
        };
        let files = MetricsFiles {
            cert: write("tls.crt", "cert"),
            key: write("tls.key", "key"),
            client_ca: Some(write("ca.crt", "ca")),
            token: Some(write("token", TOKEN)),
        };
        let contents = files.read().unwrap();
        assert_eq!((&contents.key.bytes[..], &contents.tokens[..]), (&b"key"[..], &[TOKEN.to_owned()][..]));
        for decisive in [&files.client_ca, &files.token] {
            let path = decisive.as_ref().unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o666)).unwrap();
            let refused = files.read();
            assert!(
                matches!(&refused, Err(FilesError::Untrusted { path: named, .. }) if named == path),
                "{}",
                path.display()
            );
            fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
        }
        fs::write(&files.cert, "x".repeat(100_000)).unwrap();
        assert!(matches!(files.read(), Err(FilesError::Large(_))));
        fs::remove_file(&files.cert).unwrap();
        assert!(matches!(files.read(), Err(FilesError::Read { .. })));
    }
}
