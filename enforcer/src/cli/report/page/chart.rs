//! What was available against the thresholds, as a drawing.

use super::{
    super::{
        recorded::{Course, Mark, Sample},
        words::duration,
    },
    html::text,
};
use crate::cli::render::human_bytes;

/// The drawing's area and its margins, in units of its view box.
const WIDTH: u64 = 720;
const HEIGHT: u64 = 240;
const LEFT: u64 = 70;
const TOP: u64 = 30;
const BOTTOM: u64 = 30;
const RIGHT: u64 = 20;

/// Coordinates have one digit behind the point.
const TENTHS: u128 = 10;

/// How amounts and times become places.
#[derive(Clone, Copy, Debug)]
struct Scale {
    from_ms: i64,
    span_ms: u64,
    most_bytes: u64,
}

impl Scale {
    fn new(samples: &[Sample], thresholds: &[(bool, u64)]) -> Option<Self> {
        let (first, last) = (samples.first()?, samples.last()?);
        let span_ms = u64::try_from(last.ms.saturating_sub(first.ms)).unwrap_or(0).max(1);
        let amounts = samples.iter().map(|sample| sample.available_bytes);
        let most = amounts.chain(thresholds.iter().map(|(_, bytes)| *bytes)).max().unwrap_or(0);
        // Some air above the highest.
        let most_bytes = most.saturating_add(most / 10).max(1);
        Some(Self { from_ms: first.ms, span_ms, most_bytes })
    }

    fn x(self, ms: i64) -> String {
        let after_ms = u64::try_from(ms.saturating_sub(self.from_ms)).unwrap_or(0).min(self.span_ms);
        place(LEFT, WIDTH - LEFT - RIGHT, after_ms, self.span_ms)
    }

    fn y(self, bytes: u64) -> String {
        let below = self.most_bytes.saturating_sub(bytes);
        place(TOP, HEIGHT - TOP - BOTTOM, below, self.most_bytes)
    }

    fn holds(self, ms: i64) -> bool {
        let end_ms = self.from_ms.saturating_add_unsigned(self.span_ms);
        (self.from_ms..=end_ms).contains(&ms)
    }
}

/// Where `part` of `whole` is on a line that begins at `start` and is so long.
fn place(start: u64, length: u64, part: u64, whole: u64) -> String {
    let along = u128::from(length) * TENTHS * u128::from(part) / u128::from(whole.max(1));
    let tenths = u128::from(start) * TENTHS + along;
    format!("{}.{}", tenths / TENTHS, tenths % TENTHS)
}

/// The drawing, and below it what its numbers mean. `id` is unique in the page.
pub(super) fn chart(course: &Course, id: &str) -> String {
    let Course { samples, thresholds, marks, more_marks, has_gaps, .. } = course;
    let Some(scale) = Scale::new(samples, thresholds) else {
        return String::from("<p>The recording has no sample of the node.</p>\n");
    };
    let lowest = samples.iter().map(|sample| sample.available_bytes).min().unwrap_or(0);
    let mut described = format!(
        "From {} samples in {}: at least {} were available.",
        samples.len(),
        duration(scale.span_ms),
        human_bytes(lowest)
    );
    for (hard, bytes) in thresholds {
        described.push_str(&format!(" The {} threshold is {}.", kind(*hard), human_bytes(*bytes)));
    }
    if *has_gaps {
        described.push_str(" Parts of the recording are missing.");
    }
    let mut svg = format!(
        "<figure>\n<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-labelledby=\"{id}-title {id}-desc\">\n\
         <title id=\"{id}-title\">Available memory around the decision</title>\n\
         <desc id=\"{id}-desc\">{}</desc>\n",
        text(&described)
    );
    axes(&mut svg, scale);
    for (hard, bytes) in thresholds {
        let (y, class) = (scale.y(*bytes), kind(*hard));
        svg.push_str(&format!(
            "<line class=\"{class}\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{y}\" y2=\"{y}\"/>\n\
             <text class=\"{class}\" x=\"{}\" y=\"{y}\" dy=\"-4\" text-anchor=\"end\">{class} {}</text>\n",
            WIDTH - RIGHT,
            WIDTH - RIGHT,
            text(&human_bytes(*bytes))
        ));
    }
    let points: Vec<_> = samples
        .iter()
        .map(|sample| format!("{},{}", scale.x(sample.ms), scale.y(sample.available_bytes)))
        .collect();
    svg.push_str(&format!("<polyline class=\"available\" points=\"{}\"/>\n", points.join(" ")));
    for (number, mark) in (1..).zip(marks).filter(|(_, mark)| scale.holds(mark.ms)) {
        flag(&mut svg, scale, number, mark);
    }
    svg.push_str("</svg>\n");
    svg.push_str(&format!("<figcaption>{}</figcaption>\n</figure>\n", text(&described)));
    svg.push_str(&timeline(scale, marks, *more_marks));
    svg
}

