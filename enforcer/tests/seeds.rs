//! Replays the seeds of the fuzz targets, so that neither rots; `cargo xtask fuzz` looks for new ones.

#![expect(clippy::print_stdout, reason = "a test names the seed that it fails with")]

use std::{fs, io, path::Path};

use enforcer_fuzz::{
    btf, configuration, event, intent, journal, kernel_text, manifest, quantity, query, recording, records,
};

#[path = "../fuzz/src/lib.rs"]
#[expect(
    clippy::panic,
    unreachable_pub,
    reason = "it is a library of its own as well, and fails by panicking"
)]
mod enforcer_fuzz;

fn replay(target: &str, check: impl Fn(&[u8])) -> io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(target);
    let mut seeds = fs::read_dir(&folder)?.map(|seed| Ok(seed?.path())).collect::<io::Result<Vec<_>>>()?;
    seeds.sort();
    assert!(seeds.len() >= 10, "{} seeds are left in {}", seeds.len(), folder.display());
    for seed in seeds {
        // Shown where one fails.
        println!("{}", seed.display());
        check(&fs::read(&seed)?);
    }
    Ok(())
}

#[test]
fn quantities_hold() -> io::Result<()> {
    replay("quantity", quantity::check)
}

#[test]
fn manifests_hold() -> io::Result<()> {
    replay("manifest", manifest::check)
}

#[test]
fn configurations_hold() -> io::Result<()> {
    replay("configuration", configuration::check)
}

#[test]
fn events_hold() -> io::Result<()> {
    replay("event", event::check)
}

#[test]
fn recordings_hold() -> io::Result<()> {
    replay("recording", recording::check)
}

#[test]
fn records_hold() -> io::Result<()> {
    replay("records", records::check)
}

#[test]
fn type_descriptions_hold() -> io::Result<()> {
    replay("btf", btf::check)
}

#[test]
fn intent_pages_hold() -> io::Result<()> {
    replay("intent", intent::check)
}

#[test]
fn logs_hold() -> io::Result<()> {
    replay("journal", journal::check)
}

#[test]
fn kernel_texts_hold() -> io::Result<()> {
    replay("kernel_text", kernel_text::check)
}

#[test]
fn queries_hold() -> io::Result<()> {
    replay("query", query::check)
}
