//! Errors that keep the eBPF programs from being used.

/// Why sensing by eBPF could not be set up at all. A single program that fails is a
/// [`Failure`](super::Failure), not an error.
#[derive(Debug, thiserror::Error)]
pub enum SenseError {
    /// The kernel refused the object: its maps or its BTF.
    #[error("cannot load the eBPF object: {0}")]
    Object(#[from] aya::EbpfError),
    /// A map is missing from the object or has another type: object and daemon do not match.
    #[error("the eBPF object has no usable map `{name}`; build object and daemon together")]
    Map {
        /// Name of the map.
        name: &'static str,
        /// The error from aya, if the map exists.
        source: Option<aya::maps::MapError>,
    },
}
