//! The programs' own diagnostics: aya-log in development builds, nothing at all in release objects.

/// Says something at debug level, if the object was built with the feature `log`.
#[cfg(feature = "log")]
macro_rules! say {
    ($ctx:expr, $($arg:tt)+) => { aya_log_ebpf::debug!($ctx, $($arg)+) };
}

/// Says something at debug level, if the object was built with the feature `log`.
#[cfg(not(feature = "log"))]
macro_rules! say {
    ($ctx:expr, $($arg:tt)+) => {{
        let _ = $ctx;
    }};
}
