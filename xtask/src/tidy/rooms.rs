//! Which room of the daemon's crate uses which, and that none of them form a cycle.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

/// The crate whose top-level modules are the rooms.
const CRATE: &str = "enforcer/src";

/// Where a room is used: from, to, and the first file that does it.
#[derive(Debug, Default)]
pub(super) struct Rooms(BTreeMap<String, BTreeMap<String, String>>);

impl Rooms {
    /// Notes what a file uses, if it is production code of a room.
    pub(super) fn note(&mut self, name: &str, text: &str) {
        let Ok(inner) = Path::new(name).strip_prefix(CRATE) else { return };
        if super::is_tests(inner) || inner.components().any(|part| part.as_os_str() == "tests") {
            return;
        }
        let Some(room) = inner.iter().next().and_then(|first| Path::new(first).file_stem()?.to_str()) else {
            return;
        };
        // The crate's root declares the rooms, and the programs use them.
        if matches!(room, "lib" | "main") {
            return;
        }
        let uses = self.0.entry(room.to_owned()).or_default();
        for used in used(&super::words::code(text)).into_iter().filter(|used| used != room) {
            uses.entry(used).or_insert_with(|| name.to_owned());
        }
    }

    /// Each cycle as one violation: the rooms in it, each with the next one and a file that uses it.
    pub(super) fn cycles(&self) -> Vec<String> {
        let mut cycles = Vec::new();
        let mut known = BTreeSet::new();
        for room in self.0.keys() {
            if known.contains(room) {
                continue;
            }
            if let Some(cycle) = self.cycle_through(room) {
                known.extend(cycle.iter().cloned());
                cycles.push(self.describe(&cycle));
            }
        }
        cycles
    }

    /// The shortest way from a room back to itself.
    fn cycle_through(&self, start: &str) -> Option<Vec<String>> {
        let mut ways = vec![vec![start.to_owned()]];
        let mut seen = BTreeSet::new();
        while !ways.is_empty() {
            let mut longer = Vec::new();
            for way in ways {
                for next in way.last().and_then(|last| self.0.get(last)).into_iter().flat_map(BTreeMap::keys)
                {
                    if next == start {
                        return Some(way);
                    }
                    if self.0.contains_key(next) && seen.insert(next.clone()) {
                        longer.push(way.iter().chain([next]).cloned().collect());
                    }
                }
            }
            ways = longer;
        }
        None
    }

    fn describe(&self, cycle: &[String]) -> String {
        let next = cycle.iter().cycle().skip(1);
        let steps: Vec<_> = cycle
            .iter()
            .zip(next)
            .map(|(from, to)| {
                let file = self.0.get(from).and_then(|uses| uses.get(to)).map_or("", String::as_str);
                format!("{from} uses {to} ({file})")
            })
            .collect();
        format!("{CRATE}: rooms form a cycle: {}", steps.join(", "))
    }
}

/// The first names behind `crate::`, alone or in braces.
fn used(text: &str) -> BTreeSet<String> {
    let mut used = BTreeSet::new();
    for (_, rest) in
        text.match_indices("crate::").filter_map(|(at, found)| text.split_at_checked(at + found.len()))
    {
        match rest.strip_prefix('{') {
            None => used.extend(first_name(rest)),
            Some(group) => used.extend(group_names(group)),
        }
    }
    used
}

/// The first name of each member of a group of imports, up to the brace that closes it.
fn group_names(group: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let (mut depth, mut start) = (0_usize, 0);
    for (at, character) in group.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                names.extend(group.get(start..at).and_then(first_name));
                start = at + 1;
                if character == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    names
}

/// The name that a path begins with; `None` for a type or a macro of the crate's root.
fn first_name(path: &str) -> Option<String> {
    let path = path.trim_start();
    let end =
        path.find(|character: char| !character.is_alphanumeric() && character != '_').unwrap_or(path.len());
    let name = path.get(..end)?;
    name.chars().next().is_some_and(char::is_lowercase).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rooms(files: &[(&str, &str)]) -> Rooms {
        let mut rooms = Rooms::default();
        for (name, text) in files {
            rooms.note(name, text);
        }
        rooms
    }

    #[test]
    fn a_cycle_is_found_with_its_files() {
        let planted = rooms(&[
            ("enforcer/src/journal/log.rs", "use crate::metrics::Counts;\n"),
            (
                "enforcer/src/metrics.rs",
                "use crate::{\n    model::{PodName, QosClass},\n    journal::EventType,\n};\n",
            ),
            ("enforcer/src/model.rs", "struct Pod;\n"),
            ("enforcer/src/serve.rs", "fn f() { crate::journal::open(); }\n"),
        ]);
        assert_eq!(
            planted.cycles(),
            ["enforcer/src: rooms form a cycle: journal uses metrics (enforcer/src/journal/log.rs), \
              metrics uses journal (enforcer/src/metrics.rs)"]
        );
    }

    #[test]
    fn tests_and_comments_use_nothing() {
        let planted = rooms(&[
            (
                "enforcer/src/journal.rs",
                "// crate::metrics\n#[cfg(test)]\nmod tests {\n    use crate::metrics;\n}\n",
            ),
            ("enforcer/src/journal/tests.rs", "use crate::metrics;\n"),
            ("enforcer/src/journal/tests/a.rs", "use crate::metrics;\n"),
            ("enforcer/src/metrics.rs", "use crate::journal;\nlet text = \"crate::metrics\";\n"),
            ("xtask/src/run.rs", "use crate::run;\n"),
        ]);
        assert!(planted.cycles().is_empty());
    }

    #[test]
    fn a_longer_cycle_is_one_violation() {
        let planted = rooms(&[
            ("enforcer/src/a.rs", "use crate::b;\n"),
            ("enforcer/src/b/x.rs", "use crate::c::{D, E};\n"),
            ("enforcer/src/c.rs", "use crate::{a, chain};\n"),
        ]);
        assert_eq!(planted.cycles().len(), 1);
    }
}
