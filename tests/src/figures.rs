//! Figures that benchmarks print, and their exit status.

use std::process::ExitCode;

/// The exit status of a benchmark: success if everything was within its bar. An error is printed.
#[must_use]
#[expect(clippy::print_stderr, reason = "a benchmark's last word")]
pub fn verdict(outcome: anyhow::Result<bool>) -> ExitCode {
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The value at that percentile of a sorted list, by the nearest rank.
#[must_use]
pub fn rank(sorted: &[f64], percentile: usize) -> f64 {
    let index = (sorted.len() * percentile).div_ceil(100).saturating_sub(1);
    sorted.get(index).copied().unwrap_or(f64::NAN)
}

/// A count or an amount as a float, for printing.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "a figure for people, far below 2^52")]
pub fn float(number: u64) -> f64 {
    number as f64
}

/// Bytes in MiB.
#[must_use]
pub fn mib(bytes: u64) -> f64 {
    float(bytes) / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::rank;

    #[test]
    fn ranks_are_of_the_list() {
        let sorted: Vec<f64> = (1..=20).map(f64::from).collect();
        assert!((rank(&sorted, 50) - 10.0).abs() < f64::EPSILON);
        assert!((rank(&sorted, 99) - 20.0).abs() < f64::EPSILON);
        assert!(rank(&[], 50).is_nan());
    }
}
