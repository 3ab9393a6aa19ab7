//! The effective configuration: what our own file and a kubelet's say together, and where.

use std::{
    collections::BTreeMap,
    fmt,
    fs::File,
    io::{self, Read as _},
    path::Path,
};

use super::{
    API_VERSION, Config, DEFAULT_PATH, Error, KIND, KUBELETS_API_VERSION, KUBELETS_KIND, Problem,
    ValueSources,
    fields::{Fields, Provenance},
    read,
};
use crate::{
    regular,
    trust::{self, Untrusted},
};

/// The largest configuration file.
const MAX_BYTES: u64 = 1 << 20;

/// The effective configuration, and where it comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct Effective {
    /// The configuration.
    pub config: Config,
    /// The place of each field that is not at its default.
    pub origins: BTreeMap<&'static str, Origin>,
    /// The fields of a kubelet's file that we do not use.
    pub ignored: Vec<Ignored>,
}

/// A place in a file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Origin {
    /// The file.
    pub file: String,
    /// The line, counted from 1.
    pub line: u64,
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.file, self.line)
    }
}

/// The place where our own file says something; `None` for a default. Two configurations are the same wherever they say it.
#[derive(Clone, Default)]
pub struct Written(pub Option<Origin>);

impl PartialEq for Written {
    fn eq(&self, other: &Self) -> bool {
        self.0.is_some() == other.0.is_some()
    }
}

impl fmt::Debug for Written {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.is_some().fmt(formatter)
    }
}

/// A field that was ignored.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Ignored {
    /// Its name.
    pub field: String,
    /// Its place.
    pub origin: Origin,
}

impl Effective {
    /// Reads the file at `path`, or the one at [`DEFAULT_PATH`] if it exists, over a kubelet's file.
    pub fn load(path: Option<&Path>, kubelets: Option<&Path>) -> Result<Self, Error> {
        Self::load_by(path, kubelets, text)
    }

    /// As [`Self::load`], but fails unless only root and this process's user may change the files and the folders that lead to
    /// them. Trusts a read-only mount. Each is checked as it is opened, so that no other file is read than was checked.
    pub fn load_trusted(path: Option<&Path>, kubelets: Option<&Path>) -> Result<Self, Error> {
        Self::load_by(path, kubelets, trusted_text)
    }

    fn load_by(
        path: Option<&Path>,
        kubelets: Option<&Path>,
        text: impl Fn(&Path) -> Result<String, Error>,
    ) -> Result<Self, Error> {
        let (own, kubelets) = texts(path, kubelets, text)?;
        Self::parse(own.as_ref().map(borrowed), kubelets.as_ref().map(borrowed))
    }

    /// The configuration of files that may be wrong, for who needs `runDir` and `stateDir` alone. If anything is wrong, these
    /// are as the files name them where they do so correctly, all else is at its default, and the error says what is wrong.
    #[must_use]
    pub fn directories(path: Option<&Path>, kubelets: Option<&Path>) -> (Config, Option<Error>) {
        let (own, kubelets) = match texts(path, kubelets, text) {
            Ok(texts) => texts,
            Err(error) => return (Config::default(), Some(error)),
        };
        let (config, provenance) = read_all(own.as_ref().map(borrowed), kubelets.as_ref().map(borrowed));
        match provenance {
            Ok(_) => (config, None),
            Err(error) => {
                let Config { state_dir, run_dir, .. } = config;
                (Config { state_dir, run_dir, ..Config::default() }, Some(error))
            }
        }
    }

    /// Reads the texts of our own file and of a kubelet's, each with its name in errors.
    pub fn parse(own: Option<(&str, &str)>, kubelets: Option<(&str, &str)>) -> Result<Self, Error> {
        let (config, provenance) = read_all(own, kubelets);
        provenance.map(|Provenance { origins, ignored }| Self { config, origins, ignored })
    }

    /// Thresholds that were set but have no effect, each with its field.
    #[must_use]
    pub fn unwatched(&self) -> Vec<String> {
        self.config.unwatched()
    }
}

/// A file's name and its text.
type Named = (String, String);

/// The texts of our own file and of a kubelet's, with their names.
fn texts(
    path: Option<&Path>,
    kubelets: Option<&Path>,
    text: impl Fn(&Path) -> Result<String, Error>,
) -> Result<(Option<Named>, Option<Named>), Error> {
    let named = |path: &Path| -> Result<Named, Error> { Ok((path.display().to_string(), text(path)?)) };
    let own = match path {
        Some(path) => Some(named(path)?),
        None => match named(Path::new(DEFAULT_PATH)) {
            Ok(own) => Some(own),
            Err(Error::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        },
    };
    Ok((own, kubelets.map(named).transpose()?))
}

/// The configuration with what is valid, and defaults in place of the rest; and what is wrong.
fn read_all(
    own: Option<(&str, &str)>,
    kubelets: Option<(&str, &str)>,
) -> (Config, Result<Provenance, Error>) {
    let mut fields = Fields::default();
    let layers = [(kubelets, true, KUBELETS_API_VERSION, KUBELETS_KIND), (own, false, API_VERSION, KIND)];
    let mut unread = None;
    for (layer, is_kubelets, api_version, kind) in layers {
        if let Some((file, text)) = layer
            && let Err(error) = fields.read(file, text, is_kubelets, api_version, kind)
        {
            unread = unread.or(Some(error));
        }
    }
    let mut config = read::read(&mut fields);
    let provenance = match unread {
        Some(error) => Err(error),
        None => fields.finish().map_err(|problems| Error::Invalid { problems }),
    };
    if let Ok(Provenance { origins, .. }) = &provenance {
        config.value_sources = ValueSources::of_files(origins);
    }
    (config, provenance)
}

fn borrowed((file, text): &(String, String)) -> (&str, &str) {
    (file, text)
}

/// Reads a text file of at most [`MAX_BYTES`]. Refuses anything but a regular file, as a pipe could block forever.
fn text(path: &Path) -> Result<String, Error> {
    let shown = path.display().to_string();
    let file = regular::open(path).map_err(|source| Error::Read { path: shown.clone(), source })?;
    text_of(&shown, file)
}

/// The same, of a file that others than root and this process's user may neither change nor replace.
fn trusted_text(path: &Path) -> Result<String, Error> {
    let shown = path.display().to_string();
    let failed = |source| Error::Read { path: shown.clone(), source };
    match trust::open(path).map_err(failed)? {
        Ok(file) => text_of(&shown, File::from(file)),
        Err((path, Untrusted { why, remedy })) => {
            Err(Error::Untrusted { path: path.display().to_string(), why, remedy })
        }
    }
}

/// Reads an open text file of at most [`MAX_BYTES`].
pub(super) fn text_of(path: &str, file: impl io::Read) -> Result<String, Error> {
    let failed = |source| Error::Read { path: path.to_owned(), source };
    let wrong = |message: &str| failed(io::Error::new(io::ErrorKind::InvalidInput, message.to_owned()));
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if u64::try_from(bytes.len()).is_ok_and(|len| len > MAX_BYTES) {
        return Err(wrong("it is larger than 1 MiB"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let before = error.as_bytes().get(..error.utf8_error().valid_up_to()).unwrap_or_default();
        let line = before.split(|byte| *byte == b'\n').count();
        Error::Invalid {
            problems: vec![Problem {
                file: path.to_owned(),
                line: u64::try_from(line).unwrap_or(u64::MAX),
                field: String::new(),
                message: String::from("is not UTF-8 text"),
            }],
        }
    })
}
