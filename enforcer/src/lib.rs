//! enforcer
