//! A second reading of quantities, by numbers of any length, to compare the first with: slow, and plain.

use std::cmp::Ordering;

/// Exponents beyond these give the same as these for texts of up to 1,000 characters: too large, or almost nothing.
const MOST_EXPONENT: i64 = 2_000;

/// The largest magnitude: 2^63 - 1 base units, in billionths.
const LARGEST_NANO: i128 = 9_223_372_036_854_775_807_000_000_000;

const SUFFIXES: [(&str, u32, i64); 16] = [
    ("n", 0, -9),
    ("u", 0, -6),
    ("m", 0, -3),
    ("", 0, 0),
    ("k", 0, 3),
    ("M", 0, 6),
    ("G", 0, 9),
    ("T", 0, 12),
    ("P", 0, 15),
    ("E", 0, 18),
    ("Ki", 10, 0),
    ("Mi", 20, 0),
    ("Gi", 30, 0),
    ("Ti", 40, 0),
    ("Pi", 50, 0),
    ("Ei", 60, 0),
];

/// What a text stands for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reading {
    /// Nothing.
    Malformed,
    /// More than 2^63 - 1.
    TooLarge,
    /// So many billionths, rounded away from zero.
    Nano(i128),
}

/// Reads a quantity.
pub fn read(text: &str) -> Reading {
    let (sign, unsigned) = match text.chars().next() {
        Some('-') => (-1, &text[1..]),
        Some('+') => (1, &text[1..]),
        _ => (1, text),
    };
    let number_end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(number_end);
    let digits: String = number.chars().filter(|c| *c != '.').collect();
    if digits.is_empty() || number.matches('.').count() > 1 {
        return Reading::Malformed;
    }
    let decimals = number.find('.').map_or(0, |point| number.len() - point - 1);
    let known = SUFFIXES.iter().find(|(name, ..)| *name == suffix).map(|&(_, two, ten)| (two, ten));
    let Some((two, ten)) = known.or_else(|| Some((0, exponent(suffix)?))) else { return Reading::Malformed };

    let mut number = Natural::from_digits(&digits);
    if number.is_zero() {
        return Reading::Nano(0);
    }
    for _ in 0..two {
        number.multiply(2);
    }
    let mut is_exact = true;
    let tens = 9 + ten - i64::try_from(decimals).unwrap_or(i64::MAX);
    for _ in 0..tens.max(0) {
        number.multiply(10);
    }
    for _ in 0..(-tens).max(0) {
        is_exact &= number.divide(10) == 0;
    }
    if !is_exact {
        number.add(1);
    }
    match number.to_i128() {
        Some(nano) if nano <= LARGEST_NANO => Reading::Nano(sign * nano),
        _ => Reading::TooLarge,
    }
}

/// `value / divisor`, rounded away from zero.
pub fn divide_away_from_zero(value: i128, divisor: i128) -> i128 {
    let (quotient, rest) = (value.div_euclid(divisor), value.rem_euclid(divisor));
    match (rest.cmp(&0), value.cmp(&0)) {
        (Ordering::Greater, Ordering::Greater) => quotient + 1,
        _ => quotient,
    }
}

fn exponent(suffix: &str) -> Option<i64> {
    let rest = suffix.strip_prefix(['e', 'E'])?;
    let digits = rest.strip_prefix(['+', '-']).unwrap_or(rest);
    if digits.is_empty() || digits.chars().any(|c| !c.is_ascii_digit()) {
        return None;
    }
    let size = digits.trim_start_matches('0').chars().try_fold(0, |size, digit| {
        let size = size * 10 + i64::from(digit.to_digit(10)?);
        (size < MOST_EXPONENT).then_some(size)
    });
    let size = size.unwrap_or(MOST_EXPONENT);
    Some(if rest.starts_with('-') { -size } else { size })
}

/// A natural number of any length, in base 10^9, the lowest part first.
struct Natural(Vec<u64>);

const BASE: u64 = 1_000_000_000;

impl Natural {
    fn from_digits(digits: &str) -> Self {
        let mut number = Self(Vec::new());
        for digit in digits.bytes() {
            number.multiply(10);
            number.add(u64::from(digit - b'0'));
        }
        number
    }

    fn is_zero(&self) -> bool {
        self.0.iter().all(|part| *part == 0)
    }

    fn multiply(&mut self, by: u64) {
        let mut carry = 0;
        for part in &mut self.0 {
            let product = *part * by + carry;
            (*part, carry) = (product % BASE, product / BASE);
        }
        if carry > 0 {
            self.0.push(carry);
        }
    }

    fn add(&mut self, mut carry: u64) {
        for part in &mut self.0 {
            let sum = *part + carry;
            (*part, carry) = (sum % BASE, sum / BASE);
        }
        if carry > 0 {
            self.0.push(carry);
        }
    }

    /// What is left over.
    fn divide(&mut self, by: u64) -> u64 {
        let mut rest = 0;
        for part in self.0.iter_mut().rev() {
            let dividend = rest * BASE + *part;
            (*part, rest) = (dividend / by, dividend % by);
        }
        rest
    }

    fn to_i128(&self) -> Option<i128> {
        self.0.iter().rev().try_fold(0_i128, |number, part| {
            number.checked_mul(i128::from(BASE))?.checked_add(i128::from(*part))
        })
    }
}
