//! The state as a picture on a screen of any size.

use ratatui::{
    Frame,
    buffer::Buffer,
    layout::Rect,
    style::{Color, Modifier, Style},
};

use super::{
    header::{Line, brief, header},
    model::{Focus, Panel, State},
    rows::Item,
    table::{self, Column, Tone},
};
use crate::cli::render::escape;

/// The minimum rows for the whole header, and for the columns' titles.
const WHOLE_HEADER: u16 = 14;
const TITLES: u16 = 7;

/// The help that `?` shows.
pub(super) const HELP: [&str; 33] = [
    "up down k j   go to a row           PgUp PgDn Home End g G",
    "enter space   fold or unfold        left right h l",
    "/             filter by name        enter keeps it, Esc clears it",
    "s             sort by rank, current, growth, % of request, stall, name",
    "w             why: the pod's last decision or OOM kill",
    "e             the pod's events",
    "Ctrl-L        redraw                Ctrl-Z stops, fg continues",
    "q Ctrl-C      quit",
    "",
    "CURRENT   memory.current           ANON FILE SHMEM  its parts; shmem is in file",
    "REQUEST   what a pod requests      LIMIT  a pod's, or memory.max",
    "%REQ      working set in per cent of the request",
    "GROWTH/S  bytes a second, as the eviction engine sees them;",
    "          of containers and pods that are not ranked, since the last look",
    "STALL     per cent of the last 10 s in which some task waited for memory",
    "RANK      place in the order of eviction; - is not evicted",
    "",
    "MARK  C  critical: never evicted",
    "      P  protected by an operator's order",
    "      X  excluded for another reason; `enforcer next` shows which",
    "      ?  its use cannot be read: it is evicted first",
    "      W  waits to run      E  was evicted",
    "      R  was not admitted  G  its manifest is gone",
    "",
    "far         not crossed within a day at the present rate",
    "only decided  decisions reported and not carried out: dry-run or paused",
    "-           not known, or none",
    "",
    "Narrow screens omit columns: SHMEM first, then FILE, ANON, LIMIT.",
    "The memory of visible pods is read each time, that of others when",
    "they become visible. `-b` prints a plain table, `-o json` everything.",
    "",
    "Esc, q or ? goes back.",
];

/// The layout of the screen, in rows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Areas {
    pub(super) header: u16,
    pub(super) titles: u16,
    pub(super) tree: u16,
    pub(super) footer: u16,
}

impl Areas {
    /// The layout for the state's screen.
    pub(super) fn of(state: &State) -> Self {
        let (_, height) = state.size;
        let lines = u16::try_from(header(state).len()).unwrap_or(u16::MAX);
        let header = match height {
            0..=2 => 0,
            3..WHOLE_HEADER => 1,
            // Half of the screen belongs to the tree.
            _ => lines.min(height / 2),
        };
        let titles = u16::from(height >= TITLES);
        let footer = u16::from(height >= 2);
        Self { header, titles, tree: height.saturating_sub(header + titles + footer), footer }
    }

    pub(super) fn tree_height(self) -> usize {
        usize::from(self.tree)
    }
}

/// The style of the tones.
#[derive(Clone, Copy, Debug)]
pub(super) struct Theme {
    /// Whether to use colour.
    pub(super) color: bool,
}

impl Theme {
    fn style(self, tone: Tone) -> Style {
        let style = Style::new();
        let colored = |color: Color, style: Style| if self.color { style.fg(color) } else { style };
        match tone {
            Tone::Plain => style,
            Tone::Faint => style.add_modifier(Modifier::DIM),
            Tone::Strong => style.add_modifier(Modifier::BOLD),
            Tone::Warning => colored(Color::Yellow, style.add_modifier(Modifier::BOLD)),
            Tone::Alarm => {
                let loud = style.add_modifier(Modifier::BOLD);
                if self.color { loud.fg(Color::Red) } else { loud.add_modifier(Modifier::UNDERLINED) }
            }
        }
    }

    /// The style of an outdated picture.
    fn stale(self) -> Style {
        let style = Style::new().add_modifier(Modifier::DIM);
        if self.color { style.fg(Color::DarkGray) } else { style }
    }
}

/// Draws the state, and depends on nothing else.
pub(super) fn draw(state: &State, theme: Theme, frame: &mut Frame<'_>) {
    let screen = frame.area();
    let buffer = frame.buffer_mut();
    let areas = Areas::of(state);
    let row = |y: u16| Rect { x: screen.x, y: screen.y + y, width: screen.width, height: 1 };
    let body = areas.header..areas.header + areas.titles + areas.tree;
    if areas.header == 1 {
        let whole = header(state);
        let line = if whole.len() == 1 { whole.into_iter().next().unwrap_or_default() } else { brief(state) };
        put_line(buffer, row(0), &line, theme);
    } else {
        for (y, line) in (0..areas.header).zip(header(state)) {
            put_line(buffer, row(y), &line, theme);
        }
    }
    match &state.focus {
        Focus::Tree | Focus::Filter => tree(state, theme, buffer, row(areas.header), areas),
        Focus::Help { scroll } => {
            let most = HELP.len().saturating_sub(1);
            let lines = HELP.iter().skip((*scroll).min(most)).map(|line| (*line).to_owned());
            text(buffer, body.clone().map(row), "keys and columns", lines, theme);
        }
        Focus::Panel(panel) => show_panel(panel, buffer, body.clone().map(row), theme),
    }
    if state.stale.is_some() {
        let above = Rect { height: body.end.min(screen.height), ..screen };
        for position in above.positions() {
            if let Some(cell) = buffer.cell_mut(position) {
                cell.set_style(Style::reset().patch(theme.stale()));
            }
        }
    }
    if areas.footer == 1 {
        put_line(buffer, row(screen.height.saturating_sub(1)), &footer(state), theme);
    }
}

