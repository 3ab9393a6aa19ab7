//! A terminal's frames as one animated picture, without a script and without anything from elsewhere: pure.
//!
//! Each row that was shown is drawn once, and made visible by keyframes while it was. The animation runs three times, then
//! the last frame stays; where motion is not wanted, it is the picture.

use std::collections::BTreeMap;

use super::terminal::{Frame, Ink, Run, Size, Style};

/// A cell and the margin, in tenths of a pixel.
const CELL: (u64, u64) = (84, 180);
const MARGIN: u64 = 160;
/// From a row's upper edge to the line that its text stands on.
const BASE: u64 = 132;

/// How long the last frame is shown before the session begins anew.
const END_MS: u64 = 12_000;

/// The colours of a scheme: of text, behind it, of the border, and the palette's first sixteen.
struct Scheme {
    text: &'static str,
    behind: &'static str,
    border: &'static str,
    palette: [&'static str; 16],
}

const LIGHT: Scheme = Scheme {
    text: "#1f2328",
    behind: "#f6f8fa",
    border: "#d1d9e0",
    palette: [
        "#24292f", "#cf222e", "#116329", "#7d4e00", "#0550ae", "#6639ba", "#1b6470", "#57606a", "#59636e",
        "#a40e26", "#0f6b2d", "#633c01", "#0860ca", "#5a32a3", "#125a64", "#24292f",
    ],
};

const DARK: Scheme = Scheme {
    text: "#e6edf3",
    behind: "#0d1117",
    border: "#3d444d",
    palette: [
        "#8b949e", "#ff7b72", "#3fb950", "#d29922", "#58a6ff", "#bc8cff", "#39c5cf", "#b1bac4", "#9198a1",
        "#ffa198", "#56d364", "#e3b341", "#79c0ff", "#d2a8ff", "#56d4dd", "#f0f6fc",
    ],
};

/// Something drawn, at its row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Item {
    Cursor(u16, u16),
    Row(u16, Vec<Run>),
}

/// A time in which something is visible; without an end up to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Span {
    from_ms: u64,
    to_ms: Option<u64>,
}

/// The picture of a session.
pub(super) fn picture(frames: &[Frame], size: Size, title: &str) -> String {
    let total_ms = frames.last().map_or(0, |last| last.ms) + END_MS;
    let mut rules = String::new();
    let mut inks = BTreeMap::new();
    let mut body = String::new();
    let mut names: BTreeMap<Vec<Span>, usize> = BTreeMap::new();
    for (item, spans) in spans(frames) {
        let drawn = drawn(&item, &mut inks);
        if spans == [Span { from_ms: 0, to_ms: None }] {
            body.push_str(&format!("<g{drawn}</g>\n"));
            continue;
        }
        let stays = spans.last().is_some_and(|last| last.to_ms.is_none());
        let count = names.len();
        let name = *names.entry(spans.clone()).or_insert_with(|| {
            rules.push_str(&keyframes(count, &spans, total_ms));
            count
        });
        let hidden = if stays { "" } else { " h" };
        body.push_str(&format!("<g class=\"a{hidden} k{name}\"{drawn}</g>\n"));
    }
    let mut fills = String::new();
    for (class, fill) in inks {
        fills.push_str(&format!(".{class}{{fill:{fill}}}"));
    }
    let (width, height) =
        (2 * MARGIN + u64::from(size.columns) * CELL.0, 2 * MARGIN + u64::from(size.rows) * CELL.1);
    // The border is drawn half a pixel inside.
    let (inner_width, inner_height) = (tenths(width - 10), tenths(height - 10));
    let (width, height) = (tenths(width), tenths(height));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         role=\"img\" aria-labelledby=\"t d\">\n<title id=\"t\">{}</title>\n<desc id=\"d\">{}</desc>\n<style>\n{}{}\
         .w{{fill:var(--b);stroke:var(--e)}}\n\
         text{{fill:var(--f);font:14px ui-monospace,monospace;white-space:pre}}\n{fills}\n\
         .o{{font-weight:bold}}.d{{opacity:.7}}.u{{text-decoration:underline}}\n\
         .h{{visibility:hidden}}.a{{animation:{} step-end 3}}\n{rules}\
         @media (prefers-reduced-motion:reduce){{.a{{animation:none}}}}\n</style>\n\
         <rect class=\"w\" x=\".5\" y=\".5\" width=\"{inner_width}\" height=\"{inner_height}\" rx=\"8\"/>\n<g xml:space=\"preserve\">\n{body}</g>\n</svg>\n",
        escape(title),
        escape(&description(frames)),
        variables(":root", &LIGHT),
        format_args!("@media (prefers-color-scheme:dark){{{}}}\n", variables(":root", &DARK).trim_end()),
        seconds(total_ms),
    )
}

