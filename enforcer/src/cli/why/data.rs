//! Amounts and durations in words.

use super::fold::Folded;
use crate::cli::{page::Style, render::human_bytes, times::ago};

/// A case's id and time. On a screen also how long ago that was, which a ticket would have wrong a moment later.
pub(super) fn at(folded: &Folded, style: Style) -> String {
    let Folded { id, time, .. } = folded;
    let ago = match style {
        Style::Screen(_) => ago(time, jiff::Timestamp::now()),
        Style::Markdown => None,
    };
    ago.map_or_else(|| format!("{id} at {time}"), |ago| format!("{id} at {time} ({ago})"))
}

/// Bytes in a unit; `?` if they are missing.
pub(super) fn bytes(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| String::from("?"), human_bytes)
}

/// A number; `?` if it is missing.
pub(super) fn number<T: ToString>(number: Option<T>) -> String {
    number.map_or_else(|| String::from("?"), |number| number.to_string())
}

/// A duration: in milliseconds, from one second on in seconds.
pub(super) fn span(ms: f64) -> String {
    if ms < 100.0 {
        format!("{ms:.1} ms")
    } else if ms < 1_000.0 {
        format!("{ms:.0} ms")
    } else {
        format!("{:.1} s", ms / 1_000.0)
    }
}

/// The same of whole milliseconds, at most `u32::MAX`: 49 days.
pub(super) fn whole_span(ms: u64) -> String {
    span(f64::from(u32::try_from(ms).unwrap_or(u32::MAX)))
}
