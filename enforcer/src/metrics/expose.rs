//! Writes the metrics page, family by family.

mod happened;
mod now;
mod own;
mod system;

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, registry::Registry};

use self::{
    happened::{course, evictions, ooms},
    now::{headroom, pods, pressure, sources},
    own::{events, itself, process, programs, reflex, sinks},
};
use super::{
    Format, classic,
    counts::{Counted, Counts, NO_NAMESPACE},
    gauges::Gauges,
    page::Page,
};

/// All counters and gauges as text. The text is complete before any of it is sent, so that a slow reader
/// holds nothing.
///
/// Fails only if a write to memory fails, which does not happen.
pub fn expose(counts: &Counts, gauges: Gauges, format: Format) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Whole { counts: counts.clone(), gauges }));
    let mut text = String::with_capacity(32 << 10);
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    match format {
        Format::OpenMetrics => Ok(text),
        Format::Classic => classic::classic(&text),
    }
}

#[derive(Debug)]
struct Whole {
    counts: Counts,
    gauges: Gauges,
}

impl Collector for Whole {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Self { counts, gauges } = self;
        let counted = &*counts.0;
        let mut page = Page::new(encoder);
        evictions(&mut page, counted)?;
        course(&mut page, counted, gauges)?;
        ooms(&mut page, counted)?;
        headroom(&mut page, counts, gauges)?;
        pressure(&mut page, gauges)?;
        pods(&mut page, gauges)?;
        system::parts(&mut page, gauges)?;
        system::reserved(&mut page, gauges)?;
        events(&mut page, counted, gauges)?;
        sinks(&mut page, gauges)?;
        programs(&mut page, counted, gauges)?;
        sources(&mut page, counted)?;
        reflex(&mut page, gauges)?;
        itself(&mut page, gauges)?;
        process(&mut page, &gauges.process)
    }
}

/// The namespaces with their places, then the place of counts that belong to no pod.
fn namespaces(counted: &Counted) -> impl Iterator<Item = (usize, &str)> {
    counted.namespaces.all().chain(std::iter::once((NO_NAMESPACE, "")))
}

fn pairs<A: Copy, B: Copy>(first: &[A], second: &[B]) -> impl Iterator<Item = (A, B)> {
    first.iter().flat_map(move |one| second.iter().map(move |other| (*one, *other)))
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn milliseconds(ms: u64) -> f64 {
    std::time::Duration::from_millis(ms).as_secs_f64()
}