/// What was shown, and when.
fn spans(frames: &[Frame]) -> BTreeMap<Item, Vec<Span>> {
    let mut shown: BTreeMap<Item, Vec<Span>> = BTreeMap::new();
    for (at, frame) in frames.iter().enumerate() {
        let span = Span { from_ms: frame.ms, to_ms: frames.get(at + 1).map(|next| next.ms) };
        let rows = (0..).zip(&frame.rows).filter(|(_, runs)| !runs.is_empty());
        let rows = rows.map(|(row, runs)| Item::Row(row, runs.clone()));
        for item in frame.cursor.map(|(row, column)| Item::Cursor(row, column)).into_iter().chain(rows) {
            let spans = shown.entry(item).or_default();
            match spans.last_mut() {
                Some(last) if last.to_ms == Some(span.from_ms) => last.to_ms = span.to_ms,
                _ => spans.push(span),
            }
        }
    }
    shown
}

/// The rules that make something visible in its times, and hide it in the others.
fn keyframes(name: usize, spans: &[Span], total_ms: u64) -> String {
    let mut steps = String::new();
    if spans.first().is_none_or(|first| first.from_ms > 0) {
        steps.push_str("0%{visibility:hidden}");
    }
    for Span { from_ms, to_ms } in spans {
        steps.push_str(&format!("{}{{visibility:visible}}", percent(*from_ms, total_ms)));
        if let Some(to_ms) = to_ms {
            steps.push_str(&format!("{}{{visibility:hidden}}", percent(*to_ms, total_ms)));
        }
    }
    format!(".k{name}{{animation-name:k{name}}}@keyframes k{name}{{{steps}}}\n")
}

/// The rest of a group's tag, and its content.
fn drawn(item: &Item, inks: &mut BTreeMap<String, String>) -> String {
    let mut ink = |ink: Ink| {
        let (class, fill) = match ink {
            Ink::Foreground => (String::from("f"), String::from("var(--f)")),
            Ink::Background => (String::from("b"), String::from("var(--b)")),
            Ink::Index(index @ 0..16) => (format!("c{index}"), format!("var(--c{index})")),
            Ink::Index(index) => rgb_class(extended(index)),
            Ink::Rgb(red, green, blue) => rgb_class([red, green, blue]),
        };
        inks.insert(class.clone(), fill);
        class
    };
    let x = |column: u16| tenths(MARGIN + u64::from(column) * CELL.0);
    let wide = |columns: u16| tenths(u64::from(columns) * CELL.0);
    let high = tenths(CELL.1);
    let at = |row: u16| format!(" transform=\"translate(0 {})\">", tenths(MARGIN + u64::from(row) * CELL.1));
    match item {
        Item::Cursor(row, column) => {
            let class = ink(Ink::Foreground);
            let (x, wide) = (x(*column), wide(1));
            format!("{}<rect class=\"{class} d\" x=\"{x}\" width=\"{wide}\" height=\"{high}\"/>", at(*row))
        }
        Item::Row(row, runs) => {
            let mut drawn = at(*row);
            for Run { column, width, text, style } in runs {
                let Style { text: color, behind, bold, dim, underline } = *style;
                let (x, wide) = (x(*column), wide(*width));
                if behind != Ink::Background {
                    let class = ink(behind);
                    drawn.push_str(&format!(
                        "<rect class=\"{class}\" x=\"{x}\" width=\"{wide}\" height=\"{high}\"/>"
                    ));
                }
                if text.trim_matches(' ').is_empty() && !underline {
                    continue;
                }
                let color = (color != Ink::Foreground).then(|| ink(color));
                let marks = [(bold, "o"), (dim, "d"), (underline, "u")];
                let marks =
                    marks.into_iter().filter(|(is_set, _)| *is_set).map(|(_, class)| class.to_owned());
                let classes: Vec<_> = color.into_iter().chain(marks).collect();
                let class = if classes.is_empty() {
                    String::new()
                } else {
                    format!(" class=\"{}\"", classes.join(" "))
                };
                drawn.push_str(&format!(
                    "<text{class} x=\"{x}\" y=\"{}\" textLength=\"{wide}\">{}</text>",
                    tenths(BASE),
                    escape(text)
                ));
            }
            drawn
        }
    }
}

