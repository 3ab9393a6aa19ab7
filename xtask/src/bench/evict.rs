//! Eviction side by side with others: the same work for each in one guest, and a table with its bars.
use std::{
    ffi::OsString,
    fs::{self, File},
    path::Path,
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, bail};

use super::guest;
use crate::{
    build::{self, Kind, Product, Programs},
    cli::{EvictArgs, MachineArgs},
    ebpf,
    guest::{Init, machine::Clock},
    places::Places,
    setup,
    steps::Steps,
};

/// Where the figures of all runs go unless a file is named, below the target folder.
const RAW: &str = "bench-evict.jsonl";

/// Seven contenders on ten workloads, ten times each, take hours in an emulated guest.
const TIMEOUT: Duration = Duration::from_hours(24);

/// Runs the contenders in a guest, and judges everything that the file of figures then holds.
pub(crate) fn measure(places: &Places, args: EvictArgs) -> anyhow::Result<u8> {
    let EvictArgs { machine, raw, append, judge, args } = args;
    let raw = raw.unwrap_or_else(|| places.target.join(RAW));
    if judge {
        let object = ebpf::provide(places, Steps::Aside, Kind::Release)?;
        let programs = build::build(places, object.as_deref(), Kind::Release, &[Product::Bench])?;
        return self::judge(&programs, &raw);
    }
    // Always the same guest, with systemd, which one contender needs.
    let machine = MachineArgs { init: Init::Systemd, ..machine };
    let contenders = setup::contenders(places, Steps::Out)?;
    let guests = guest::prepare(places, &machine, Steps::Out)?;
    if let Some(folder) = raw.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    let out = File::options().create(true).append(true).open(&raw);
    let out = out.with_context(|| format!("cannot open {}", raw.display()))?;
    if !append {
        out.set_len(0).with_context(|| format!("cannot empty {}", raw.display()))?;
    }
    let words = [&[OsString::from("run")], args.as_slice()].concat();
    let ended = guest::run_into(
        &guests,
        (&machine, Clock::Host),
        "evict",
        &words,
        &contenders,
        TIMEOUT,
        Box::new(out),
    )?;
    Steps::Out.say(format_args!("the figures of every run are in {}", raw.display()));
    let judged = self::judge(&guests.programs, &raw)?;
    Ok(if ended == 0 { judged } else { ended })
}

/// The table and its bars, of all runs in a file; returns 0 if all bars that can be judged hold.
fn judge(programs: &Programs, raw: &Path) -> anyhow::Result<u8> {
    let program = build::program(programs, guest::PROGRAM)?;
    let status = Command::new(program).args(["evict", "judge"]).arg(raw).status();
    match status.with_context(|| format!("cannot run {}", program.display()))?.code() {
        Some(code) => u8::try_from(code).context("an exit status is a byte"),
        None => bail!("{} was killed", program.display()),
    }
}
