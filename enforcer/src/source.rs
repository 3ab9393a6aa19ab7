//! Where pods come from. Each source converts what it reads to [`crate::model`] at its edge.

pub mod manifest;
