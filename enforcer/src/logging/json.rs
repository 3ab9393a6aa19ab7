//! A log line as JSON, for collectors that read no text.

use std::{error::Error, fmt};

use serde_json::{Map, Value};
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_log::NormalizeEvent as _;
use tracing_subscriber::{
    fmt::{FmtContext, FormatEvent, FormatFields, format::Writer},
    registry::LookupSpan,
};

/// One object a line: `time`, `level`, `target`, `message`, and the fields of the line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Json;

impl<S, N> FormatEvent<S, N> for Json
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _context: &FmtContext<'_, S, N>,
        mut out: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        // What comes through `log` has its own target and level.
        let normalized = event.normalized_metadata();
        let metadata = normalized.as_ref().unwrap_or_else(|| event.metadata());
        let mut fields = Fields(Map::new());
        event.record(&mut fields);
        let Fields(mut line) = fields;
        line.insert(String::from("time"), jiff::Timestamp::now().to_string().into());
        line.insert(String::from("level"), metadata.level().to_string().into());
        line.insert(String::from("target"), metadata.target().into());
        writeln!(out, "{}", Value::Object(line))
    }
}

struct Fields(Map<String, Value>);

impl Fields {
    fn put(&mut self, field: &Field, value: Value) {
        // What `log` brings along is in the metadata.
        if !field.name().starts_with("log.") {
            self.0.insert(field.name().to_owned(), value);
        }
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.into());
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.put(field, value.to_string().into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}").into());
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Arc, Mutex},
    };

    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_is_one_object_whatever_its_text_has() {
        let kept = Kept::default();
        let writer = kept.clone();
        let layer = tracing_subscriber::fmt::layer()
            .with_writer(move || writer.clone())
            .with_ansi(false)
            .event_format(Json);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            tracing::warn!(what = "btf", took_ms = 7, "a\nb \u{1b}[2J \"{}\"", "quoted");
        });
        let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.lines().count(), 1, "{text:?}");
        let line: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(line["message"], "a\nb \u{1b}[2J \"quoted\"");
        assert_eq!(
            (&line["level"], &line["what"], &line["took_ms"]),
            (&"WARN".into(), &"btf".into(), &7.into())
        );
        assert!(line["time"].as_str().unwrap().ends_with('Z') && line["target"].is_string(), "{line}");
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }
}