fn rgb_class([red, green, blue]: [u8; 3]) -> (String, String) {
    let digits = format!("{red:02x}{green:02x}{blue:02x}");
    (format!("x{digits}"), format!("#{digits}"))
}

/// A colour of the palette beyond its first sixteen: a cube of 6 × 6 × 6, then 24 greys.
fn extended(index: u8) -> [u8; 3] {
    if let Some(grey) = index.checked_sub(232) {
        return [8 + 10 * grey; 3];
    }
    let at = index.saturating_sub(16);
    [at / 36, at / 6 % 6, at % 6].map(|part| if part == 0 { 0 } else { 55 + 40 * part })
}

fn variables(selector: &str, scheme: &Scheme) -> String {
    let Scheme { text, behind, border, palette } = scheme;
    let mut colors = String::new();
    for (index, color) in palette.iter().enumerate() {
        colors.push_str(&format!("--c{index}:{color};"));
    }
    format!("{selector}{{--f:{text};--b:{behind};--e:{border};{colors}}}\n")
}

/// The session in words: how long it is, and the text at its end.
fn description(frames: &[Frame]) -> String {
    let Some(last) = frames.last() else { return String::from("An empty terminal.") };
    let row = |runs: &Vec<Run>| {
        let mut line = String::new();
        for Run { column, text, .. } in runs {
            let missing = usize::from(*column).saturating_sub(line.chars().count());
            line.extend(std::iter::repeat_n(' ', missing));
            line.push_str(text);
        }
        line
    };
    let lines: Vec<_> = last.rows.iter().map(row).collect();
    let text = lines.join("\n");
    format!("A terminal for {}. At the end it shows:\n{}", seconds(last.ms), text.trim_end())
}

/// Text without the characters that mean something in XML, or must not be in it.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' => escaped.push('\n'),
            '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            character if character.is_control() => escaped.push('\u{fffd}'),
            character => escaped.push(character),
        }
    }
    escaped
}

/// A number of tenths.
fn tenths(count: u64) -> String {
    match count % 10 {
        0 => (count / 10).to_string(),
        rest => format!("{}.{rest}", count / 10),
    }
}

fn seconds(ms: u64) -> String {
    format!("{}s", tenths(ms / 100))
}

fn percent(ms: u64, total_ms: u64) -> String {
    let thousandths = ms * 100_000 / total_ms.max(1);
    format!("{}.{:03}%", thousandths / 1_000, thousandths % 1_000)
}

#[cfg(test)]
mod tests {
    use super::{
        super::terminal::{
            Output, frames,
            tests::{SIZE, output},
        },
        *,
    };

    fn of(outputs: &[Output]) -> String {
        picture(&frames(outputs, SIZE), SIZE, "a <session> & more")
    }

