//! Amounts such as `1500Mi` and `0.5`, kept exactly; rounded away from zero, as upstream does.

use std::str::FromStr;

mod display;
mod parse;
#[cfg(test)]
mod tests;

pub use self::display::BinarySi;

/// An exact Kubernetes quantity, in billionths of its base unit.
///
/// `k8s.io/apimachinery/pkg/api/resource` keeps no more than nine decimal places and rounds away from zero;
/// an `i128` of billionths holds that exactly.
///
/// Parsing yields at most 2^63 - 1 base units of either sign. Arithmetic goes further and saturates far beyond it;
/// conversions to whole numbers saturate at the type's bounds.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Quantity {
    nano: i128,
}

/// Why a text is not a quantity.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseQuantityError {
    /// It is not a number with an optional suffix.
    #[error(
        "{text:?} is not a quantity: write a number with an optional suffix (n u m k M G T P E, Ki Mi Gi Ti Pi Ei, or an exponent), such as 500m or 128Mi"
    )]
    Malformed {
        /// The text as given, its first 64 characters.
        text: String,
    },
    /// It is larger than a signed 64-bit number.
    #[error("quantity {text:?} is too large: the largest is 9223372036854775807")]
    TooLarge {
        /// The text as given, its first 64 characters.
        text: String,
    },
}

/// Billionths in one base unit.
const NANO: i128 = 1_000_000_000;
/// Billionths in a thousandth.
const NANO_PER_MILLI: i128 = 1_000_000;

impl Quantity {
    /// The quantity 0.
    pub const ZERO: Self = Self { nano: 0 };

    /// So many base units: bytes, cores, pods.
    #[must_use]
    pub fn from_units(units: u64) -> Self {
        Self { nano: i128::from(units) * NANO }
    }

    /// So many thousandths of a base unit.
    #[must_use]
    pub fn from_milli(milli: u64) -> Self {
        Self { nano: i128::from(milli) * NANO_PER_MILLI }
    }

    /// Whether it is exactly zero.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self.nano == 0
    }

    /// Whether it is above zero.
    #[must_use]
    pub fn is_positive(self) -> bool {
        self.nano > 0
    }

    /// Whether it is below zero.
    #[must_use]
    pub fn is_negative(self) -> bool {
        self.nano < 0
    }

    /// In whole base units, rounded away from zero (upstream `Quantity.Value`), at most `i64::MAX`.
    #[must_use]
    pub fn value_ceil(self) -> i64 {
        saturate(divide_away_from_zero(self.nano, NANO))
    }

    /// In whole thousandths, rounded away from zero (upstream `Quantity.MilliValue`), at most `i64::MAX`.
    #[must_use]
    pub fn milli_value_ceil(self) -> i64 {
        saturate(divide_away_from_zero(self.nano, NANO_PER_MILLI))
    }

    /// [`Self::value_ceil`] for amounts that cannot be negative, such as bytes: 0 if below zero.
    #[must_use]
    pub fn units(self) -> u64 {
        u64::try_from(self.value_ceil()).unwrap_or(0)
    }

    /// [`Self::milli_value_ceil`] for amounts that cannot be negative, such as cpu time: 0 if below zero.
    #[must_use]
    pub fn milli(self) -> u64 {
        u64::try_from(self.milli_value_ceil()).unwrap_or(0)
    }

    /// The sum; `None` if it overflows the type.
    #[must_use]
    pub fn checked_add(self, other: Self) -> Option<Self> {
        self.nano.checked_add(other.nano).map(|nano| Self { nano })
    }

    /// The sum, saturating at the type's bounds.
    #[must_use]
    pub fn saturating_add(self, other: Self) -> Self {
        Self { nano: self.nano.saturating_add(other.nano) }
    }

    /// The difference, saturating at the type's bounds.
    #[must_use]
    pub fn saturating_sub(self, other: Self) -> Self {
        Self { nano: self.nano.saturating_sub(other.nano) }
    }

    /// Displays it in powers of 1024, as Kubernetes displays bytes: `1500Mi`.
    #[must_use]
    pub fn binary_si(self) -> BinarySi {
        BinarySi(self)
    }
}

impl FromStr for Quantity {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse::parse(text)
    }
}

fn divide_away_from_zero(dividend: i128, divisor: i128) -> i128 {
    let quotient = dividend / divisor;
    if dividend % divisor == 0 { quotient } else { quotient + dividend.signum() }
}

fn saturate(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}
