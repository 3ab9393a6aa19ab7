//! What the guest scenarios share.
