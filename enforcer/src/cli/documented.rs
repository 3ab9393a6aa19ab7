//! Checks that every command line which README and documentation show is one that the parser takes.

use std::{fs, path::Path};

use clap::error::ErrorKind;

use super::help::command;

/// Where a command line is shown, and its words.
#[derive(Debug, PartialEq)]
struct Shown {
    place: String,
    words: Vec<String>,
    /// Within a sentence, where a verb may stand for itself.
    is_inline: bool,
}

/// The words of a line of shell, as far as they are read.
#[derive(Debug, Default)]
struct Reader {
    commands: Vec<Vec<String>>,
    words: Vec<String>,
    word: Option<String>,
    /// The next word is a file that is redirected to or from.
    is_redirected: bool,
}

impl Reader {
    fn push(&mut self, character: char) {
        self.word.get_or_insert_default().push(character);
    }

    fn end_word(&mut self) {
        if let Some(word) = self.word.take()
            && !std::mem::take(&mut self.is_redirected)
        {
            self.words.push(word);
        }
    }

    fn end_command(&mut self) {
        self.end_word();
        if !self.words.is_empty() {
            self.commands.push(std::mem::take(&mut self.words));
        }
    }
}

/// The commands of a line of shell. A comment is none, nor is prose behind two spaces; what brackets say may be left out
/// counts as given.
fn commands(line: &str) -> Vec<Vec<String>> {
    let mut reader = Reader::default();
    let mut quote = None;
    let mut rest = line.chars();
    while let Some(character) = rest.next() {
        let next = rest.clone().next();
        // Such as <pod>; anything else is a redirection.
        let is_placeholder = if character == '<' {
            next.is_some_and(char::is_alphabetic)
        } else {
            reader.word.as_ref().is_some_and(|word| word.contains('<'))
        };
        match (character, quote) {
            (_, Some(open)) if character == open => quote = None,
            ('\'' | '"', None) => {
                quote = Some(character);
                reader.word.get_or_insert_default();
            }
            ('\\', None) => {
                if let Some(escaped) = rest.next() {
                    reader.push(escaped);
                }
            }
            ('#', None) if reader.word.is_none() => break,
            (' ', None) => {
                reader.end_word();
                if next == Some(' ') {
                    break;
                }
            }
            ('|' | ';' | '&' | '(' | ')', None) => reader.end_command(),
            ('<' | '>', None) if !is_placeholder => {
                reader.end_word();
                reader.is_redirected = true;
            }
            ('[' | ']', None) => {}
            _ => reader.push(character),
        }
    }
    reader.end_command();
    reader.commands
}

/// Those of `enforcer` itself, also within what another command runs.
fn own(words: &[String]) -> Vec<Vec<String>> {
    let is_before = |word: &String| {
        word == "sudo"
            || word
                .split_once('=')
                .is_some_and(|(name, _)| name.chars().all(|one| one.is_ascii_uppercase() || one == '_'))
    };
    let words = words.iter().skip_while(|word| is_before(word)).cloned().collect::<Vec<_>>();
    let Some(first) = words.first() else { return Vec::new() };
    let program = first.strip_prefix("ExecStart=").unwrap_or(first);
    if program == "enforcer" || (program.starts_with('/') && program.ends_with("/enforcer")) {
        return vec![words];
    }
    let behind: Vec<_> = words.iter().skip_while(|word| *word != "--").skip(1).cloned().collect();
    match behind.as_slice() {
        [script] if script.contains(' ') => commands(script).iter().flat_map(|words| own(words)).collect(),
        behind => own(behind),
    }
}

/// The command lines of a page.
fn shown(name: &str, page: &str) -> Vec<Shown> {
    let mut found = Vec::new();
    let mut note = |line: &str, place: String, is_inline| {
        let own = commands(line).into_iter().flat_map(|words| own(&words));
        found.extend(own.map(|words| Shown { place: place.clone(), words, is_inline }));
    };
    let mut language: Option<&str> = None;
    let (mut begun, mut prose) = (String::new(), String::new());
    for (number, line) in page.lines().enumerate() {
        let line = line.trim();
        if let Some(after) = line.strip_prefix("```") {
            language = if language.is_none() { Some(after) } else { None };
            begun.clear();
            continue;
        }
        let prompted = line.strip_prefix("$ ").or_else(|| line.strip_prefix("# "));
        let line = match (language, prompted) {
            (None, _) => {
                prose.push_str(line);
                prose.push(' ');
                continue;
            }
            // The rest is what the commands print.
            (Some("console"), None) if begun.is_empty() => continue,
            (Some("" | "sh" | "console" | "ini"), prompted) => prompted.unwrap_or(line),
            (Some(_), _) => continue,
        };
        match line.strip_suffix('\\') {
            Some(part) => begun = format!("{begun}{} ", part.trim_end()),
            None => note(&(std::mem::take(&mut begun) + line), format!("{name}:{}", number + 1), false),
        }
    }
    for inline in prose.split('`').skip(1).step_by(2) {
        note(inline, name.to_owned(), true);
    }
    found
}

