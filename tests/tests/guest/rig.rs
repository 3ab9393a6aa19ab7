//! The guest itself.
