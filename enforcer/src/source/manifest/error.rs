use std::fmt;

use crate::model::{ParseQuantityError, PodName, Quantity};

/// Where something stands.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Origin {
    /// The file's name.
    pub source: String,
    /// The line, from 1.
    pub line: u64,
}

/// As editors read it: `web.yaml:14`.
impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.source, self.line)
    }
}

/// Why a pod of a file is not taken.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestError {
    /// The file, or a document of it, cannot be read.
    #[error("{origin}: {problem}")]
    Document {
        /// Where it goes wrong.
        origin: Origin,
        /// What is wrong.
        problem: Problem,
    },
    /// A field is wrong.
    #[error("{origin}: {field}: {problem}")]
    Field {
        /// Where it stands; of a missing field, where the object begins that lacks it.
        origin: Origin,
        /// The field's path, such as `spec.containers[0].resources.limits.memory`.
        field: String,
        /// What is wrong with it.
        problem: Problem,
    },
    /// Two pods of one namespace and name.
    #[error("{second}: pod {pod} is in {first} already: remove one of the two, or rename it")]
    Duplicate {
        /// The pod.
        pod: PodName,
        /// Where it stands first.
        first: Origin,
        /// Where it stands again.
        second: Origin,
    },
}

/// What is wrong with a document or a field.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// Nothing in it.
    #[error("holds no manifest")]
    Empty,
    /// Larger than [`super::MAX_BYTES`] or [`super::MAX_DOCUMENT_BYTES`].
    #[error("is too large: {most}; split it up")]
    TooLarge {
        /// What is allowed.
        most: &'static str,
    },
    /// Not UTF-8.
    #[error("is not UTF-8 text")]
    Encoding,
    /// Neither YAML nor JSON, a key given twice, or beyond the limits on depth, aliases and size.
    #[error("{message}")]
    Syntax {
        /// The parser's words.
        message: String,
    },
    /// A field that must be there is not.
    #[error("is missing")]
    Missing,
    /// A key without a value.
    #[error("has no value")]
    Null,
    /// Another type of value.
    #[error("must be {expected}")]
    Type {
        /// What it must be.
        expected: &'static str,
    },
    /// One of a few values is allowed.
    #[error("{value:?} is not supported: it must be {allowed}")]
    Value {
        /// What stands there.
        value: String,
        /// What may stand there.
        allowed: &'static str,
    },
    /// Not a name that the API server takes.
    #[error("{value:?} is not {form}")]
    Name {
        /// What stands there.
        value: String,
        /// The form and its rule.
        form: &'static str,
    },
    /// No containers.
    #[error("must have at least one container")]
    NoContainers,
    /// A container's name for the second time.
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
        /// What stands there.
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
        /// What stands there.
        name: String,
    },
}
