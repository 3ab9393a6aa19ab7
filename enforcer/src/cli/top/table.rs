//! The tree's columns: which of them fit, and their cells.

use super::{
    picture::{Figures, Pod},
    rows::Item,
};
use crate::{
    cli::{
        freshness::Freshness,
        render::{human_bytes, shorten},
    },
    serve::PodState,
};

/// The minimum width of the name column, below which other columns are omitted, and its maximum.
const NAME: std::ops::RangeInclusive<usize> = 20..=60;

/// The emphasis of a piece of text.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Tone {
    #[default]
    Plain,
    /// Less important.
    Faint,
    /// A heading.
    Strong,
    /// A warning.
    Warning,
    /// Something that must not be overlooked.
    Alarm,
}

/// A column beside the name.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Column {
    Current,
    Anon,
    File,
    Shmem,
    Request,
    Limit,
    Percent,
    Growth,
    Stall,
    Rank,
    Marks,
    Spec,
}

impl Column {
    /// All columns from left to right.
    const ALL: [Self; 12] = [
        Self::Current,
        Self::Anon,
        Self::File,
        Self::Shmem,
        Self::Request,
        Self::Limit,
        Self::Percent,
        Self::Growth,
        Self::Stall,
        Self::Rank,
        Self::Marks,
        Self::Spec,
    ];

    /// All columns by importance: without room, the last ones are omitted first.
    const WEIGHT: [Self; 12] = [
        Self::Current,
        Self::Rank,
        Self::Percent,
        Self::Growth,
        Self::Marks,
        Self::Spec,
        Self::Stall,
        Self::Request,
        Self::Limit,
        Self::Anon,
        Self::File,
        Self::Shmem,
    ];

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Current => "CURRENT",
            Self::Anon => "ANON",
            Self::File => "FILE",
            Self::Shmem => "SHMEM",
            Self::Request => "REQUEST",
            Self::Limit => "LIMIT",
            Self::Percent => "%REQ",
            Self::Growth => "GROWTH/S",
            Self::Stall => "STALL",
            Self::Rank => "RANK",
            Self::Marks => "MARK",
            Self::Spec => "SPEC",
        }
    }

    /// The width without the space before it.
    pub(super) fn width(self) -> usize {
        match self {
            Self::Spec => Freshness::WIDTH,
            Self::Growth => 8,
            Self::Current | Self::Request => 7,
            Self::Anon | Self::File | Self::Shmem | Self::Limit => 6,
            Self::Percent | Self::Stall => 5,
            Self::Rank | Self::Marks => 4,
        }
    }

    /// The text of a cell.
    pub(super) fn cell(self, item: &Item<'_>) -> (String, Tone) {
        let figures = item.figures();
        let bytes = |bytes: Option<u64>| (bytes.map_or_else(|| String::from("-"), human_bytes), Tone::Plain);
        match self {
            Self::Current => bytes(figures.current_bytes),
            Self::Anon => bytes(figures.anon_bytes),
            Self::File => bytes(figures.file_bytes),
            Self::Shmem => bytes(figures.shmem_bytes),
            Self::Request => bytes(figures.request_bytes),
            Self::Limit => limit(figures),
            Self::Percent => percent(figures),
            Self::Growth => growth(figures.growth_bytes_per_second),
            Self::Stall => stall(figures.stall_percent),
            Self::Rank => match item {
                Item::Pod(pod) => rank(pod),
                Item::Class(_) | Item::Container(..) => (String::new(), Tone::Plain),
            },
            Self::Marks => match item {
                Item::Pod(pod) => marks(pod),
                Item::Class(_) | Item::Container(..) => (String::new(), Tone::Plain),
            },
            Self::Spec => match item {
                Item::Pod(pod) => spec(pod),
                Item::Class(_) | Item::Container(..) => (String::new(), Tone::Plain),
            },
        }
    }
}

/// The width of the name column, and the columns that fit beside it; `has_specs` beside a kubelet.
pub(super) fn columns(width: usize, has_specs: bool) -> (usize, Vec<Column>) {
    let mut chosen = Vec::new();
    let mut left = width;
    for column in Column::WEIGHT.into_iter().filter(|column| has_specs || *column != Column::Spec) {
        let needs = column.width() + 1;
        let name = if chosen.is_empty() { 8 } else { *NAME.start() };
        if left < name + needs {
            break;
        }
        left -= needs;
        chosen.push(column);
    }
    let columns = Column::ALL.into_iter().filter(|column| chosen.contains(column)).collect();
    (left.min(*NAME.end()), columns)
}

/// The name of a row, indented by its depth; `open` is `None` if it has no rows below it.
pub(super) fn name(item: &Item<'_>, open: Option<bool>, width: usize) -> String {
    let fold = match open {
        Some(true) => "- ",
        Some(false) => "+ ",
        None => "  ",
    };
    let (indent, name) = match item {
        Item::Class(class) => {
            let count = class.pods.len();
            (0, format!("{} ({count})", class.name))
        }
        Item::Pod(pod) => (1, pod.label()),
        Item::Container(_, container) if container.kind == "app" => (2, container.name.clone()),
        Item::Container(_, container) => (2, format!("{} ({})", container.name, container.kind)),
    };
    let begin = " ".repeat(indent) + fold;
    let room = width.saturating_sub(begin.len());
    begin + &shorten(&name, room)
}

