//! A report on a screen: first what is not known, then the sections.

use super::{
    document::Report,
    sections::{lost, sections, summary},
};
use crate::cli::page::{Page, Style};

/// How many rows a table on a screen has; documents and pages have more.
const LISTED: usize = 10;

/// With names as wide as fits into that many columns.
pub(super) fn table(report: &Report, columns: Option<usize>) -> String {
    let mut page = Page::new(Style::Screen(columns));
    page.paragraph(&summary(report));
    for loss in &report.losses {
        page.field("not known", &lost(loss));
    }
    for section in sections(report, LISTED) {
        page.gap();
        page.line(&section.title.to_uppercase());
        for (label, note) in &section.notes {
            page.field(label, note);
        }
        for (number, listed) in section.tables.iter().enumerate() {
            if number > 0 {
                page.gap();
            }
            page.table(&listed.table);
            let more = (listed.more > 0).then(|| format!("and {} more", listed.more));
            let note = (!listed.note.is_empty()).then(|| listed.note.to_owned());
            let parts: Vec<_> = more.into_iter().chain(note).collect();
            if !parts.is_empty() {
                page.line(&parts.join("; "));
            }
        }
    }
    page.finish()
}

#[cfg(test)]
mod tests {
    use unicode_width::UnicodeWidthStr as _;

    use super::{
        super::fold::{Fold, Range, tests::everything},
        *,
    };

    #[test]
    fn a_report_on_80_columns_cuts_only_names() {
        let shown = table(&everything(), Some(80));
        assert!(shown.lines().all(|line| line.width() <= 80), "{shown}");
        insta::assert_snapshot!(shown);
    }

    #[test]
    fn a_report_on_200_columns_has_whole_names() {
        let shown = table(&everything(), Some(200));
        assert!(!shown.contains('…'), "{shown}");
        insta::assert_snapshot!(shown);
    }

    #[test]
    fn without_an_event_it_says_what_is_not_known_and_no_more() {
        let shown = table(&Fold::new(Range { from_ms: 0, to_ms: 1 }).finish(None), Some(80));
        assert!(shown.contains("not known  the journal holds no event"), "{shown}");
        assert!(!shown.contains("EVICTIONS"), "{shown}");
    }
}
