//! The environment variables of tests in guests.
use std::env;

use anyhow::Context as _;

/// The seed of tests that choose at random.
const SEED: &str = "ENFORCER_TEST_SEED";
/// Set if tests that repeat a scene run many rounds of it.
const SOAK: &str = "ENFORCER_SOAK";
/// For how many seconds such a test begins further rounds.
const SECONDS: &str = "ENFORCER_SOAK_SECONDS";

/// The seed of a run, and whether it is a soak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Environment {
    /// The seed; without one each run chooses differently.
    pub(crate) seed: Option<u64>,
    /// Scenes are repeated many times.
    pub(crate) soak: bool,
    /// How long a test begins further rounds; `None`: until all have run.
    pub(crate) soak_seconds: Option<u64>,
}

impl Environment {
    /// This process's own variables: a failure is repeated with the seed that it names.
    pub(crate) fn of_this_process() -> anyhow::Result<Self> {
        let number = |name: &str| -> anyhow::Result<Option<u64>> {
            let text = env::var(name).ok();
            let parse = |text: String| text.parse().with_context(|| format!("{name}={text} is not a number"));
            text.map(parse).transpose()
        };
        Ok(Self { seed: number(SEED)?, soak: env::var_os(SOAK).is_some(), soak_seconds: number(SECONDS)? })
    }

    /// The variables for a test.
    pub(crate) fn variables(self) -> impl Iterator<Item = (&'static str, String)> {
        let seed = self.seed.map(|seed| (SEED, seed.to_string()));
        let soak = self.soak.then(|| (SOAK, "1".to_owned()));
        let seconds = self.soak_seconds.map(|seconds| (SECONDS, seconds.to_string()));
        seed.into_iter().chain(soak).chain(seconds)
    }
}

/// As assignments before a command of the shell, each with a space after it.
pub(crate) fn assignments<'a>(variables: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let words = variables
        .into_iter()
        .flat_map(|(name, value)| [name.to_owned(), "=".to_owned(), value, " ".to_owned()]);
    words.collect()
}
