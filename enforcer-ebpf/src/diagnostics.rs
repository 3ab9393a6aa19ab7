//! Diagnostics of the programs: aya-log in development builds, nothing in release objects.

/// Logs at debug level if the object was built with the feature `log`.
#[cfg(feature = "log")]
macro_rules! say {
    ($ctx:expr, $($arg:tt)+) => { aya_log_ebpf::debug!($ctx, $($arg)+) };
}

/// Logs at debug level if the object was built with the feature `log`.
#[cfg(not(feature = "log"))]
macro_rules! say {
    ($ctx:expr, $($arg:tt)+) => {{
        let _ = $ctx;
    }};
}
