//! Words that the code does not use, because no operator or kernel developer would search for them.

/// Parts of identifiers, each with what is written instead.
const IN_NAMES: &[(&str, &str)] = &[
    ("told", "reported"),
    ("untold", "unreported"),
    ("tell", "report, emit"),
    ("tells", "reports"),
    ("teller", "event builder"),
    ("nobody", "none"),
    ("whoever", "the caller, the reader"),
    ("bell", "waker"),
    ("bury", "forget, finish"),
    ("heed", "on_event"),
    ("pledge", "intent"),
    ("lookout", "forecaster"),
    ("desk", "queue, handler"),
    ("eye", "watcher"),
    ("ear", "listener"),
    ("outlook", "forecast"),
];

/// Words of texts that users see, each with what is written instead.
const IN_TEXTS: &[(&str, &str)] = &[
    ("told", "reported, logged, said"),
    ("nobody", "no pod, no process, nothing"),
    ("whoever", "the process that, the caller"),
    ("let go of", "released"),
];

/// A part of a source file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Part {
    Code,
    Text,
    Comment,
}

/// Each refused word in production code, with its line.
pub(super) fn violations(name: &str, text: &str) -> Vec<String> {
    let text = production(text);
    let mut found = Vec::new();
    for (part, start, end) in parts(text) {
        let piece = text.get(start..end).unwrap_or_default();
        let refused: Vec<_> = match part {
            Part::Code => names(piece).flat_map(refused_in_name).collect(),
            // A word alone is a key of a format, not a sentence.
            Part::Text if piece.contains(' ') => refused_in_text(piece),
            Part::Text | Part::Comment => continue,
        };
        for (at, word, instead) in refused {
            let line = 1 + text.get(..start + at).unwrap_or_default().matches('\n').count();
            found.push(format!("{name}:{line}: \"{word}\": write {instead}"));
        }
    }
    found
}

/// Each refused word in the names of functions, tests included: a report of a failure begins with one.
pub(super) fn in_function_names(name: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (_, start, end) in parts(text).into_iter().filter(|(part, ..)| *part == Part::Code) {
        let piece = text.get(start..end).unwrap_or_default();
        let mut is_named = false;
        for (at, word) in names(piece).filter(|(_, word)| !word.is_empty()) {
            if std::mem::replace(&mut is_named, word == "fn") {
                for (at, word, instead) in refused_in_name((at, word)) {
                    let line = 1 + text.get(..start + at).unwrap_or_default().matches('\n').count();
                    found.push(format!("{name}:{line}: \"{word}\": write {instead}"));
                }
            }
        }
    }
    found
}

/// The text up to the tests at its end.
pub(super) fn production(text: &str) -> &str {
    let tests = text.match_indices("#[cfg(test)]\nmod ").find(|(at, found)| {
        let declaration = text.get(at + found.len()..).and_then(|rest| rest.lines().next());
        declaration.is_some_and(|declaration| declaration.ends_with('{'))
    });
    tests.map_or(text, |(at, _)| text.get(..at).unwrap_or(text))
}

/// The production code of a file without comments and texts.
pub(super) fn code(text: &str) -> String {
    let text = production(text);
    let code = parts(text).into_iter().filter(|(part, ..)| *part == Part::Code);
    code.filter_map(|(_, start, end)| text.get(start..end)).collect()
}

/// The identifiers, each with its place.
fn names(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_name = |character: char| character.is_alphanumeric() || character == '_';
    code.split(move |character| !is_name(character))
        .map(|name| (name.as_ptr().addr() - code.as_ptr().addr(), name))
}

fn refused_in_name((at, name): (usize, &str)) -> Vec<(usize, &'static str, &'static str)> {
    let parts = words_of(name);
    let refused = IN_NAMES.iter().filter(|(word, _)| parts.iter().any(|part| part == word));
    refused.map(|(word, instead)| (at, *word, *instead)).collect()
}

/// The words that a name in snake or camel case is made of, in lower case.
fn words_of(name: &str) -> Vec<String> {
    let mut words: Vec<String> = vec![String::new()];
    for character in name.chars() {
        if character == '_' || character.is_uppercase() {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| character != '_') {
            word.extend(character.to_lowercase());
        }
    }
    words
}