fn tree(state: &State, theme: Theme, buffer: &mut Buffer, first: Rect, areas: Areas) {
    let has_specs = state.picture.as_ref().is_some_and(|picture| picture.specs.is_some());
    let (name_width, columns) = table::columns(usize::from(first.width), has_specs);
    if areas.titles == 1 {
        let cells = columns.iter().map(|column| (column.title().to_owned(), column.width()));
        let line = table::line("NAME", name_width, cells);
        put_line(buffer, first, &vec![(line, Tone::Strong)], theme);
    }
    let Some(picture) = &state.picture else { return };
    let seen = state.rows.iter().enumerate().skip(state.offset).take(areas.tree_height());
    for (y, (index, row)) in (areas.titles..).zip(seen) {
        let Some(item) = row.item(picture) else { continue };
        let area = Rect { y: first.y + y, ..first };
        tree_row(&item, state.is_open(&item), name_width, &columns, theme, buffer, area);
        if index == state.selected {
            buffer.set_style(area, Style::new().add_modifier(Modifier::REVERSED));
        }
    }
    if state.rows.is_empty() && areas.tree > 0 {
        let empty = if state.filter.is_empty() { "there are no pods" } else { "no name contains that" };
        let area = Rect { y: first.y + areas.titles, ..first };
        put_line(buffer, area, &vec![(empty.to_owned(), Tone::Faint)], theme);
    }
}

fn tree_row(
    item: &Item<'_>,
    open: Option<bool>,
    name_width: usize,
    columns: &[Column],
    theme: Theme,
    buffer: &mut Buffer,
    area: Rect,
) {
    let tone = match item {
        Item::Class(_) => Tone::Strong,
        Item::Pod(_) => Tone::Plain,
        Item::Container(..) => Tone::Faint,
    };
    let name = table::name(item, open, name_width);
    let mut line: Line = vec![(format!("{name:<name_width$}"), tone)];
    for column in columns {
        let (text, cell) = column.cell(item);
        let width = column.width();
        line.push((format!(" {text:>width$}"), if cell == Tone::Plain { tone } else { cell }));
    }
    put_line(buffer, area, &line, theme);
}

fn show_panel(panel: &Panel, buffer: &mut Buffer, rows: impl Iterator<Item = Rect>, theme: Theme) {
    match &panel.lines {
        None => text(buffer, rows, &panel.title, [String::from("asking the daemon")].into_iter(), theme),
        Some(lines) => {
            let wrapped = lines.iter().skip(panel.scroll).cloned();
            text(buffer, rows, &panel.title, wrapped, theme);
        }
    }
}

/// A title and lines below it; a line that is too long is wrapped.
fn text(
    buffer: &mut Buffer,
    mut rows: impl Iterator<Item = Rect>,
    title: &str,
    lines: impl Iterator<Item = String>,
    theme: Theme,
) {
    let Some(first) = rows.next() else { return };
    put_line(buffer, first, &vec![(escape(title), Tone::Strong)], theme);
    let width = usize::from(first.width).max(1);
    for line in lines {
        let characters: Vec<char> = escape(&line).chars().collect();
        let mut begin = 0;
        while begin == 0 || begin < characters.len() {
            let Some(row) = rows.next() else { return };
            let piece: String = characters.iter().skip(begin).take(width).collect();
            put_line(buffer, row, &vec![(piece, Tone::Plain)], theme);
            begin += width;
        }
    }
}

fn footer(state: &State) -> Line {
    if let Some(stale) = &state.stale {
        let seconds = state.now_ms.saturating_sub(stale.since_ms) / 1_000;
        return vec![
            (format!("NO ANSWER for {seconds}s, trying again "), Tone::Alarm),
            (escape(&stale.why), Tone::Faint),
        ];
    }
    if let Some(notice) = state.notice {
        return vec![(notice.to_owned(), Tone::Warning)];
    }
    match &state.focus {
        Focus::Filter => vec![
            (String::from("/"), Tone::Strong),
            (escape(&state.filter), Tone::Plain),
            (String::from("_"), Tone::Faint),
        ],
        Focus::Tree => vec![(String::from("? help  / filter  s sort  w why  e events  q end"), Tone::Faint)],
        Focus::Help { .. } | Focus::Panel(_) => vec![(String::from("j k scroll  Esc back"), Tone::Faint)],
    }
}

fn put_line(buffer: &mut Buffer, area: Rect, line: &Line, theme: Theme) {
    if !buffer.area.contains(area.as_position()) {
        return;
    }
    let end = area.x.saturating_add(area.width);
    let mut x = area.x;
    for (text, tone) in line {
        let left = usize::from(end.saturating_sub(x));
        if left == 0 {
            return;
        }
        (x, _) = buffer.set_stringn(x, area.y, text, left, theme.style(*tone));
    }
}

#[cfg(test)]
mod tests;
