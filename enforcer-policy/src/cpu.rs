//! Converts cpu requests and limits for the kernel: `pkg/kubelet/cm/helpers_linux.go`, and for containers
//! `ConvertCPUSharesToCgroupV2Value` of opencontainers/cgroups.

/// The fewest cpu shares.
pub const SHARES_MIN: u64 = 2;
/// The most cpu shares.
pub const SHARES_MAX: u64 = 262_144;
/// The smallest cpu quota, in microseconds per period.
pub const QUOTA_MIN_US: u64 = 1_000;
/// The largest quota that the kernel accepts, in microseconds: 2^44 - 1 (`max_cfs_runtime` in kernel/sched/core.c).
pub const QUOTA_MAX_US: u64 = (1 << 44) - 1;

/// The largest `cpu.weight`; the smallest is 1.
const WEIGHT_MAX: u64 = 10_000;

/// The shares for a request in thousandths of a cpu (upstream `MilliCPUToShares`).
#[must_use]
pub fn shares(cpu_milli: u64) -> u64 {
    // If the product overflowed, the result would be above the maximum anyway.
    (cpu_milli.saturating_mul(1024) / 1000).clamp(SHARES_MIN, SHARES_MAX)
}

/// The quota in microseconds for a limit in thousandths of a cpu; `None` for no limit (upstream `MilliCPUToQuota`).
#[must_use]
pub fn quota_us(cpu_milli: u64, period_us: u64) -> Option<u64> {
    if cpu_milli == 0 {
        return None;
    }
    let quota = u128::from(cpu_milli) * u128::from(period_us) / 1000;
    Some(u64::try_from(quota).unwrap_or(u64::MAX).clamp(QUOTA_MIN_US, QUOTA_MAX_US))
}

/// The quota in microseconds that systemd writes for this one, at least 1,000.
///
/// systemd keeps `CPUQuotaPerSecUSec`, microseconds per second, and shows it as a whole percentage; so opencontainers'
/// `addCPUQuota` (systemd/common.go) rounds up to the next 10 ms, and `cgroup_apply_cpu_quota` in systemd's
/// src/core/cgroup.c writes that share of the period.
#[must_use]
pub fn quota_of_systemd_us(quota_us: u64, period_us: u64) -> u64 {
    const SECOND_US: u128 = 1_000_000;
    const PERCENT_US: u128 = 10_000;
    if period_us == 0 {
        return quota_us;
    }
    let per_second = u128::from(quota_us) * SECOND_US / u128::from(period_us);
    let per_second = per_second.div_ceil(PERCENT_US) * PERCENT_US;
    let quota = per_second * u128::from(period_us) / SECOND_US;
    u64::try_from(quota).unwrap_or(u64::MAX).clamp(QUOTA_MIN_US, QUOTA_MAX_US)
}

/// The weight, 1 to 10,000, in proportion to the shares (upstream `getCPUWeight`).
#[must_use]
pub fn weight_linear(shares: u64) -> u64 {
    let shares = shares.clamp(SHARES_MIN, SHARES_MAX);
    1 + (shares - SHARES_MIN) * (WEIGHT_MAX - 1) / (SHARES_MAX - SHARES_MIN)
}

/// The shares for a weight (upstream `CpuWeightToCPUShares`): the least that [`weight_linear`] maps to it, or just
/// below.
#[must_use]
pub fn shares_of_weight(weight: u64) -> u64 {
    let above = weight.clamp(1, WEIGHT_MAX) - 1;
    above * (SHARES_MAX - SHARES_MIN) / (WEIGHT_MAX - 1) + SHARES_MIN
}

/// The weight, 1 to 10,000, that maps 1024 shares to the kernel's default of 100, as runc 1.3.2, crun 1.23 and later
/// compute it for containers.
#[must_use]
pub fn weight_quadratic(shares: u64) -> u64 {
    let Ok(small) = u32::try_from(shares) else { return WEIGHT_MAX };
    if shares <= SHARES_MIN {
        return 1;
    }
    if shares >= SHARES_MAX {
        return WEIGHT_MAX;
    }
    let log = f64::from(small).log2();
    let weight = 10_f64.powf((log * log + 125.0 * log) / 612.0 - 7.0 / 34.0).ceil();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "for 2 to 262,144 shares it lies between 1 and 10,000"
    )]
    let weight = weight as u64;
    weight.clamp(1, WEIGHT_MAX)
}

/// Whether two weights come from the same shares, by either formula. Shares that differ by one count as the same.
#[must_use]
pub fn are_of_same_shares(one: u64, other: u64) -> bool {
    let are = |linear: u64, quadratic: u64| {
        let shares = shares_of_weight(linear)..=shares_of_weight(linear.saturating_add(1));
        (weight_quadratic(*shares.start())..=weight_quadratic(*shares.end())).contains(&quadratic)
    };
    one == other || are(one, other) || are(other, one)
}

#[cfg(test)]
mod tests;