    /// The line of the picture that draws this text.
    fn line<'a>(picture: &'a str, text: &str) -> &'a str {
        let drawn = format!(">{text}</text>");
        picture.lines().find(|line| line.contains(&drawn)).unwrap_or_else(|| panic!("no {text} in {picture}"))
    }

    #[test]
    fn all_text_is_escaped() {
        let picture = of(&[output(0, "<b>&\"'")]);
        assert!(picture.contains(">&lt;b&gt;&amp;&quot;'</text>"), "{picture}");
        assert!(picture.contains("<title id=\"t\">a &lt;session&gt; &amp; more</title>"), "{picture}");
        assert!(picture.contains("At the end it shows:\n&lt;b&gt;&amp;&quot;'</desc>"), "{picture}");
        assert!(!picture.contains("<b>"), "{picture}");
        assert_eq!(escape("\u{1b}\u{ffff}a\n"), "\u{fffd}\u{fffd}a\n");
    }

    #[test]
    fn it_loads_and_runs_nothing() {
        let picture = of(&[output(0, "a"), output(100, "b")]);
        for refused in ["<script", "href", "url(", "@import", "@font-face", "<foreignObject"] {
            assert!(!picture.contains(refused), "{refused}: {picture}");
        }
        assert_eq!(picture.matches("http").count(), 1, "the namespace alone: {picture}");
    }

    #[test]
    fn colours_are_those_of_the_scheme() {
        let picture = of(&[output(0, "\x1b[31;44mred\x1b[0m \x1b[38;5;196mx\x1b[0m")]);
        let drawn = line(&picture, "red");
        assert!(drawn.contains("<rect class=\"c4\"") && drawn.contains("<text class=\"c1\""), "{drawn}");
        assert!(
            picture.contains(".c1{fill:var(--c1)}") && picture.contains(".xff0000{fill:#ff0000}"),
            "{picture}"
        );
        let (light, dark) = picture.split_once("@media (prefers-color-scheme:dark)").unwrap();
        assert!(light.contains("--c1:#cf222e;") && dark.contains("--c1:#ff7b72;"), "{picture}");
        assert_eq!((extended(16), extended(231), extended(255)), ([0; 3], [255; 3], [238; 3]));
    }

    #[test]
    fn each_colour_can_be_read_in_its_scheme() {
        fn luminance(color: &str) -> f64 {
            let part = |at: usize| {
                let value = f64::from(u8::from_str_radix(&color[at..at + 2], 16).unwrap()) / 255.0;
                if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
            };
            0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5)
        }
        for Scheme { text, behind, border: _, palette } in [LIGHT, DARK] {
            for color in palette.iter().chain([&text]) {
                let (one, other) = (luminance(color), luminance(behind));
                let contrast = (one.max(other) + 0.05) / (one.min(other) + 0.05);
                assert!(contrast >= 4.5, "{color} on {behind}: {contrast}");
            }
        }
    }

    #[test]
    fn a_cleared_row_is_hidden_from_then_on_and_the_last_frame_stays() {
        let picture =
            of(&[output(0, "\x1b[?25lold"), output(1_500, "\x1b[2J\x1b[Hnew"), output(3_000, "\r\nlast")]);
        // 3 s, and 12 s of the last frame.
        let name = |text: &str| {
            let class = line(&picture, text).split('"').nth(1).unwrap();
            (class.contains(" h"), class.rsplit(' ').next().unwrap().to_owned())
        };
        let rules =
            |name: &str| picture.lines().find(|line| line.starts_with(&format!(".{name}{{"))).unwrap();
        let (is_hidden, old) = name("old");
        assert!(is_hidden, "{picture}");
        assert!(
            rules(&old).ends_with("{0.000%{visibility:visible}10.000%{visibility:hidden}}"),
            "{}",
            rules(&old)
        );
        let (is_hidden, last) = name("last");
        assert!(!is_hidden, "{picture}");
        assert!(
            rules(&last).ends_with("{0%{visibility:hidden}20.000%{visibility:visible}}"),
            "{}",
            rules(&last)
        );
        assert!(!name("new").0);
        assert!(picture.contains(".a{animation:15s step-end 3}"), "{picture}");
        assert!(picture.contains("@media (prefers-reduced-motion:reduce){.a{animation:none}}"), "{picture}");
    }

    #[test]
    fn a_row_that_comes_back_is_drawn_once() {
        let picture = of(&[
            output(0, "\x1b[?25lrow"),
            output(1_000, "\r\x1b[K"),
            output(2_000, "row"),
            output(3_000, "\r\n."),
        ]);
        assert_eq!(picture.matches(">row</text>").count(), 1, "{picture}");
        let steps = "{0.000%{visibility:visible}6.666%{visibility:hidden}13.333%{visibility:visible}}";
        assert!(picture.contains(steps), "{picture}");
    }

    #[test]
    fn what_never_changes_is_not_animated() {
        let picture = of(&[output(0, "\x1b[?25lsame"), output(100, "\r\nmore")]);
        assert!(line(&picture, "same").starts_with("<g transform="), "{picture}");
    }
}
