//! The options of the static policy: `policy_options.go`.

/// The name of the option for whole cores.
pub const FULL_PCPUS_ONLY: &str = "full-pcpus-only";

/// The name of the option to spread over cores.
pub const DISTRIBUTE_CPUS_ACROSS_CORES: &str = "distribute-cpus-across-cores";

/// The options in force.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct CpuOptions {
    /// `full-pcpus-only`: a container gets whole cores only, so that it shares none with another one.
    pub full_pcpus_only: bool,
    /// `distribute-cpus-across-cores`: a container gets threads of different cores, as far as they go.
    pub distribute_cpus_across_cores: bool,
}

/// Why options are refused.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum OptionsError {
    /// There is no such option here. The kubelet has more: those that need its topology manager, and
    /// `strict-cpu-reservation`.
    #[error(
        "unknown CPU manager policy option {name:?}: known are {FULL_PCPUS_ONLY} and {DISTRIBUTE_CPUS_ACROSS_CORES}"
    )]
    Unknown {
        /// Its name, its first 64 characters.
        name: String,
    },
    /// A value is neither true nor false.
    #[error("bad value {value:?} for option {name:?}: write true or false")]
    NotBoolean {
        /// The option.
        name: String,
        /// Its value, its first 64 characters.
        value: String,
    },
    /// Both are true; the kubelet refuses the pair, too.
    #[error(
        "static policy options {FULL_PCPUS_ONLY} and {DISTRIBUTE_CPUS_ACROSS_CORES} can not be used at the same time"
    )]
    Conflict,
}

impl CpuOptions {
    /// Reads options as the kubelet's `cpuManagerPolicyOptions` has them. Values are those of Go's
    /// `strconv.ParseBool`: `true`, `True`, `TRUE`, `t`, `T`, `1` and their opposites.
    pub fn from_pairs<'text>(
        pairs: impl IntoIterator<Item = (&'text str, &'text str)>,
    ) -> Result<Self, OptionsError> {
        let mut options = Self::default();
        for (name, value) in pairs {
            let option = match name {
                FULL_PCPUS_ONLY => &mut options.full_pcpus_only,
                DISTRIBUTE_CPUS_ACROSS_CORES => &mut options.distribute_cpus_across_cores,
                _ => return Err(OptionsError::Unknown { name: shown(name) }),
            };
            *option = match value {
                "1" | "t" | "T" | "true" | "TRUE" | "True" => true,
                "0" | "f" | "F" | "false" | "FALSE" | "False" => false,
                _ => return Err(OptionsError::NotBoolean { name: name.to_owned(), value: shown(value) }),
            };
        }
        options.check()?;
        Ok(options)
    }

    /// Whether the options go together.
    pub fn check(self) -> Result<(), OptionsError> {
        let both = self.full_pcpus_only && self.distribute_cpus_across_cores;
        if both { Err(OptionsError::Conflict) } else { Ok(()) }
    }
}

fn shown(text: &str) -> String {
    text.chars().take(64).collect()
}
