//! What README and documentation show on a terminal is what is printed there: each command of a `console` block runs in the
//! scene of its page, and the lines below it are compared. A line `…` stands for any lines.

mod routes;
mod scenes;

use std::{fs, ops::Range, path::Path, process::Command};

use crate::Scene;

/// Set, screens that differ are written into the pages instead.
const WRITE: &str = "ENFORCER_WRITE_SCREENS";

/// What fenced blocks are; `text` is a drawing.
const KINDS: [&str; 6] = ["console", "ini", "python", "sh", "text", "yaml"];

/// Pages whose screen needs more than a host, and the file whose test compares it.
const ELSEWHERE: [(&str, &str); 2] = [
    ("README.md", "tests/src/bin/demo.rs"),
    ("docs/kubernetes-evictors.md", "enforcer/src/cli/doctor/table.rs"),
];

struct Page {
    name: String,
    lines: Vec<String>,
}

/// A command, and the lines of the page that show what it prints.
struct Shown {
    command: String,
    below: Range<usize>,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn pages() -> Vec<Page> {
    let mut names = vec![String::from("README.md")];
    for folder in ["docs", "docs/runbooks"] {
        let entries = fs::read_dir(root().join(folder)).unwrap();
        let files = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let is_page = |file: &String| Path::new(file).extension().is_some_and(|extension| extension == "md");
        names.extend(files.filter(is_page).map(|file| format!("{folder}/{file}")));
    }
    names.sort();
    names.into_iter().map(Page::read).collect()
}

impl Page {
    fn read(name: String) -> Self {
        let text = fs::read_to_string(root().join(&name)).unwrap();
        Self { name, lines: text.lines().map(str::to_owned).collect() }
    }

    fn write(&self) {
        fs::write(root().join(&self.name), self.lines.join("\n") + "\n").unwrap();
    }

    /// The fenced blocks: what each says that it is, and its lines.
    fn blocks(&self) -> Vec<(&str, Range<usize>)> {
        let mut found = Vec::new();
        let mut open = None;
        for (number, line) in self.lines.iter().enumerate() {
            let Some(kind) = line.trim_start().strip_prefix("```") else { continue };
            open = match open {
                None => Some((kind, number + 1)),
                Some((kind, from)) => {
                    found.push((kind, from..number));
                    None
                }
            };
        }
        assert!(open.is_none(), "{}: a block does not end", self.name);
        found
    }

    /// The commands of all `console` blocks.
    fn shown(&self) -> Vec<Shown> {
        let mut found: Vec<Shown> = Vec::new();
        for block in self.blocks().into_iter().filter(|(kind, _)| *kind == "console").map(|(_, block)| block)
        {
            for number in block {
                let line = &self.lines[number];
                if let Some(command) = line.strip_prefix("$ ").or_else(|| line.strip_prefix("# ")) {
                    let command = command.split(" #").next().unwrap_or_default().trim_end().to_owned();
                    found.push(Shown { command, below: number + 1..number + 1 });
                } else {
                    // A block begins with a command.
                    let last = found.last_mut().filter(|last| last.below.end == number).unwrap();
                    last.below.end += 1;
                }
            }
        }
        found
    }
}

/// Whether the lines of a page are what is printed.
fn is_shown(page: &[String], printed: &[&str]) -> bool {
    match page {
        [] => printed.is_empty(),
        [line, rest @ ..] if line.trim() == "…" => {
            (0..=printed.len()).any(|from| is_shown(rest, &printed[from..]))
        }
        [line, rest @ ..] => match printed {
            [first, more @ ..] => is_line(line, first) && is_shown(rest, more),
            [] => false,
        },
    }
}

/// The same of a line. In JSON, `…` before a brace stands for what is left out; in a name, it is printed so.
fn is_line(page: &str, printed: &str) -> bool {
    let mut parts = page.split("…}");
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = printed.strip_prefix(first) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        let sought = format!("}}{part}");
        if parts.peek().is_none() {
            return rest.ends_with(&sought);
        }
        let Some((_, behind)) = rest.split_once(&sought) else { return false };
        rest = behind;
    }
    true
}

