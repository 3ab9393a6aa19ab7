//! What keeps the eBPF programs from being used.

/// Why sensing by eBPF could not be set up at all. Single programs that fail are no error but a
/// [`Failure`](super::Failure) each.
#[derive(Debug, thiserror::Error)]
pub enum SenseError {
    /// The kernel refused the object: its maps or its BTF.
    #[error("cannot load the eBPF object: {0}")]
    Object(#[from] aya::EbpfError),
    /// A map that the object should have is missing or of another type: object and daemon do not fit.
    #[error("the eBPF object has no usable map `{name}`; build object and daemon together")]
    Map {
        /// Name of the map.
        name: &'static str,
        /// What aya said, if the map is there.
        source: Option<aya::maps::MapError>,
    },
}
