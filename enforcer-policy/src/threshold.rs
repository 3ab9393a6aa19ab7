//! Eviction thresholds in the kubelet's notation: `pkg/kubelet/eviction/helpers.go`.

mod config;
mod signal;

use std::fmt;

use postcard_schema::Schema;
use serde::{Deserialize, Serialize};

use crate::model::{ParseQuantityError, Quantity};

pub use self::config::{InvalidThreshold, Map, Problem, Written, from_configuration};
pub use self::signal::{NodeCondition, Signal, Threshold};

/// A threshold or a minimum reclaim: an amount of the signal's resource, or a share of its capacity.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Schema, Serialize)]
pub enum ThresholdValue {
    /// In base units: bytes, tasks.
    Amount(u64),
    /// A share of the capacity, 0 to 1. The kubelet keeps it as a 32-bit float, so the amount is that of the float.
    Share(f32),
}

/// Why a text is not a threshold.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ThresholdError {
    /// It ends in `%`, but what precedes is not a number from 0 to 100.
    #[error("{text:?} is not a percentage: write a number from 0 to 100 and %, such as 10%")]
    Percentage {
        /// The text.
        text: String,
    },
    /// Neither a percentage nor a quantity.
    #[error("{0}, or a percentage such as 10%")]
    Quantity(#[from] ParseQuantityError),
    /// A quantity out of range.
    #[error("{text:?} is out of range: it must be {allowed}")]
    OutOfRange {
        /// The text.
        text: String,
        /// The allowed values.
        allowed: &'static str,
    },
}

impl ThresholdValue {
    /// The amount for that capacity, in the same unit, rounded as the kubelet does (`GetThresholdQuantity`): 5 % of
    /// 10Gi is 536870920, not 536870912.
    #[must_use]
    pub fn amount(self, capacity: u64) -> u64 {
        match self {
            Self::Amount(amount) => amount,
            Self::Share(share) => scale(capacity, f64::from(share)),
        }
    }
}

/// As the kubelet shows it: an amount in powers of 1024, or a percentage.
impl fmt::Display for ThresholdValue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Amount(amount) => Quantity::from_units(*amount).binary_si().fmt(formatter),
            // Four decimals: further ones come from the float.
            Self::Share(share) => write!(formatter, "{}%", (share * 1e6).round() / 1e4),
        }
    }
}

/// Reads a value of `evictionHard` or `evictionSoft` (upstream `parseThresholdStatement`); `None` if the threshold is
/// switched off, by exactly `0%` or `100%`.
pub fn parse(text: &str) -> Result<Option<ThresholdValue>, ThresholdError> {
    if text == "0%" || text == "100%" {
        return Ok(None);
    }
    let value = value(text)?;
    if matches!(value, Value::Quantity(quantity) if !quantity.is_positive()) {
        return Err(out_of_range(text, "more than 0; to switch a threshold off, write 0%"));
    }
    Ok(Some(value.into()))
}

/// Reads a value of `evictionMinimumReclaim` (upstream `parseMinimumReclaims`).
pub fn parse_minimum_reclaim(text: &str) -> Result<ThresholdValue, ThresholdError> {
    let value = value(text)?;
    match value {
        Value::Quantity(quantity) if quantity.is_negative() => Err(out_of_range(text, "0 or more")),
        Value::Share(share) if share <= 0.0 => Err(out_of_range(text, "more than 0%")),
        Value::Quantity(_) | Value::Share(_) => Ok(value.into()),
    }
}

enum Value {
    Quantity(Quantity),
    Share(f32),
}

impl From<Value> for ThresholdValue {
    fn from(value: Value) -> Self {
        match value {
            Value::Quantity(quantity) => Self::Amount(quantity.units()),
            Value::Share(share) => Self::Share(share),
        }
    }
}

fn value(text: &str) -> Result<Value, ThresholdError> {
    let Some(percentage) = text.strip_suffix('%') else {
        return Ok(Value::Quantity(text.parse()?));
    };
    // Only digits, signs, point and exponent: Rust's parser also accepts `inf` and `nan`.
    let is_number = percentage.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    percentage
        .parse::<f32>()
        .ok()
        .filter(|_| is_number)
        .map(|number| number / 100.0)
        .filter(|share| (0.0..=1.0).contains(share))
        .map(Value::Share)
        .ok_or_else(|| ThresholdError::Percentage { text: text.to_owned() })
}

fn out_of_range(text: &str, allowed: &'static str) -> ThresholdError {
    ThresholdError::OutOfRange { text: text.to_owned(), allowed }
}

/// `int64(float64(amount) * factor)` in Go: rounds towards zero.
pub(super) fn scale(amount: u64, factor: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "the kubelet's own arithmetic; no factor here is negative, and the cast stops at the type's ends"
    )]
    let scaled = (amount as f64 * factor) as u64;
    scaled
}

#[cfg(test)]
mod tests;