#[test]
fn every_screen_is_what_is_printed() {
    let writes = std::env::var_os(WRITE).is_some();
    let (mut compared, mut wrong) = (0, String::new());
    for mut page in pages() {
        let shown: Vec<_> = page.shown().into_iter().filter(|shown| !shown.below.is_empty()).collect();
        if shown.is_empty() || ELSEWHERE.iter().any(|(name, _)| *name == page.name) {
            continue;
        }
        let scene = scenes::of(&page.name);
        let scene = scene.unwrap_or_else(|| panic!("{} shows a screen, and has no scene", page.name));
        // From the end, so that lines keep their numbers.
        for Shown { command, below } in shown.into_iter().rev() {
            compared += 1;
            let expected = &page.lines[below.clone()];
            let is_right = |printed: &str| is_shown(expected, &printed.lines().collect::<Vec<_>>());
            let printed = scene.printed(&command, is_right);
            if is_right(&printed) {
                continue;
            }
            if writes
                && !expected
                    .iter()
                    .any(|line| line.contains('…') && (line.trim() == "…" || line.contains("…}")))
            {
                page.lines.splice(below, printed.lines().map(str::to_owned));
                page.write();
            } else {
                wrong.push_str(&format!("{}:{}: {command} prints:\n{printed}\n\n", page.name, below.start));
            }
        }
    }
    assert!(wrong.is_empty(), "{WRITE}=1 writes what no … shortens.\n\n{wrong}");
    assert!(compared >= 12, "{compared}: the pages are not read right");
}

#[test]
fn a_page_with_a_screen_that_needs_more_has_its_test() {
    for (page, test) in ELSEWHERE {
        let file = page.rsplit('/').next().unwrap();
        assert!(fs::read_to_string(root().join(test)).unwrap().contains(file), "{test} compares no {page}");
        let shown = Page::read(page.to_owned()).shown();
        assert_eq!(shown.iter().filter(|shown| !shown.below.is_empty()).count(), 1, "{page}");
    }
}

#[test]
fn every_block_says_what_it_is_and_is_that() {
    for page in pages() {
        for (kind, lines) in page.blocks() {
            let place = format!("{}:{}", page.name, lines.start);
            let text = page.lines[lines].join("\n");
            assert!(KINDS.contains(&kind), "{place}: {kind:?} is none of {KINDS:?}");
            match kind {
                "text" => {
                    assert!(text.contains("─►"), "{place}: what a command prints is in a console block");
                }
                "console" => {
                    assert!(text.starts_with(['$', '#']), "{place}: it begins with no command");
                }
                "sh" => {
                    let read = Command::new("sh").args(["-n", "-c", &text]).output().unwrap();
                    assert!(read.status.success(), "{place}: {}", String::from_utf8_lossy(&read.stderr));
                }
                _ => {}
            }
        }
    }
}

#[test]
fn the_configuration_verbs_of_the_page_run_without_a_daemon() {
    let scene = Scene::new();
    let mut run = 0;
    for Shown { command, below } in Page::read(String::from("docs/configuration.md")).shown() {
        if !command.contains("--live") {
            assert!(below.is_empty() && !scene.printed(&command, |_| true).is_empty(), "{command}");
            run += 1;
        }
    }
    assert_eq!(run, 4);
}

#[test]
fn a_page_leaves_out_only_what_it_marks() {
    let printed = ["a", "b", "c…", r#"{"d":{"e":1},"f":2}"#];
    for (page, is_right) in [
        (&["a", "b", "c…", r#"{"d":{…},…}"#][..], true),
        (&["a", "…", r#"{"d":{"e":1},"f":2}"#], true),
        (&["…", "c…", "…"], true),
        (&["…"], true),
        (&["a", "b", "c…"], false),
        (&["a", "…", "b…", "…"], false),
        (&["a", "…", r#"{"e":{…},…}"#], false),
        (&["…", r#"{"d":{…},…},"#], false),
        (&["b", "…"], false),
    ] {
        let lines: Vec<_> = page.iter().map(|&line| line.to_owned()).collect();
        assert_eq!(is_shown(&lines, &printed), is_right, "{page:?}");
    }
}