fn kind(hard: bool) -> &'static str {
    if hard { "hard" } else { "soft" }
}

fn axes(svg: &mut String, scale: Scale) {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    svg.push_str(&format!(
        "<path class=\"axis\" d=\"M{LEFT} {TOP}V{bottom}H{right}\"/>\n\
         <text x=\"{}\" y=\"{bottom}\" text-anchor=\"end\">0</text>\n\
         <text x=\"{}\" y=\"{TOP}\" dy=\"10\" text-anchor=\"end\">{}</text>\n\
         <text x=\"{LEFT}\" y=\"{HEIGHT}\" dy=\"-10\">0</text>\n\
         <text x=\"{right}\" y=\"{HEIGHT}\" dy=\"-10\" text-anchor=\"end\">{}</text>\n",
        LEFT - 6,
        LEFT - 6,
        text(&human_bytes(scale.most_bytes)),
        text(&duration(scale.span_ms))
    ));
}

/// A moment with its number.
fn flag(svg: &mut String, scale: Scale, number: usize, mark: &Mark) {
    let (x, bottom) = (scale.x(mark.ms), HEIGHT - BOTTOM);
    // Numbers of moments close to each other stand below one another.
    let row = TOP + 12 * u64::try_from(number % 4).unwrap_or(0);
    svg.push_str(&format!(
        "<g class=\"mark\"><title>{}</title><line x1=\"{x}\" x2=\"{x}\" y1=\"{TOP}\" y2=\"{bottom}\"/>\
         <text x=\"{x}\" y=\"{row}\" dx=\"2\">{number}</text></g>\n",
        text(&mark.what)
    ));
}

/// The same as a list, which says more.
fn timeline(scale: Scale, marks: &[Mark], more: usize) -> String {
    let mut list = String::from("<ol class=\"timeline\">\n");
    for mark in marks {
        let after_ms = u64::try_from(mark.ms.saturating_sub(scale.from_ms)).unwrap_or(0);
        list.push_str(&format!("<li><span>+{}</span> {}</li>\n", duration(after_ms), text(&mark.what)));
    }
    list.push_str("</ol>\n");
    if more > 0 {
        list.push_str(&format!("<p>and {more} more moments</p>\n"));
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> Course {
        Course {
            samples: Vec::new(),
            thresholds: Vec::new(),
            marks: Vec::new(),
            more_marks: 0,
            has_gaps: false,
            alternatives: Err(String::from("no recording")),
        }
    }

    #[test]
    fn amounts_and_times_have_their_places() {
        let sample = |ms, available_bytes| Sample { ms, available_bytes };
        let course = Course {
            samples: vec![sample(1_000, 1_000), sample(2_000, 500), sample(3_000, 0)],
            thresholds: vec![(true, 200)],
            marks: vec![
                Mark { ms: 2_000, what: String::from("<b>\"a\"") },
                Mark { ms: 9_000, what: String::from("later") },
            ],
            more_marks: 3,
            ..empty()
        };
        let drawn = chart(&course, "c1");
        // 1100 is at the top, 0 at the bottom.
        assert!(drawn.contains("points=\"70.0,46.3 385.0,128.1 700.0,210.0\""), "{drawn}");
        assert!(drawn.contains("role=\"img\" aria-labelledby=\"c1-title c1-desc\""), "{drawn}");
        assert!(drawn.contains("<title>&lt;b&gt;&quot;a&quot;</title>") && !drawn.contains("<b>"), "{drawn}");
        assert_eq!(drawn.matches("class=\"mark\"").count(), 1, "one is behind the samples: {drawn}");
        assert!(drawn.contains("+8.0s</span> later") && drawn.contains("and 3 more moments"), "{drawn}");
        assert!(chart(&empty(), "c2").contains("no sample"));
    }

    #[test]
    fn one_sample_is_no_division_by_nothing() {
        let course = Course { samples: vec![Sample { ms: 5, available_bytes: 0 }], ..empty() };
        assert!(chart(&course, "c").contains("points=\"70.0,210.0\""));
    }
}
