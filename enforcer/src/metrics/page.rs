//! How the page is written: families, rows and labels, without knowledge of what they mean.

use std::fmt;

use prometheus_client::{
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet},
    metrics::MetricType,
    registry::Unit,
};

use super::durations::Taken;

/// Labels of one row, by name.
pub(super) type Labels<'a> = [(&'a str, &'a str)];

/// The page to write, family by family.
pub(super) struct Page<'a>(DescriptorEncoder<'a>);

/// The type of a family.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
    Info,
}

/// A family's rows.
pub(super) struct Rows<'a>(MetricEncoder<'a>);

impl<'a> Page<'a> {
    pub(super) fn new(encoder: DescriptorEncoder<'a>) -> Self {
        Self(encoder)
    }

    /// Writes a family under the name of its rows; its head is written even without rows.
    pub(super) fn family(
        &mut self,
        name: &str,
        kind: Kind,
        help: &str,
        rows: impl FnOnce(&mut Rows<'_>) -> fmt::Result,
    ) -> fmt::Result {
        let (suffix, metric_type) = match kind {
            Kind::Counter => ("_total", MetricType::Counter),
            Kind::Gauge => ("", MetricType::Gauge),
            Kind::Histogram => ("", MetricType::Histogram),
            Kind::Info => ("_info", MetricType::Info),
        };
        // The library appends suffix and unit again.
        let stem = name.strip_suffix(suffix).ok_or(fmt::Error)?;
        let units = [("_bytes", Unit::Bytes), ("_seconds", Unit::Seconds)];
        let unit = units.into_iter().find_map(|(suffix, unit)| Some((stem.strip_suffix(suffix)?, unit)));
        let (stem, unit) = unit.map_or((stem, None), |(stem, unit)| (stem, Some(unit)));
        rows(&mut Rows(self.0.encode_descriptor(stem, help, unit.as_ref(), metric_type)?))
    }

    /// A gauge without labels; no row for `None`.
    pub(super) fn gauge(&mut self, name: &str, help: &str, value: Option<u64>) -> fmt::Result {
        self.family(name, Kind::Gauge, help, |rows| match value {
            Some(value) => rows.gauge(&[], value),
            None => Ok(()),
        })
    }

    /// A counter without labels; no row for `None`.
    pub(super) fn counter(&mut self, name: &str, help: &str, value: Option<u64>) -> fmt::Result {
        self.family(name, Kind::Counter, help, |rows| match value {
            Some(value) => rows.count(&[], value),
            None => Ok(()),
        })
    }
}

impl Rows<'_> {
    pub(super) fn count(&mut self, labels: &Labels<'_>, value: u64) -> fmt::Result {
        self.labelled(labels, |encoder| encoder.encode_counter::<NoLabelSet, _, f64>(&value, None))
    }

    pub(super) fn count_float(&mut self, labels: &Labels<'_>, value: f64) -> fmt::Result {
        self.labelled(labels, |encoder| encoder.encode_counter::<NoLabelSet, _, f64>(&value, None))
    }

    pub(super) fn gauge(&mut self, labels: &Labels<'_>, value: u64) -> fmt::Result {
        self.labelled(labels, |encoder| encoder.encode_gauge(&value))
    }

    pub(super) fn gauge_signed(&mut self, labels: &Labels<'_>, value: i64) -> fmt::Result {
        self.labelled(labels, |encoder| encoder.encode_gauge(&value))
    }

    pub(super) fn gauge_float(&mut self, labels: &Labels<'_>, value: f64) -> fmt::Result {
        self.labelled(labels, |encoder| encoder.encode_gauge(&value))
    }

    pub(super) fn info(&mut self, labels: &Labels<'_>) -> fmt::Result {
        self.0.encode_info(&labels)
    }

    pub(super) fn durations(&mut self, labels: &Labels<'_>, taken: &Taken) -> fmt::Result {
        self.histogram(labels, taken.total_seconds(), taken.count(), &taken.buckets())
    }

    pub(super) fn histogram(
        &mut self,
        labels: &Labels<'_>,
        sum: f64,
        count: u64,
        buckets: &[(f64, u64)],
    ) -> fmt::Result {
        self.labelled(labels, |encoder| encoder.encode_histogram::<NoLabelSet>(sum, count, buckets, None))
    }

    fn labelled(
        &mut self,
        labels: &Labels<'_>,
        encode: impl FnOnce(&mut MetricEncoder<'_>) -> fmt::Result,
    ) -> fmt::Result {
        if labels.is_empty() { encode(&mut self.0) } else { encode(&mut self.0.encode_family(&labels)?) }
    }
}
