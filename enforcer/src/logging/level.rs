//! How much is logged, which an operator may change while the daemon runs.

use std::sync::OnceLock;

use tracing_subscriber::{Layer, Registry, filter::Targets, reload};

/// The levels, and what each is of: the libraries log a lot.
const LEVELS: [(&str, &str); 5] = [
    ("error", "error"),
    ("warn", "warn"),
    ("info", "info,aya=warn,aya_obj=warn"),
    ("debug", "info,enforcer=debug,enforcer_ebpf=debug,aya=warn,aya_obj=warn"),
    ("trace", "trace"),
];

/// Puts a filter in place of the present one; false if there is none.
type Set = Box<dyn Fn(Targets) -> bool + Send + Sync>;

static SET: OnceLock<Set> = OnceLock::new();

/// The filter of a level.
pub(crate) fn filter(level: &str) -> Result<Targets, String> {
    let found = LEVELS.iter().find(|(name, _)| *name == level);
    let (_, directives) = found.ok_or_else(|| {
        let names = LEVELS.map(|(name, _)| name).join(", ");
        format!("{level:?} is not a log level: it is one of {names}")
    })?;
    directives.parse().map_err(|error| format!("the log filter of {level} is wrong: {error}"))
}

/// A filter that [`set`] changes.
pub(crate) fn changeable(filter: Targets) -> impl Layer<Registry> + Send + Sync {
    let (filter, handle) = reload::Layer::<Targets, Registry>::new(filter);
    // A process logs through one subscriber, its first.
    let _kept = SET.set(Box::new(move |filter| handle.reload(filter).is_ok()));
    filter
}

/// Logs that much from now on.
pub(crate) fn set(level: &str) -> Result<(), String> {
    let filter = filter(level)?;
    let is_set = SET.get().is_some_and(|set| set(filter));
    if is_set { Ok(()) } else { Err(String::from("the log level cannot change: nothing is logged")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_level_has_a_filter_and_another_word_is_answered_with_all() {
        for (level, _) in LEVELS {
            assert!(filter(level).is_ok(), "{level}");
        }
        let error = filter("verbose").unwrap_err();
        assert!(error.ends_with("it is one of error, warn, info, debug, trace"), "{error}");
    }

    #[test]
    fn a_level_leaves_out_what_is_below_it() {
        let takes =
            |level: &str, target: &str, of: tracing::Level| filter(level).unwrap().would_enable(target, &of);
        assert!(takes("info", "enforcer::daemon", tracing::Level::INFO));
        assert!(!takes("info", "enforcer::daemon", tracing::Level::DEBUG));
        assert!(takes("debug", "enforcer::daemon", tracing::Level::DEBUG));
        assert!(
            !takes("debug", "hyper", tracing::Level::DEBUG) && !takes("info", "aya", tracing::Level::INFO)
        );
        assert!(
            !takes("warn", "enforcer", tracing::Level::INFO)
                && takes("trace", "hyper", tracing::Level::TRACE)
        );
    }
}
