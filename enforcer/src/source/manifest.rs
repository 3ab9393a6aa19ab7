//! Pod manifests: kinds `Pod`, `PodList` and `List`, as YAML or JSON, several documents in a file.
//!
//! Every error names the file, the line and the field. A bad pod does not affect the others of its file. Irrelevant
//! fields are ignored; the others are checked as strictly as by the API server, and get its defaults.

mod adoption;
mod defaults;
mod document;
mod error;
mod fields;
mod name;
mod objects;
mod place;
mod pod;
#[cfg(test)]
mod tests;
mod toleration;
mod workload;

use crate::model::Pod;
use crate::yaml::{Node, Size};

use self::{
    document::{Document, split},
    place::{Place, Report},
};

pub use self::{
    error::{ManifestError, Origin, Problem, Warning},
    objects::{Class, LeftOut, Made, Objects},
    workload::{Pods, name_of, pod_of},
};

/// The largest file that is read, in bytes.
pub const MAX_BYTES: usize = 32 << 20;

/// The largest document of a file that the daemon reads, in bytes: a list of 10,000 ordinary pods.
pub const MAX_DOCUMENT_BYTES: usize = 4 << 20;

/// The contents of a file.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Parsed {
    /// The valid pods, in order, with the API server's defaults.
    pub pods: Vec<Pod>,
    /// The origin of each of [`Self::pods`], in the same order.
    pub origins: Vec<Origin>,
    /// What is wrong with the others.
    pub errors: Vec<ManifestError>,
    /// What is odd and rejects none: at most a few.
    pub warnings: Vec<Warning>,
}

/// Reads a file's content; `source` is its name in errors.
///
/// A pod without `metadata.uid` gets one derived from its namespace and name, so that an edited file stays the same
/// pod. Duplicate names are not checked here, as the pods may be in two files: see [`ManifestError::Duplicate`].
#[must_use]
pub fn parse(source: &str, bytes: &[u8]) -> Parsed {
    let mut parsed = Parsed::default();
    let mut report = Report::new(source);
    let count = documents(bytes, Size::File, &mut report, |place, report| {
        object(place, Expected::Any, report, &mut parsed);
    });
    if count == 0 && report.count() == 0 {
        report.fail(1, "", Problem::Empty);
    }
    (parsed.errors, parsed.warnings) = report.finish();
    parsed
}

/// Hands over each document that can be read, and reports the others; returns how many there are.
fn documents<'source>(
    bytes: &[u8],
    size: Size,
    report: &mut Report<'source>,
    mut each: impl FnMut(&Place<'_>, &mut Report<'source>),
) -> usize {
    // A byte order mark is not part of the text.
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    if bytes.len() > MAX_BYTES {
        report.fail(1, "", Problem::TooLarge { most: "a file may have 32 MiB" });
        return 0;
    }
    let documents = split(bytes);
    for document in &documents {
        let read = text(document, size).and_then(|text| {
            Node::parse(text, document.first_line, size)
                .map_err(|(line, message)| (line, Problem::Syntax { message }))
        });
        match read {
            Ok(node) => each(&Place::root(&node), report),
            Err((line, problem)) => report.fail(line, "", problem),
        }
    }
    documents.len()
}

/// Which kinds are allowed where.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Expected {
    /// At the top of a document.
    Any,
    /// In a `List`: a pod that names its kind.
    Pod,
    /// In a `PodList`: a pod, whose kind may be omitted.
    PodOrUnsaid,
}

/// A document's text. Anything that is not text is an error on its line, and affects this document only.
fn text<'text>(document: &Document<'text>, size: Size) -> Result<&'text str, (u64, Problem)> {
    if size == Size::File && document.text.len() > MAX_DOCUMENT_BYTES {
        return Err((document.first_line, Problem::TooLarge { most: "a document may have 4 MiB" }));
    }
    str::from_utf8(document.text).map_err(|error| {
        let before = document.text.get(..error.valid_up_to()).unwrap_or_default();
        let lines = before.split(|byte| *byte == b'\n').skip(1).count();
        (document.first_line.saturating_add(u64::try_from(lines).unwrap_or(u64::MAX)), Problem::Encoding)
    })
}

fn object(place: &Place<'_>, expected: Expected, report: &mut Report<'_>, parsed: &mut Parsed) {
    if !report.is_map(place) {
        return;
    }
    let Ok(kind) = kind(place, expected, report) else { return };
    let expected_inside = match kind {
        Kind::Pod => {
            fields::check(place, "Pod", report);
            if let Some(pod) = pod::read(place, report) {
                parsed.pods.push(pod);
                parsed.origins.push(report.origin(place.line()));
            }
            return;
        }
        Kind::PodList => Expected::PodOrUnsaid,
        Kind::List => Expected::Pod,
    };
    for item in report.list(place, "items") {
        object(&item, expected_inside, report, parsed);
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Pod,
    PodList,
    List,
}

/// The object's kind; an error was reported already.
fn kind(place: &Place<'_>, expected: Expected, report: &mut Report<'_>) -> Result<Kind, place::Reported> {
    let unsaid = expected == Expected::PodOrUnsaid;
    let said = report.optional_text(place, "kind")?;
    let version = report.optional_text(place, "apiVersion")?;
    let kind = match (said, expected) {
        (None, Expected::Any | Expected::Pod) => return Err(report.missing(place, "kind")),
        (None, Expected::PodOrUnsaid) | (Some("Pod"), _) => Kind::Pod,
        (Some("PodList"), Expected::Any) => Kind::PodList,
        (Some("List"), Expected::Any) => Kind::List,
        (Some(other), _) => {
            let allowed = match expected {
                Expected::Any => "Pod, PodList or List",
                Expected::Pod | Expected::PodOrUnsaid => "Pod",
            };
            return Err(report.fail_at(place, "kind", Problem::Value { value: other.to_owned(), allowed }));
        }
    };
    match version {
        Some("v1") => Ok(kind),
        None if unsaid => Ok(kind),
        None => Err(report.missing(place, "apiVersion")),
        Some(other) => Err(report.fail_at(
            place,
            "apiVersion",
            Problem::Value { value: other.to_owned(), allowed: "v1" },
        )),
    }
}
