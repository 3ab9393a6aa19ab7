//! `metadata.ownerReferences`, such as a pod's controller; for reports, nothing is decided by it.

/// An object that a pod belongs to (`metadata.ownerReferences`). Whoever may create a pod can name any.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct OwnerReference {
    /// Its kind, such as `ReplicaSet`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Whether it is the pod's controller, which creates another pod when this one is gone.
    pub is_controller: bool,
}
