//! The screens of a terminal over time, from what it got: pure, and without a clock.

use serde::Deserialize;

/// Output within this time is one picture: a screen is drawn in several writes.
const BURST_MS: u64 = 40;

/// What a terminal got at a time.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub(super) struct Output {
    pub(super) ms: u64,
    pub(super) bytes: Vec<u8>,
}

/// How many rows and columns a terminal has.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) rows: u16,
    pub(super) columns: u16,
}

/// A colour of text, or behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Ink {
    /// The terminal's own colour of text.
    Foreground,
    /// The terminal's own colour behind text.
    Background,
    /// One of the palette's 256.
    Index(u8),
    /// As it is.
    Rgb(u8, u8, u8),
}

/// How text looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Style {
    pub(super) text: Ink,
    pub(super) behind: Ink,
    pub(super) bold: bool,
    pub(super) dim: bool,
    pub(super) underline: bool,
}

impl Style {
    fn of(cell: &vt100::Cell) -> Self {
        let ink = |color, own| match color {
            vt100::Color::Default => own,
            vt100::Color::Idx(index) => Ink::Index(index),
            vt100::Color::Rgb(red, green, blue) => Ink::Rgb(red, green, blue),
        };
        let text = ink(cell.fgcolor(), Ink::Foreground);
        let behind = ink(cell.bgcolor(), Ink::Background);
        let (text, behind) = if cell.inverse() { (behind, text) } else { (text, behind) };
        Self { text, behind, bold: cell.bold(), dim: cell.dim(), underline: cell.underline() }
    }

    /// Whether a blank of that style is seen.
    fn is_seen(self) -> bool {
        self.behind != Ink::Background || self.underline
    }
}

/// Neighbours of one style in a row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Run {
    pub(super) column: u16,
    /// In columns.
    pub(super) width: u16,
    pub(super) text: String,
    pub(super) style: Style,
}

/// What the terminal shows from a time on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) ms: u64,
    pub(super) rows: Vec<Vec<Run>>,
    /// Row and column; `None` if it is hidden.
    pub(super) cursor: Option<(u16, u16)>,
}

/// What the terminal showed: a frame for each change, the first at 0 ms.
pub(super) fn frames(outputs: &[Output], size: Size) -> Vec<Frame> {
    let mut parser = vt100::Parser::new(size.rows, size.columns, 0);
    let mut frames: Vec<Frame> = Vec::new();
    let mut outputs = outputs.iter().peekable();
    while let Some(output) = outputs.next() {
        parser.process(&output.bytes);
        let mut ms = output.ms;
        while let Some(more) = outputs.next_if(|next| next.ms < output.ms.saturating_add(BURST_MS)) {
            parser.process(&more.bytes);
            ms = more.ms;
        }
        let (rows, cursor) = (rows(parser.screen(), size), cursor(parser.screen(), size));
        if frames.last().is_none_or(|last| last.rows != rows || last.cursor != cursor) {
            frames.push(Frame { ms, rows, cursor });
        }
    }
    let start = frames.first().map_or(0, |first| first.ms);
    for frame in &mut frames {
        frame.ms = frame.ms.saturating_sub(start);
    }
    frames
}

fn cursor(screen: &vt100::Screen, size: Size) -> Option<(u16, u16)> {
    let (row, column) = screen.cursor_position();
    // Behind the last column it waits for the next character.
    (!screen.hide_cursor()).then_some((row, column.min(size.columns.saturating_sub(1))))
}

fn rows(screen: &vt100::Screen, size: Size) -> Vec<Vec<Run>> {
    let row = |row| {
        let mut runs: Vec<Run> = Vec::new();
        for column in 0..size.columns {
            let Some(cell) = screen.cell(row, column).filter(|cell| !cell.is_wide_continuation()) else {
                continue;
            };
            let (width, style) = (if cell.is_wide() { 2 } else { 1 }, Style::of(cell));
            let text = if cell.has_contents() { cell.contents() } else { " " };
            match runs.last_mut() {
                Some(last) if last.style == style && last.column + last.width == column => {
                    last.width += width;
                    last.text.push_str(text);
                }
                _ => runs.push(Run { column, width, text: text.to_owned(), style }),
            }
        }
        runs.into_iter().filter_map(without_margins).collect()
    };
    (0..size.rows).map(row).collect()
}

