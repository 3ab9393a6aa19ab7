//! Tables: whole names where there is room, and where a terminal ends, names cut as far as needed.

use unicode_width::UnicodeWidthStr;

use super::{
    markdown,
    page::{WIDTH, cell},
    render::escape,
};

/// The fewest columns that a name is cut to.
const LEAST_NAME: usize = 8;

/// How many columns a table may take: those of the terminal. `None`, as many as it needs, if all was asked for or if the
/// output is read by a program.
pub(super) fn of_terminal(is_wide: bool) -> Option<usize> {
    let out = std::io::stdout();
    if is_wide || !rustix::termios::isatty(&out) {
        return None;
    }
    let columns = rustix::termios::tcgetwinsize(&out).map_or(0, |size| usize::from(size.ws_col));
    // A terminal without a size, such as a serial line.
    Some(if columns == 0 { WIDTH } else { columns })
}

/// How wide a column of names is, if the longest has that many columns and the rest of the line takes `rest`. It fills
/// 80 columns at least, so that the same table has the same look for short names.
pub(super) fn name_width(longest: usize, rest: usize, columns: Option<usize>) -> usize {
    let filled = longest.max(WIDTH.saturating_sub(rest));
    columns.map_or(filled, |columns| filled.min(columns.saturating_sub(rest)).max(LEAST_NAME))
}

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    title: &'static str,
    is_right: bool,
    is_name: bool,
    least: usize,
}

impl Head {
    /// Amounts, aligned to the right.
    pub(super) const fn amount(title: &'static str, least: usize) -> Self {
        Self { title, is_right: true, is_name: false, least }
    }

    /// Words, aligned to the left.
    pub(super) const fn word(title: &'static str, least: usize) -> Self {
        Self { title, is_right: false, is_name: false, least }
    }

    /// Names, which may be cut. A table has one such column.
    pub(super) const fn name(title: &'static str) -> Self {
        Self { title, is_right: false, is_name: true, least: 0 }
    }
}

/// A table. Its cells are not escaped.
#[derive(Debug)]
pub(super) struct Table {
    heads: Vec<Head>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// One without rows.
    pub(super) fn new(heads: impl Into<Vec<Head>>) -> Self {
        Self { heads: heads.into(), rows: Vec::new() }
    }

    /// Adds a row: a cell for each head.
    pub(super) fn row(&mut self, cells: impl Into<Vec<String>>) {
        self.rows.push(cells.into());
    }

    /// Lines within that many columns.
    pub(super) fn text(&self, columns: Option<usize>) -> String {
        let widths = self.widths(columns);
        let mut text = String::new();
        let titles: Vec<_> = self.heads.iter().map(|head| head.title.to_owned()).collect();
        for cells in std::iter::once(&titles).chain(&self.rows) {
            let shaped = self.heads.iter().zip(&widths).zip(cells);
            let line: Vec<_> =
                shaped.map(|((head, width), shown)| cell(shown, *width, head.is_right)).collect();
            text.push_str(line.join(" ").trim_end());
            text.push('\n');
        }
        text
    }

    /// The title of each column, and whether it is of amounts and of names.
    pub(super) fn heads(&self) -> impl Iterator<Item = (&'static str, bool, bool)> {
        self.heads.iter().map(|head| (head.title, head.is_right, head.is_name))
    }

    /// The cells of each row. They are not escaped.
    pub(super) fn rows(&self) -> &[Vec<String>] {
        &self.rows
    }

    /// A table as GitHub's and GitLab's Markdown has them, whole.
    pub(super) fn markdown(&self) -> String {
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let mut text = line(self.heads.iter().map(|head| head.title.to_owned()).collect());
        text.push_str(&line(
            self.heads.iter().map(|head| String::from(if head.is_right { "---:" } else { "---" })).collect(),
        ));
        for cells in &self.rows {
            text.push_str(&line(cells.iter().map(|cell| markdown::escape(cell)).collect()));
        }
        text
    }

    fn widths(&self, columns: Option<usize>) -> Vec<usize> {
        let longest = |at: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(at)).map(|cell| escape(cell).width());
            cells.max().unwrap_or(0)
        };
        let mut widths: Vec<_> = self
            .heads
            .iter()
            .enumerate()
            .map(|(at, head)| longest(at).max(head.title.width()).max(head.least))
            .collect();
        if let Some(name) = self.heads.iter().position(|head| head.is_name) {
            let gaps = widths.len().saturating_sub(1);
            let rest = widths.iter().enumerate().filter(|(at, _)| *at != name).map(|(_, width)| width);
            let rest = rest.sum::<usize>() + gaps;
            if let Some(width) = widths.get_mut(name) {
                *width = name_width(*width, rest, columns);
            }
        }
        widths
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(name: &str) -> Table {
        let mut table = Table::new([Head::amount("#", 2), Head::name("POD"), Head::amount("USAGE", 7)]);
        table.row([String::from("1"), name.to_owned(), String::from("1.2Gi")]);
        table
    }

    #[test]
    fn a_name_is_cut_only_where_a_terminal_ends() {
        let name = format!("default/{}", "long-name-".repeat(12));
        assert!(table(&name).text(None).contains(&name));
        assert!(table(&name).text(Some(200)).contains(&name));
        for columns in [40, 80, 120] {
            let text = table(&name).text(Some(columns));
            assert!(text.contains('…') && !text.contains(&name), "{text}");
            let widest = text.lines().map(UnicodeWidthStr::width).max();
            assert_eq!(widest, Some(columns), "no more is cut than is needed: {text}");
        }
        // As wide for short names as 80 columns are, wherever it goes.
        let short = table("default/web").text(None);
        assert!(short.lines().all(|line| line.width() == 80), "{short}");
        assert_eq!(short, table("default/web").text(Some(200)));
        assert!(table("default/web").text(Some(30)).lines().all(|line| line.width() == 30));
    }

    #[test]
    fn a_table_in_markdown_has_whole_names_and_none_breaks_it() {
        let name = format!("{}|\n`x`<b>", "a".repeat(90));
        let text = table(&name).markdown();
        let expected = format!(
            "| # | POD | USAGE |\n| ---: | --- | ---: |\n| 1 | {}\\|\\\\n\\`x\\`\\<b\\> | 1.2Gi |\n",
            "a".repeat(90)
        );
        assert_eq!(text, expected);
    }
}
