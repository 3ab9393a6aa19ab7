//! Text for a screen of 80 columns or for a ticket, with untrusted text escaped.

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use super::{columns::Table, markdown, render::escape};

/// How wide a screen is, in columns.
pub(super) const WIDTH: usize = 80;

/// The column at which the text behind a label begins.
const TEXT: usize = 11;

/// The width of a time column.
const AT: usize = 9;

/// What a page is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Style {
    /// A screen: words within 80 columns, and tables within those of the terminal, if it is one.
    Screen(Option<usize>),
    /// A ticket: Markdown.
    Markdown,
}

impl Default for Style {
    fn default() -> Self {
        Self::Screen(Some(WIDTH))
    }
}

/// The text of a screen or of a ticket.
#[derive(Debug, Default)]
pub(super) struct Page {
    text: String,
    style: Style,
    /// Whether the last line in Markdown is a row of the table of labels.
    is_in_fields: bool,
}

impl Page {
    /// An empty one.
    pub(super) fn new(style: Style) -> Self {
        Self { style, ..Self::default() }
    }

    /// A paragraph of words.
    pub(super) fn paragraph(&mut self, text: &str) {
        if self.is_markdown() {
            self.block(&(markdown::escape(text) + "\n"));
            return;
        }
        for line in wrap(text, WIDTH) {
            self.line(&line);
        }
    }

    /// Text behind a label; without one, it continues the text above.
    pub(super) fn field(&mut self, label: &str, text: &str) {
        if self.is_markdown() {
            self.labelled(label, text);
            return;
        }
        for (number, line) in wrap(text, WIDTH - TEXT).into_iter().enumerate() {
            let label = if number == 0 { label } else { "" };
            self.line(&format!("{label:<TEXT$}{line}"));
        }
    }

    /// Text behind a label and a time.
    pub(super) fn moment(&mut self, label: &str, at: &str, text: &str) {
        if self.is_markdown() {
            self.labelled(label, format!("{at} {text}").trim_start());
            return;
        }
        for (number, line) in wrap(text, WIDTH - TEXT - AT - 1).into_iter().enumerate() {
            let (label, at) = if number == 0 { (label, at) } else { ("", "") };
            self.line(&format!("{label:<TEXT$}{at:>AT$} {line}"));
        }
    }

    /// A line that is already escaped and short enough.
    pub(super) fn line(&mut self, line: &str) {
        if self.is_markdown() {
            self.block(&(markdown::escape(line.trim()) + "\n"));
            return;
        }
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }

    /// Another screen below this one.
    pub(super) fn screen(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// A table.
    pub(super) fn table(&mut self, table: &Table) {
        match self.style {
            Style::Screen(columns) => self.text.push_str(&table.text(columns)),
            Style::Markdown => self.block(&table.markdown()),
        }
    }

    /// An empty line.
    pub(super) fn gap(&mut self) {
        if !self.is_markdown() {
            self.text.push('\n');
        }
    }

    /// The whole text.
    pub(super) fn finish(self) -> String {
        self.text
    }

    fn is_markdown(&self) -> bool {
        matches!(self.style, Style::Markdown)
    }

    /// A block of Markdown, apart from the one before.
    fn block(&mut self, text: &str) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        self.text.push_str(text);
        self.is_in_fields = false;
    }

    /// A row of the table of labels, which begins with the first and ends with the next block.
    fn labelled(&mut self, label: &str, text: &str) {
        if !self.is_in_fields {
            self.block("| | |\n| --- | --- |\n");
            self.is_in_fields = true;
        }
        self.text.push_str(&format!("| {} | {} |\n", markdown::escape(label), markdown::escape(text)));
    }
}

/// How many columns an escaped text takes.
pub(super) fn width(text: &str) -> usize {
    text.width()
}

/// A name in exactly that many columns, aligned to the left or right: escaped, with the middle of a longer one cut.
pub(super) fn cell(name: &str, columns: usize, right: bool) -> String {
    let name = fit(name, columns);
    let padding = columns.saturating_sub(name.width());
    if right { format!("{:padding$}{name}", "") } else { format!("{name}{:padding$}", "") }
}

/// A name in at most that many columns, without its middle if it is longer: both ends identify it better.
pub(super) fn fit(name: &str, columns: usize) -> String {
    let name = escape(name);
    if name.width() <= columns {
        return name;
    }
    let room = columns.saturating_sub(1);
    let tail = take(name.chars().rev(), room - room / 2);
    let head = take(name.chars(), room / 2);
    head.into_iter().chain(['…']).chain(tail.into_iter().rev()).collect()
}

fn take(characters: impl Iterator<Item = char>, columns: usize) -> Vec<char> {
    let mut left = columns;
    characters
        .map_while(|character| {
            left = left.checked_sub(character.width().unwrap_or(0))?;
            Some(character)
        })
        .collect()
}

/// Wraps a text at that many columns; a longer word is broken.
pub(super) fn wrap(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut put = |word: &str| match lines.last_mut() {
        Some(line) if line.width() + 1 + word.width() <= columns => {
            line.push(' ');
            line.push_str(word);
        }
        Some(_) | None => lines.push(word.to_owned()),
    };
    for word in escape(text).split(' ').filter(|word| !word.is_empty()) {
        let mut rest = word;
        while rest.width() > columns {
            let part: String = take(rest.chars(), columns).into_iter().collect();
            // Not even one character fits: keep the word whole.
            if part.is_empty() {
                break;
            }
            put(&part);
            rest = rest.get(part.len()..).unwrap_or_default();
        }
        put(rest);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_wider_than_its_place() {
        let long = format!("{} 漢字漢字 \u{1b}[2J {}", "a".repeat(200), "漢".repeat(60));
        assert!(wrap(&long, 30).iter().all(|line| line.width() <= 30));
        for columns in 1..12 {
            let shown = cell("漢字漢字 a\u{202e}b", columns, true);
            assert_eq!(shown.width(), columns, "{shown}");
        }
        let mut page = Page::default();
        page.field("label", &long);
        page.paragraph(&long);
        let text = page.finish();
        assert!(text.lines().all(|line| line.width() <= WIDTH), "{text}");
        assert!(!text.chars().any(|one| one != '\n' && one.is_control()), "{text:?}");
    }

    #[test]
    fn a_ticket_has_labels_in_a_table_and_is_not_wrapped() {
        let mut page = Page::new(Style::Markdown);
        page.paragraph(&"word ".repeat(40));
        page.gap();
        page.field("victim", "a|b\u{1b}[2J");
        page.field("", "more");
        page.moment("ladder", "+1 ms", "<b>");
        page.line("and 2 more");
        page.field("next", "x");
        let fields = "| | |\n| --- | --- |\n";
        let expected = format!(
            "{}\n\n{fields}| victim | a\\|b\\\\u\\{{1b\\}}\\[2J |\n|  | more |\n| ladder | +1 ms \\<b\\> |\n\n\
             and 2 more\n\n{fields}| next | x |\n",
            "word ".repeat(40)
        );
        assert_eq!(page.finish(), expected);
    }

    #[test]
    fn both_ends_of_a_long_name_are_reported() {
        assert_eq!(fit("default/web", 11), "default/web");
        assert_eq!(fit("default/a-long-name-0", 11), "defau…ame-0");
        assert_eq!(cell("a", 3, true), "  a");
        assert_eq!(cell("a", 3, false), "a  ");
    }
}