/// A run without blanks that are not seen; `None` if that is all it has.
fn without_margins(run: Run) -> Option<Run> {
    let Run { column, width, text, style } = run;
    if style.is_seen() {
        return Some(Run { column, width, text, style });
    }
    let (left, right) = (text.trim_start_matches(' '), text.trim_end_matches(' '));
    let cut = |shorter: &str| u16::try_from(text.len() - shorter.len()).unwrap_or(u16::MAX);
    let (before, behind) = (cut(left), cut(right));
    let inner = text.trim_matches(' ');
    (!inner.is_empty()).then(|| Run {
        column: column + before,
        width: width - before - behind,
        text: inner.to_owned(),
        style,
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::pictures) const SIZE: Size = Size { rows: 3, columns: 10 };

    pub(in crate::pictures) fn output(ms: u64, text: &str) -> Output {
        Output { ms, bytes: text.as_bytes().to_owned() }
    }

    fn text(frame: &Frame) -> Vec<String> {
        let row = |runs: &Vec<Run>| runs.iter().map(|run| run.text.as_str()).collect::<Vec<_>>().join("|");
        frame.rows.iter().map(row).collect()
    }

    #[test]
    fn a_burst_is_one_frame_and_times_begin_with_the_first() {
        let outputs =
            [output(500, "a"), output(510, "b"), output(539, "c"), output(540, "d"), output(900, "\x1b[0m")];
        let frames = frames(&outputs, SIZE);
        let seen: Vec<_> = frames.iter().map(|frame| (frame.ms, text(frame)[0].clone())).collect();
        assert_eq!(seen, [(0, String::from("abc")), (1, String::from("abcd"))]);
    }

    #[test]
    fn a_character_in_two_outputs_is_one() {
        let outputs = [Output { ms: 0, bytes: vec![0xe2, 0x80] }, Output { ms: 10, bytes: vec![0xa6] }];
        assert_eq!(text(&frames(&outputs, SIZE)[0])[0], "…");
    }

    #[test]
    fn runs_have_their_place_width_and_colours() {
        let frames = frames(&[output(0, "  a b \x1b[1;31mred\x1b[0m\r\n\x1b[7m  \x1b[0m漢")], SIZE);
        let plain = Style {
            text: Ink::Foreground,
            behind: Ink::Background,
            bold: false,
            dim: false,
            underline: false,
        };
        let run = |column, width, text: &str, style| Run { column, width, text: text.to_owned(), style };
        assert_eq!(
            frames[0].rows[0],
            [run(2, 3, "a b", plain), run(6, 3, "red", Style { text: Ink::Index(1), bold: true, ..plain })]
        );
        let inverse = Style { text: Ink::Background, behind: Ink::Foreground, ..plain };
        assert_eq!(frames[0].rows[1], [run(0, 2, "  ", inverse), run(2, 2, "漢", plain)]);
        assert_eq!((&frames[0].rows[2], frames[0].cursor), (&Vec::new(), Some((1, 4))));
    }

    #[test]
    fn a_cleared_screen_is_empty() {
        let frames = frames(&[output(0, "a\r\nb"), output(100, "\x1b[2J\x1b[H\x1b[?25l")], SIZE);
        assert_eq!(text(&frames[1]), ["", "", ""]);
        assert_eq!((frames[0].cursor, frames[1].cursor), (Some((1, 1)), None));
    }

    #[test]
    fn what_a_full_screen_covered_comes_back() {
        let outputs = [output(0, "$ top"), output(100, "\x1b[?1049h\x1b[Hbusy"), output(200, "\x1b[?1049l")];
        let frames = frames(&outputs, SIZE);
        assert_eq!(
            frames.iter().map(|frame| text(frame)[0].clone()).collect::<Vec<_>>(),
            ["$ top", "busy", "$ top"]
        );
    }
}
