//! What the daemon may do: the capabilities that it keeps, that none is ever gained again, and the system calls that are left.
//!
//! docs/privileges.md has the same table, with who uses each capability and what is lost without it. The unit that packages
//! install grants these and no others; the chart grants those of them that a daemon beside a kubelet uses.

mod filter;
mod refused;

use std::io;

use rustix::{
    fs::Mode,
    io::Errno,
    thread::{CapabilitySet, CapabilitySets},
};

pub(crate) use self::{
    filter::{Unfiltered, confine_helper},
    refused::refuse_what_is_not_used,
};

/// The capabilities that the daemon keeps, as far as it has them.
const KEPT: &[(&str, CapabilitySet)] = &[
    ("CAP_BPF", CapabilitySet::BPF),
    ("CAP_PERFMON", CapabilitySet::PERFMON),
    ("CAP_SYS_ADMIN", CapabilitySet::SYS_ADMIN),
    ("CAP_SYS_RESOURCE", CapabilitySet::SYS_RESOURCE),
    ("CAP_SYS_PTRACE", CapabilitySet::SYS_PTRACE),
    ("CAP_KILL", CapabilitySet::KILL),
    ("CAP_IPC_LOCK", CapabilitySet::IPC_LOCK),
    ("CAP_SYS_NICE", CapabilitySet::SYS_NICE),
    ("CAP_DAC_OVERRIDE", CapabilitySet::DAC_OVERRIDE),
    ("CAP_DAC_READ_SEARCH", CapabilitySet::DAC_READ_SEARCH),
    ("CAP_CHOWN", CapabilitySet::CHOWN),
    ("CAP_FOWNER", CapabilitySet::FOWNER),
    ("CAP_SETUID", CapabilitySet::SETUID),
    ("CAP_SETGID", CapabilitySet::SETGID),
];

/// Those without which the daemon cannot open, write and signal what it must.
const NEEDED: CapabilitySet = CapabilitySet::BPF
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::SYS_RESOURCE)
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::IPC_LOCK);

/// The names of the capabilities that the daemon needs and that are not among these.
pub(crate) fn missing(effective: CapabilitySet) -> Vec<&'static str> {
    let missing = NEEDED.difference(effective);
    KEPT.iter().filter(|(_, one)| missing.contains(*one)).map(|(name, _)| *name).collect()
}

/// What no file or folder that the daemon makes has, whatever the umask that it was started with: others may not write to it.
const UMASK: Mode = Mode::WGRP.union(Mode::WOTH);

/// Gives up what the calling thread, and each that it starts, does not use: all other capabilities, those that a program
/// could bring (`no_new_privs`), and files that others may write to. No other thread may exist yet: these belong to a thread.
///
/// What it keeps is enough for the same program to start again in its place.
pub(crate) fn give_up_the_rest() -> io::Result<()> {
    // A umask is set to be read.
    let before = rustix::process::umask(UMASK);
    rustix::process::umask(before | UMASK);
    rustix::thread::set_no_new_privs(true)?;
    let had = rustix::thread::capabilities(None)?;
    let kept = kept();
    if had.effective.contains(CapabilitySet::SETPCAP) {
        unbind(kept)?;
    }
    // Elsewhere the bounding set stays as wide as it is, which gives nothing: a program's privileges are not new ones.
    let sets = CapabilitySets {
        effective: had.effective & kept,
        permitted: had.permitted & kept,
        inheritable: CapabilitySet::empty(),
    };
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

fn kept() -> CapabilitySet {
    KEPT.iter().fold(CapabilitySet::empty(), |all, (_, one)| all | *one)
}

/// Leaves only these in the bounding set, which limits what programs can have that this process starts.
fn unbind(kept: CapabilitySet) -> io::Result<()> {
    for bit in 0..u64::BITS {
        let one = CapabilitySet::from_bits_retain(1 << bit);
        match rustix::thread::capability_is_in_bounding_set(one) {
            Ok(true) if !kept.contains(one) => rustix::thread::remove_capability_from_bounding_set(one)?,
            Ok(_) => {}
            // The kernel knows no more.
            Err(Errno::INVAL) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, thread};

    use super::*;

    fn names() -> BTreeSet<&'static str> {
        KEPT.iter().map(|(name, _)| *name).collect()
    }

    /// The first column of the page's table of capabilities.
    fn of_the_page() -> BTreeSet<&'static str> {
        let page = include_str!("../../docs/privileges.md");
        let first = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
        first.map(|(name, _)| name).filter(|name| name.starts_with("CAP_")).collect()
    }

    #[test]
    fn the_page_has_a_row_for_each_capability_and_for_no_other() {
        assert_eq!(of_the_page(), names());
    }

    #[test]
    fn the_unit_grants_what_is_kept_and_the_chart_some_of_it() {
        let unit = include_str!("../../packaging/systemd/enforcer.service");
        let granted: BTreeSet<&str> = unit
            .lines()
            .filter_map(|line| line.strip_prefix("CapabilityBoundingSet="))
            .flat_map(str::split_whitespace)
            .collect();
        assert_eq!(granted, names());
        let chart = include_str!("../../packaging/helm/enforcer/templates/daemonset.yaml");
        let (_, added) = chart.split_once("            add:\n").unwrap();
        let added: Vec<&str> = added
            .lines()
            .map_while(|line| line.strip_prefix("            - "))
            .filter_map(|line| line.split_whitespace().next())
            .collect();
        assert!(added.len() > 8, "{added:?}");
        for name in added {
            assert!(names().contains(&*format!("CAP_{name}")), "{name} is granted and given up at once");
        }
    }

    #[test]
    fn each_is_named_once_and_is_one() {
        assert_eq!(
            (names().len(), kept().bits().count_ones()),
            (KEPT.len(), u32::try_from(KEPT.len()).unwrap())
        );
    }

    /// In a thread of its own, which keeps what it gives up from no other test. The umask is all threads', and others may not
    /// write to what tests make either.
    #[test]
    fn what_is_not_kept_is_gone_for_the_thread_and_those_it_starts() {
        let own = thread::spawn(|| {
            let had = rustix::thread::capabilities(None).unwrap();
            give_up_the_rest().unwrap();
            thread::spawn(move || (had, fs::read_to_string("/proc/thread-self/status").unwrap()))
                .join()
                .unwrap()
        });
        let (had, status) = own.join().unwrap();
        let value =
            |key: &str| status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(":\t")).unwrap();
        let set = |key: &str| CapabilitySet::from_bits_retain(u64::from_str_radix(value(key), 16).unwrap());
        assert_eq!(value("NoNewPrivs"), "1");
        assert_eq!((set("CapEff"), set("CapPrm")), (had.effective & kept(), had.permitted & kept()));
        assert_eq!((set("CapInh"), set("CapAmb")), (CapabilitySet::empty(), CapabilitySet::empty()));
        if had.effective.contains(CapabilitySet::SETPCAP) {
            assert!(kept().contains(set("CapBnd")), "{status}");
        }
        let umask = u32::from_str_radix(value("Umask"), 8).unwrap();
        assert_eq!(umask & UMASK.bits(), UMASK.bits());
    }
}
