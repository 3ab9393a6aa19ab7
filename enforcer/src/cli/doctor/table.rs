//! The table for people, within 80 columns.

use super::{Document, Source, Verdict};
use crate::{
    cli::{
        page::cell,
        render::{escape, wrap},
    },
    sense::{Facility, Rung, State},
    serve::{Programs, Refused},
};

const WIDTH: usize = 80;
/// The column at which `uses` begins.
const USES: usize = 26;
/// The columns at which the keys of the lines below begin, and their text.
const KEY: usize = 4;
const TEXT: usize = 11;

/// With `verbose`, it shows what was found for every facility, and each rung of its ladder.
pub(super) fn table(document: &Document, color: bool, verbose: bool) -> String {
    let Document { source, limited, facilities, programs, orders, beside_kubelet, evictors, notes } =
        document;
    let mut text = format!("{}\n\n", Verdict::of(document));
    text.push_str(match source {
        Source::Daemon => "What the daemon found at its start, and uses:\n\n",
        Source::Here => "What this process finds:\n\n",
    });
    for one in facilities {
        facility(&mut text, one, color, verbose);
    }
    if let Some(programs) = programs {
        text.push('\n');
        self::programs(&mut text, programs);
    }
    if !orders.is_empty() {
        text.push_str(&format!("\n{}", crate::cli::orders::table(orders)));
    }
    if !beside_kubelet.is_empty() {
        text.push_str("\nbeside the kubelet:\n");
    }
    for line in beside_kubelet.iter().flat_map(|value| wrap(value, WIDTH - KEY)) {
        text.push_str(&format!("{:KEY$}{line}\n", ""));
    }
    for line in evictors.iter().flat_map(|evictor| wrap(&format!("another evictor: {evictor}"), WIDTH)) {
        text.push_str(&format!("{line}\n"));
    }
    text.push_str(&format!("\n{}\n", summary(facilities)));
    for line in notes.iter().flat_map(|note| wrap(&format!("note: {note}"), WIDTH)) {
        text.push_str(&format!("{line}\n"));
    }
    for line in limited.iter().flat_map(|limited| wrap(limited, WIDTH)) {
        text.push_str(&format!("{line}\n"));
    }
    text
}

fn facility(text: &mut String, facility: &Facility, color: bool, verbose: bool) {
    let Facility { name, state, found, uses, lost, remedy, rungs } = facility;
    let (word, code) = match state {
        State::Full => ("full", "32"),
        State::Lesser => ("lesser", "33"),
        State::Missing => ("missing", "31"),
        State::Unknown => ("unknown", "36"),
    };
    let padded = format!("{word:<8}");
    let painted = if color { format!("\u{1b}[{code}m{padded}\u{1b}[0m") } else { padded };
    let mut uses = wrap(uses.as_deref().unwrap_or(found), WIDTH - USES).into_iter();
    let first = uses.next().unwrap_or_default();
    text.push_str(format!("{} {painted} {first}", cell(name, 16, false)).trim_end());
    text.push('\n');
    for line in uses {
        text.push_str(&format!("{:USES$}{line}\n", ""));
    }
    let is_lost = matches!(state, State::Lesser | State::Missing);
    let found = (is_lost || verbose).then_some(found);
    for (key, value) in [("found", found), ("lost", lost.as_ref()), ("get it", remedy.as_ref())] {
        if let Some(value) = value {
            indented(text, key, value);
        }
    }
    for (number, Rung { uses, loses }) in (1..).zip(rungs.iter().filter(|_| verbose)) {
        let loses = loses.as_ref().map_or_else(String::new, |loses| format!(": {loses}"));
        indented(text, &format!("rung {number}"), &format!("{uses}{loses}"));
    }
}

/// A value behind its key, wrapped at a second column.
fn indented(text: &mut String, key: &str, value: &str) {
    for (number, line) in wrap(value, WIDTH - TEXT - 1).into_iter().enumerate() {
        let key = if number == 0 { key } else { "" };
        let width = TEXT - KEY;
        text.push_str(&format!("{:KEY$}{key:<width$} {line}\n", ""));
    }
}

fn programs(text: &mut String, programs: &Programs) {
    let Programs { error, attached, failed } = programs;
    if let Some(error) = error {
        text.push_str("programs: none\n");
        indented(text, "why", error);
        return;
    }
    text.push_str(&format!("programs: {} attached, {} refused\n", attached.len(), failed.len()));
    for line in wrap(&attached.join(", "), WIDTH - KEY) {
        text.push_str(&format!("{:KEY$}{line}\n", ""));
    }
    for Refused { program, hook, error, verifier_tail, lost } in failed {
        for line in wrap(&format!("refused: {program} at {hook}"), WIDTH) {
            text.push_str(&format!("{line}\n"));
        }
        indented(text, "why", error);
        indented(text, "lost", lost);
        // The verifier's lines stay whole, to be copied into a report.
        for line in verifier_tail.iter().flat_map(|tail| tail.lines()) {
            text.push_str(&format!("{:KEY$}| {}\n", "", escape(line)));
        }
    }
}