fn refused_in_text(text: &str) -> Vec<(usize, &'static str, &'static str)> {
    let lower = text.to_lowercase();
    let is_word = |at: usize, word: &str| {
        let before = lower.get(..at).and_then(|before| before.chars().next_back());
        let behind = lower.get(at + word.len()..).and_then(|behind| behind.chars().next());
        [before, behind].into_iter().flatten().all(|character| !character.is_alphanumeric())
    };
    let mut found = Vec::new();
    for (word, instead) in IN_TEXTS {
        let places = lower.match_indices(word).filter(|(at, word)| is_word(*at, word));
        found.extend(places.map(|(at, _)| (at, *word, *instead)));
    }
    found
}

/// Splits Rust source into code, string literals and comments. Character literals and lifetimes count as code.
fn parts(text: &str) -> Vec<(Part, usize, usize)> {
    let mut parts = Vec::new();
    let (mut begin, mut at) = (0, 0);
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        let special = if rest.starts_with("//") {
            Some((Part::Comment, rest.find('\n').unwrap_or(rest.len())))
        } else if rest.starts_with('"') {
            Some((Part::Text, end_of_string(rest)))
        } else {
            let raw = raw_string(text.get(..at).unwrap_or_default(), rest);
            raw.map(|hashes| (Part::Text, end_of_raw_string(rest, hashes)))
        };
        let step = match special {
            Some((part, length)) => {
                parts.push((Part::Code, begin, at));
                parts.push((part, at, at + length));
                begin = at + length;
                length
            }
            // A quote as a character begins no string.
            None if rest.starts_with("'\"'") => 3,
            None if rest.starts_with("'\\") => {
                rest.get(2..).and_then(|rest| rest.find('\'')).map_or(2, |end| 3 + end)
            }
            None => rest.chars().next().map_or(1, char::len_utf8),
        };
        at += step.max(1);
    }
    parts.push((Part::Code, begin.min(text.len()), text.len()));
    parts
}

fn end_of_string(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, character) in text.char_indices().skip(1) {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// How many `#` a raw string has that begins here, if one does.
fn raw_string(before: &str, rest: &str) -> Option<usize> {
    let is_name = |character: char| character.is_alphanumeric() || character == '_';
    let behind = rest.strip_prefix('r').filter(|_| !before.ends_with(is_name))?;
    let hashes = behind.len() - behind.trim_start_matches('#').len();
    behind.get(hashes..)?.starts_with('"').then_some(hashes)
}

fn end_of_raw_string(text: &str, hashes: usize) -> usize {
    let end = format!("\"{}", "#".repeat(hashes));
    let start = hashes + 2;
    text.get(start..).and_then(|rest| rest.find(&end)).map_or(text.len(), |at| start + at + end.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_words_are_found_in_names_and_texts() {
        let planted = "fn tell_all(bell: Bell) {\n    println!(\"nobody is {told}\"); // told\n}\n";
        let found = violations("a.rs", planted);
        assert_eq!(
            found,
            [
                "a.rs:1: \"tell\": write report, emit",
                "a.rs:1: \"bell\": write waker",
                "a.rs:1: \"bell\": write waker",
                "a.rs:2: \"told\": write reported, logged, said",
                "a.rs:2: \"nobody\": write no pod, no process, nothing",
            ]
        );
    }

    #[test]
    fn functions_have_plain_names_in_tests_too() {
        let planted =
            "#[cfg(test)]\nmod tests {\n    fn nobody_waits(told: u8) {}\n    fn foretold() {}\n}\n";
        assert_eq!(in_function_names("a.rs", planted), ["a.rs:3: \"nobody\": write none"]);
        assert!(in_function_names("a.rs", "// fn nobody() {}\nlet text = \"fn told() {}\";\n").is_empty());
    }

    #[test]
    fn other_words_are_not() {
        for text in [
            "fn intelligent(labelled: bool) {}\n",
            "let a = \"foretold as such\"; // nobody\n",
            "let key = \"nobody\";\n",
            "#[cfg(test)]\nmod tests {\n    fn told() {}\n}\n",
            "#[cfg(test)]\nmod tests;\n",
            "let quote = '\"';\n",
            "let raw = r#\"a \" b\"#;\n",
        ] {
            assert!(violations("a.rs", text).is_empty(), "{text}");
        }
    }

    #[test]
    fn strings_end_where_they_end() {
        assert_eq!(code("a(\"x\\\"y\", r#\"z\"w\"#, 'q', '\\'', \"'\") // c\nb"), "a(, , 'q', '\\'', ) \nb");
    }
}