fn limit(figures: &Figures) -> (String, Tone) {
    let Some(limit) = figures.limit_bytes else { return (String::from("-"), Tone::Plain) };
    // Within a tenth of its limit.
    let near = figures.current_bytes.is_some_and(|current| current >= limit - limit / 10);
    (human_bytes(limit), if near { Tone::Warning } else { Tone::Plain })
}

fn percent(figures: &Figures) -> (String, Tone) {
    let Some(percent) = figures.percent_of_request() else { return (String::from("-"), Tone::Plain) };
    let tone = if percent > 100 { Tone::Warning } else { Tone::Plain };
    (if percent > 9_999 { String::from(">9999") } else { percent.to_string() }, tone)
}

fn growth(growth: Option<i64>) -> (String, Tone) {
    match growth {
        None => (String::from("-"), Tone::Plain),
        Some(0) => (String::from("0"), Tone::Plain),
        Some(growth) => {
            let sign = if growth < 0 { '-' } else { '+' };
            (format!("{sign}{}", human_bytes(growth.unsigned_abs())), Tone::Plain)
        }
    }
}

fn stall(percent: Option<f64>) -> (String, Tone) {
    let Some(percent) = percent else { return (String::from("-"), Tone::Plain) };
    (format!("{percent:.1}"), if percent >= 10.0 { Tone::Warning } else { Tone::Plain })
}

fn rank(pod: &Pod) -> (String, Tone) {
    match pod.rank {
        Some(1) => (String::from("1"), Tone::Alarm),
        Some(rank) => (rank.to_string(), Tone::Plain),
        None => (String::from("-"), Tone::Faint),
    }
}

/// Where the pod's spec is from, and how long ago it was read.
fn spec(pod: &Pod) -> (String, Tone) {
    match &pod.spec {
        Some(spec) => (spec.short(), if spec.is_live() { Tone::Plain } else { Tone::Warning }),
        None => (String::from("-"), Tone::Warning),
    }
}

/// The marks, one letter each, as the help explains them.
fn marks(pod: &Pod) -> (String, Tone) {
    let state = match pod.state {
        PodState::Active => None,
        PodState::Pending => Some('W'),
        PodState::Evicted => Some('E'),
        PodState::Rejected => Some('R'),
        PodState::Removed => Some('G'),
    };
    let mark = |is: bool, letter: char| is.then_some(letter);
    let marks: String = [
        mark(pod.critical, 'C'),
        mark(pod.protected, 'P'),
        mark(pod.stats_missing, '?'),
        state,
        // Excluded for another reason.
        mark(pod.excluded.is_some() && !pod.critical && !pod.protected && state.is_none(), 'X'),
    ]
    .into_iter()
    .flatten()
    .collect();
    let tone = if pod.stats_missing || state == Some('E') { Tone::Warning } else { Tone::Plain };
    (marks, tone)
}

/// A row's text: the name, then its columns, each aligned to the right.
pub(super) fn line(name: &str, name_width: usize, cells: impl Iterator<Item = (String, usize)>) -> String {
    let mut line = format!("{name:<name_width$}");
    for (text, width) in cells {
        line.push_str(&format!(" {text:>width$}"));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_first_weighs_least() {
        let titles =
            |width| columns(width, false).1.into_iter().map(Column::title).collect::<Vec<_>>().join(" ");
        assert_eq!(titles(120), "CURRENT ANON FILE SHMEM REQUEST LIMIT %REQ GROWTH/S STALL RANK MARK");
        assert_eq!(titles(80), "CURRENT REQUEST LIMIT %REQ GROWTH/S STALL RANK MARK");
        assert_eq!(titles(40), "CURRENT %REQ RANK");
        assert_eq!(titles(20), "CURRENT");
        assert_eq!(titles(5), "");
        let beside =
            |width| columns(width, true).1.into_iter().map(Column::title).collect::<Vec<_>>().join(" ");
        assert_eq!(beside(120), "CURRENT ANON FILE SHMEM REQUEST LIMIT %REQ GROWTH/S STALL RANK MARK SPEC");
        assert_eq!(beside(80), "CURRENT %REQ GROWTH/S STALL RANK MARK SPEC");
        assert_eq!(beside(60), "CURRENT %REQ GROWTH/S RANK MARK");
    }

    #[test]
    fn a_row_is_never_wider_than_the_screen() {
        for width in 0..200 {
            let (name, columns) = columns(width, width % 2 == 0);
            let whole = name + columns.iter().map(|column| column.width() + 1).sum::<usize>();
            assert!(whole <= width, "{width}: {whole}");
        }
    }
}
