/// An exact Kubernetes quantity, in billionths of its base unit.
///
/// `k8s.io/apimachinery/pkg/api/resource` keeps no more than nine decimal places and rounds away from zero;
/// an `i128` of billionths holds that exactly.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Quantity {
    nano: i128,
}

/// Why a text is no quantity.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseQuantityError {
    /// Not a number with an optional suffix.
    #[error(
        "{text:?} is not a quantity: write a number with an optional suffix (n u m k M G T P E, Ki Mi Gi Ti Pi Ei, or an exponent), such as 500m or 128Mi"
    )]
    Malformed {
        /// The text as it was given.
        text: String,
    },
    /// Larger than a signed 64-bit number can count.
    #[error("quantity {text:?} is too large: the largest is 9223372036854775807")]
    TooLarge {
        /// The text as it was given.
        text: String,
    },
}