fn pages() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut names = vec![String::from("README.md")];
    for folder in ["docs", "docs/runbooks"] {
        for entry in fs::read_dir(root.join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if Path::new(&name).extension().is_some_and(|extension| extension == "md") {
                names.push(format!("{folder}/{name}"));
            }
        }
    }
    names.sort();
    names
        .into_iter()
        .map(|name| (fs::read_to_string(root.join(&name)).unwrap(), name))
        .map(|(text, name)| (name, text))
        .collect()
}

/// Why it is none, in the parser's words.
fn refused(shown: &Shown) -> Option<String> {
    let verb = shown.words.get(1)?;
    // Processes of the daemon's own are no verbs; VERB stands for any.
    if shown.is_inline && (verb.ends_with("-process") || verb == "VERB") {
        return None;
    }
    let error = command().try_get_matches_from(&shown.words).err()?;
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => None,
        ErrorKind::MissingRequiredArgument
        | ErrorKind::MissingSubcommand
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
            if shown.is_inline =>
        {
            None
        }
        _ => Some(format!("{}: {}: {error}", shown.place, shown.words.join(" "))),
    }
}

#[test]
fn every_documented_command_line_is_one() {
    let found: Vec<_> = pages().iter().flat_map(|(name, page)| shown(name, page)).collect();
    let blocks = found.iter().filter(|shown| !shown.is_inline && shown.words.len() > 1).count();
    assert!(blocks > 60 && found.len() > 200, "{blocks} of {}: the pages are not read right", found.len());
    let refused: Vec<_> = found.iter().filter_map(refused).collect();
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

#[test]
fn command_lines_are_found_as_readers_see_them() {
    let page = "Prose with `enforcer\nnext --number 3` in it, and `enforcer.dev/cgroup`.\n\n\
        ```sh\n\
        enforcer events -f --tail 20                      # the last 20, and new ones\n\
        enforcer replay FILE                           a recording\n\
        sudo NO_COLOR=1 enforcer evict a/b --reason \"it hangs\" [--dry-run]\n\
        enforcer next; enforcer -o json top | jq -r '.a[] | select(.b == 1)' > out && systemctl restart enforcer\n\
        cargo xtask vm exec -- 'enforcer run & sleep 2; enforcer why <namespace>/<pod>'\n\
        kubectl exec ds/enforcer -c enforcer -- enforcer pause \\\n  --for 15m < file\n\
        ```\n\n\
        ```console\n$ enforcer plan -f pods\nenforcer prints this\n```\n\n\
        ```ini\nExecStart=/usr/bin/enforcer run\n```\n\n\
        ```yaml\nenforcer: nothing\n```\n";
    let lines: Vec<_> = shown("p", page).into_iter().map(|shown| shown.words.join(" ")).collect();
    assert_eq!(
        lines,
        [
            "enforcer events -f --tail 20",
            "enforcer replay FILE",
            "enforcer evict a/b --reason it hangs --dry-run",
            "enforcer next",
            "enforcer -o json top",
            "enforcer run",
            "enforcer why <namespace>/<pod>",
            "enforcer pause --for 15m",
            "enforcer plan -f pods",
            "ExecStart=/usr/bin/enforcer run",
            "enforcer next --number 3",
        ]
    );
}

#[test]
fn a_wrong_command_line_is_refused() {
    for (line, is_inline, wrong) in [
        ("enforcer events --fllow", false, true),
        ("enforcer purge", true, true),
        ("enforcer protect", false, true),
        ("enforcer protect", true, false),
        ("enforcer hook-process", true, false),
        ("enforcer VERB --help", true, false),
        ("enforcer next --help", false, false),
    ] {
        let words = line.split(' ').map(str::to_owned).collect();
        let refused = refused(&Shown { place: String::from("p"), words, is_inline });
        assert_eq!(refused.is_some(), wrong, "{line}: {refused:?}");
    }
}
