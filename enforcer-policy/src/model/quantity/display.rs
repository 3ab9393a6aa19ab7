//! The canonical form of apimachinery: no precision lost, no fraction, the largest suffix possible.

use std::fmt;

use super::{NANO, Quantity};

const DECIMAL_SUFFIXES: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
const BINARY_SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// Displays a quantity in powers of 1024, as the kubelet displays memory in its messages.
///
/// A quantity below 1024, or not a whole number of base units, is displayed like [`Quantity`] itself (upstream
/// `Quantity.CanonicalizeBytes` with `BinarySI`).
#[derive(Clone, Copy, Debug)]
pub struct BinarySi(pub(super) Quantity);

/// In powers of 1000: `100m`, `1500`, `4G`.
impl fmt::Display for Quantity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_zero() {
            return formatter.pad("0");
        }
        let (number, suffix) = shorten(self.nano, 1000, &DECIMAL_SUFFIXES);
        formatter.pad(&format!("{number}{suffix}"))
    }
}

impl fmt::Display for BinarySi {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nano = self.0.nano;
        if nano.unsigned_abs() < (1024 * NANO).unsigned_abs() || nano % NANO != 0 {
            return self.0.fmt(formatter);
        }
        let (number, suffix) = shorten(nano / NANO, 1024, &BINARY_SUFFIXES);
        formatter.pad(&format!("{number}{suffix}"))
    }
}

/// Divides by `base` while there is no remainder and a larger suffix exists.
fn shorten<'suffix>(mut number: i128, base: i128, suffixes: &[&'suffix str]) -> (i128, &'suffix str) {
    let mut suffix = "";
    for (index, next) in suffixes.iter().enumerate() {
        suffix = next;
        if index + 1 == suffixes.len() || number % base != 0 {
            break;
        }
        number /= base;
    }
    (number, suffix)
}
