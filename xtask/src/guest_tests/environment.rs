//! What tests in guests are told through their environment.
use std::env;

use anyhow::Context as _;

/// Where tests that choose by chance take their seed from.
const SEED: &str = "ENFORCER_TEST_SEED";
/// Set where tests that repeat a scene run many rounds of it.
const SOAK: &str = "ENFORCER_SOAK";

/// The seed of a run, and whether it is a soak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Environment {
    /// The seed; without one each run chooses differently.
    pub(crate) seed: Option<u64>,
    /// Scenes are repeated many times.
    pub(crate) soak: bool,
}

impl Environment {
    /// What this process was given: a failure is repeated with the seed that it names.
    pub(crate) fn of_this_process() -> anyhow::Result<Self> {
        let seed = env::var(SEED).ok();
        let parse = |seed: String| seed.parse().with_context(|| format!("{SEED}={seed} is no number"));
        Ok(Self { seed: seed.map(parse).transpose()?, soak: env::var_os(SOAK).is_some() })
    }

    /// The variables that say it to a test.
    pub(crate) fn variables(self) -> impl Iterator<Item = (&'static str, String)> {
        let seed = self.seed.map(|seed| (SEED, seed.to_string()));
        seed.into_iter().chain(self.soak.then(|| (SOAK, "1".to_owned())))
    }
}

/// As assignments before a command of the shell, each with a space after it.
pub(crate) fn assignments<'a>(variables: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let words = variables
        .into_iter()
        .flat_map(|(name, value)| [name.to_owned(), "=".to_owned(), value, " ".to_owned()]);
    words.collect()
}
