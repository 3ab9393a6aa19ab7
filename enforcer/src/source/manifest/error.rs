//! What can be wrong with a manifest, always with file and line.

use std::fmt;

use super::fields;
use crate::model::{ParseQuantityError, PodName, Quantity};

/// The place of something in a file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Origin {
    /// The file's name.
    pub source: String,
    /// The line, from 1.
    pub line: u64,
}

/// In the form that editors read: `web.yaml:14`.
impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.source, self.line)
    }
}

/// Why a pod of a file is rejected.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestError {
    /// The file, or a document of it, cannot be read.
    #[error("{origin}: {problem}")]
    Document {
        /// Where it is wrong.
        origin: Origin,
        /// What is wrong.
        problem: Problem,
    },
    /// A field is wrong.
    #[error("{origin}: {field}: {problem}")]
    Field {
        /// Where it is; for a missing field, where the object begins that lacks it.
        origin: Origin,
        /// The field's path, such as `spec.containers[0].resources.limits.memory`.
        field: String,
        /// What is wrong with it.
        problem: Problem,
    },
    /// Two pods have the same namespace and name.
    #[error("{second}: pod {pod} is in {first} already: remove one of the two, or rename it")]
    Duplicate {
        /// The pod.
        pod: PodName,
        /// Where it comes first.
        first: Origin,
        /// Where it comes again.
        second: Origin,
    },
    /// Two priority classes have the same name.
    #[error("{second}: PriorityClass {class} is in {first} already: remove one of the two")]
    DuplicateClass {
        /// Its name.
        class: String,
        /// Where it comes first.
        first: Origin,
        /// Where it comes again.
        second: Origin,
    },
}

/// What is odd about a manifest. Its pods are taken nevertheless.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Warning {
    /// A field that its object does not have; the API server drops it.
    #[error(
        "{origin}: {field}: is ignored, as Kubernetes {} has no such field{}", fields::VERSION, meant(*near)
    )]
    UnknownField {
        /// Where it is.
        origin: Origin,
        /// The field's path.
        field: String,
        /// The field that was probably meant.
        near: Option<&'static str>,
    },
    /// More such fields of the same file.
    #[error("{origin}: {count} further fields that Kubernetes does not have are ignored")]
    FurtherFields {
        /// Where the first of them is.
        origin: Origin,
        /// How many there are.
        count: usize,
    },
    /// An object of a kind that no pods are made of, but nearly of one that they are.
    #[error("{origin}: kind: {kind:?} is passed over{}", meant(Some(*near)))]
    UnknownKind {
        /// Where it is.
        origin: Origin,
        /// The kind.
        kind: String,
        /// The kind that was probably meant.
        near: &'static str,
    },
}

fn meant(near: Option<&str>) -> String {
    near.map_or_else(String::new, |near| format!(": did you mean {near}?"))
}

/// What is wrong with a document or a field.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// It is empty.
    #[error("holds no manifest")]
    Empty,
    /// Larger than [`super::MAX_BYTES`] or [`super::MAX_DOCUMENT_BYTES`].
    #[error("is too large: {most}; split it up")]
    TooLarge {
        /// The limit.
        most: &'static str,
    },
    /// Not UTF-8.
    #[error("is not UTF-8 text")]
    Encoding,
    /// Neither YAML nor JSON, a key given twice, or beyond the limits on depth, aliases and size.
    #[error("{message}")]
    Syntax {
        /// The parser's message.
        message: String,
    },
    /// A required field is missing.
    #[error("is missing")]
    Missing,
    /// A key without a value.
    #[error("has no value")]
    Null,
    /// The value has another type.
    #[error("must be {expected}")]
    Type {
        /// What it must be.
        expected: &'static str,
    },
    /// Only a few values are allowed.
    #[error("{value:?} is not supported: it must be {allowed}")]
    Value {
        /// The value found.
        value: String,
        /// The allowed values.
        allowed: &'static str,
    },
    /// Not a name that the API server accepts.
    #[error("{value:?} is not {form}")]
    Name {
        /// The value found.
        value: String,
        /// The form and its rule.
        form: &'static str,
    },
    /// No containers.
    #[error("must have at least one container")]
    NoContainers,
    /// Two containers have the same name.
    #[error(
        "container {name:?} is there already, on line {first_line}: give each container of a pod its own name"
    )]
    ContainerTwice {
        /// The name.
        name: String,
        /// Where the first one is named.
        first_line: u64,
    },
    /// Not a quantity.
    #[error(transparent)]
    Quantity(#[from] ParseQuantityError),
    /// A quantity below zero.
    #[error("{quantity} must not be negative")]
    Negative {
        /// The quantity.
        quantity: Quantity,
    },
    /// A limit below its request.
    #[error("the limit {limit} is below the request {request}")]
    BelowRequest {
        /// The limit.
        limit: Quantity,
        /// The request.
        request: Quantity,
    },
    /// Not a resource that the API server knows.
    #[error(
        "{name:?} is not a resource: it must be cpu, memory, ephemeral-storage, hugepages-<size>, or a name with a domain such as example.com/gpu"
    )]
    Resource {
        /// The name found.
        name: String,
    },
    /// A pod whose priority depends on a class that is not known.
    #[error(
        "pod {pod} has the PriorityClass {class:?}, which is not given{}: add it with -f (kubectl get priorityclasses -o yaml \
         prints all), or set spec.priority", meant(near.as_deref())
    )]
    UnknownClass {
        /// The pod, or the workload that makes it.
        pod: PodName,
        /// The class.
        class: String,
        /// The class that was probably meant.
        near: Option<String>,
    },
    /// More pods than are made of workloads.
    #[error(
        "{count} pods are too many: at most {most} more can be made of the workloads given: plan for fewer"
    )]
    TooManyPods {
        /// How many the workload has.
        count: u64,
        /// How many more may be made here.
        most: u64,
    },
}