fn summary(facilities: &[Facility]) -> String {
    let count = |state| facilities.iter().filter(|facility| facility.state == state).count();
    format!(
        "{} of {} in full, {} lesser, {} missing, {} unknown",
        count(State::Full),
        facilities.len(),
        count(State::Lesser),
        count(State::Missing),
        count(State::Unknown)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::{Config, KubeletMemory},
        daemon::Evictors,
        policy::threshold::ThresholdValue,
    };

    fn one(state: State, found: &str) -> Facility {
        Facility {
            name: "limitOwner".into(),
            state,
            found: found.into(),
            uses: (state != State::Unknown).then(|| "counters".into()),
            lost: (state == State::Lesser).then(|| "whose limit was hit is told from counters".into()),
            remedy: (state == State::Lesser).then(|| "a kernel with ".to_owned() + &"OPTION=y ".repeat(12)),
            rungs: Vec::new(),
        }
    }

    fn document(facilities: Vec<Facility>, programs: Option<Programs>) -> Document {
        Document::new(Source::Daemon, None, facilities, programs)
    }

    #[test]
    fn what_is_lost_says_why_and_how_to_get_it() {
        let document = document(
            vec![
                one(State::Full, "fentry"),
                one(State::Unknown, "root can tell"),
                one(State::Lesser, "no fentry"),
            ],
            None,
        );
        assert_eq!(
            table(&document, false, false),
            "READY, 1 lesser, 1 unknown\n\n\
             What the daemon found at its start, and uses:\n\n\
             limitOwner       full     counters\n\
             limitOwner       unknown  root can tell\n\
             limitOwner       lesser   counters\n    \
                 found   no fentry\n    \
                 lost    whose limit was hit is told from counters\n    \
                 get it  a kernel with OPTION=y OPTION=y OPTION=y OPTION=y OPTION=y OPTION=y\n            \
                         OPTION=y OPTION=y OPTION=y OPTION=y OPTION=y OPTION=y\n\n\
             1 of 3 in full, 1 lesser, 0 missing, 1 unknown\n"
        );
        assert!(table(&document, true, false).contains("\u{1b}[33mlesser  \u{1b}[0m"));
        let rungs = vec![
            Rung { uses: "fentry".into(), loses: None },
            Rung { uses: "counters".into(), loses: Some("certainty".into()) },
        ];
        let document = self::document(vec![Facility { rungs, ..one(State::Full, "the function") }], None);
        let more = table(&document, false, true);
        assert!(
            more.contains("    found   the function\n    rung 1  fentry\n    rung 2  counters: certainty\n"),
            "{more}"
        );
    }

    #[test]
    fn hostile_and_long_text_stays_within_its_place() {
        let hostile = "a\u{1b}[2J\nb\u{202e}".to_owned() + &" word".repeat(60);
        let programs = Programs {
            error: None,
            attached: vec!["process_exit".into(); 20],
            failed: vec![Refused {
                program: "out_of_memory\u{7}".into(),
                hook: "fentry/out_of_memory".into(),
                error: hostile.clone(),
                verifier_tail: Some("0: (b7) r0 = 0\n1: \u{1b}[31m".into()),
                lost: hostile.clone(),
            }],
        };
        let facilities = vec![Facility { lost: Some(hostile.clone()), ..one(State::Lesser, &hostile) }];
        let text = table(&document(facilities, Some(programs)), false, false);
        assert!(!text.chars().any(|one| one != '\n' && one.is_control()), "{text:?}");
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(text.contains("programs: 20 attached, 1 refused\n"), "{text}");
        assert!(text.contains("\n    | 1: \\u{1b}[31m\n"), "{text}");
    }

    /// A kubelet without an `evictionHard` of its own, on a node of 8 GiB: what `docs/kubernetes-evictors.md` shows.
    #[test]
    fn the_page_shows_what_is_printed_beside_a_kubelet() {
        const PAGE: &str = include_str!("../../../../docs/kubernetes-evictors.md");
        const BYTES: u64 = 8 << 30;
        let origin = String::from("its built-in default, as /var/lib/kubelet/config.yaml does not set it");
        let kubelet = Ok(KubeletMemory { hard: Some(ThresholdValue::Amount(100 << 20)), origin });
        let mut config = Config::default();
        config.settle_beside_kubelet(&kubelet, BYTES);
        let notes = config.beside_kubelet(&kubelet, BYTES);
        let document =
            document(Vec::new(), None).with_evictors(Some(Evictors { notes, problems: Vec::new() }));
        let text = table(&document, false, false);
        let (_, from) = text.split_once("\nbeside").unwrap();
        let (shown, _) = from.split_once("\n\n").unwrap();
        assert!(PAGE.contains(&format!("$ enforcer doctor\n…\nbeside{shown}\n…\n```\n")), "{text}");
    }

    #[test]
    fn a_refused_program_is_a_loss_and_the_unknown_is_none() {
        let whole = document(vec![one(State::Full, ""), one(State::Unknown, "")], Some(Programs::default()));
        assert!(Verdict::of(&whole).is_whole());
        let none = Programs { error: Some("not built".into()), ..Programs::default() };
        let document = document(vec![one(State::Full, "")], Some(none));
        assert!(!Verdict::of(&document).is_whole());
        let text = table(&document, false, false);
        assert!(text.starts_with("READY, eBPF programs refused\n"), "{text}");
        assert!(text.contains("programs: none\n    why     not built\n"), "{text}");
    }
}
