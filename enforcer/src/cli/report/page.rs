//! A report as a page of HTML that stands alone: it loads nothing, runs no script, and all its text is escaped.

mod chart;
mod html;

use enforcer_events::eviction::Ranked;

use self::{
    chart::chart,
    html::{table, text},
};
use super::{
    document::{Answer, Eviction, Report},
    fold::MOST_ITEMS,
    recorded::Recorded,
    sections::{dead, freed, lost, outcome, sections, summary, why},
    words::{milliseconds, seconds},
};
use crate::cli::{
    columns::{Head, Table},
    ranked::signed,
    render::human_bytes,
};

/// The page may use its own style, and nothing else.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

const STYLE: &str = include_str!("page/style.css");

/// How many evictions are open when the page is.
const OPEN: usize = 3;

/// The page. `recorded` has the recordings of the newest evictions.
pub(super) fn page(report: &Report, recorded: &Recorded) -> String {
    let node = text(report.node.as_deref().unwrap_or("unknown"));
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Memory of node {node}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <h1>Memory of node {node}</h1>\n<p>{}</p>\n",
        text(&summary(report))
    );
    let sections = sections(report, MOST_ITEMS);
    let mut links = vec![("losses", "What is not known")];
    let ids: Vec<_> = (1..=sections.len()).map(|number| format!("section-{number}")).collect();
    links.extend(ids.iter().zip(&sections).map(|(id, section)| (id.as_str(), section.title)));
    if !report.evictions.items.is_empty() {
        links.push(("cases", "Eviction by eviction"));
    }
    page.push_str("<nav aria-label=\"Sections\"><ul>\n");
    for (id, title) in &links {
        page.push_str(&format!("<li><a href=\"#{id}\">{}</a></li>\n", text(title)));
    }
    page.push_str("</ul></nav>\n");
    losses(&mut page, report);
    for (id, section) in ids.iter().zip(&sections) {
        page.push_str(&format!(
            "<section aria-labelledby=\"{id}\">\n<h2 id=\"{id}\">{}</h2>\n",
            text(section.title)
        ));
        if !section.notes.is_empty() {
            page.push_str("<dl>\n");
            for (label, note) in &section.notes {
                page.push_str(&field(label, note));
            }
            page.push_str("</dl>\n");
        }
        for listed in &section.tables {
            page.push_str(&table(listed.caption, &listed.table));
            if listed.more > 0 {
                page.push_str(&format!("<p class=\"note\">and {} more</p>\n", listed.more));
            }
            if !listed.note.is_empty() {
                page.push_str(&format!("<p class=\"note\">{}</p>\n", text(listed.note)));
            }
        }
        page.push_str("</section>\n");
    }
    cases(&mut page, report, recorded);
    page.push_str("</main>\n</body>\n</html>\n");
    page
}

fn losses(page: &mut String, report: &Report) {
    page.push_str(
        "<section class=\"losses\" aria-labelledby=\"losses\">\n<h2 id=\"losses\">What is not known</h2>\n",
    );
    if report.losses.is_empty() {
        page.push_str("<p>The journal covers all of the range, and nothing of it is missing.</p>\n");
    } else {
        page.push_str("<ul>\n");
        for loss in &report.losses {
            let time = loss.time.as_deref().map(|time| format!("{}: ", seconds(time))).unwrap_or_default();
            page.push_str(&format!("<li>{}{}</li>\n", text(&time), text(&lost(loss))));
        }
        page.push_str("</ul>\n");
    }
    page.push_str("</section>\n");
}

fn field(label: &str, value: &str) -> String {
    format!("<dt>{}</dt><dd>{}</dd>\n", text(label), text(value))
}

/// Each eviction with its ranking and its course.
fn cases(page: &mut String, report: &Report, recorded: &Recorded) {
    let evictions = &report.evictions;
    if evictions.items.is_empty() {
        return;
    }
    page.push_str("<section aria-labelledby=\"cases\">\n<h2 id=\"cases\">Eviction by eviction</h2>\n");
    for (number, eviction) in evictions.items.iter().enumerate() {
        let open = if number < OPEN { " open" } else { "" };
        let heading = format!(
            "{} {}: {} ({})",
            seconds(&eviction.time),
            eviction.victim(),
            outcome(eviction),
            why(eviction)
        );
        page.push_str(&format!("<details{open}>\n<summary>{}</summary>\n<dl>\n", text(&heading)));
        for (label, value) in facts(eviction) {
            page.push_str(&field(label, &value));
        }
        page.push_str("</dl>\n");
        if !eviction.ranking.is_empty() {
            page.push_str(&table("The ranking at the decision", &ranking(&eviction.ranking)));
            let more = eviction.ranked_count.saturating_sub(eviction.ranking.len());
            if more > 0 {
                page.push_str(&format!("<p class=\"note\">and {more} more pods</p>\n"));
            }
        }
        page.push_str(&steps(eviction));
        if let Some(others) = &eviction.alternatives {
            for (who, answer) in [("kubelet", &others.kubelet), ("kernel alone", &others.kernel)] {
                page.push_str(&alternative(who, answer));
            }
        }
        match recorded.get(&eviction.id) {
            Some(Ok(course)) => page.push_str(&chart(course, &format!("chart-{number}"))),
            Some(Err(why)) => {
                page.push_str(&format!(
                    "<p class=\"note\">How memory fell is not known: {}.</p>\n",
                    text(why)
                ));
            }
            None => {
                page.push_str("<p class=\"note\">Recordings of the newest evictions alone are drawn.</p>\n");
            }
        }
        page.push_str("</details>\n");
    }
    if evictions.more > 0 {
        page.push_str(&format!("<p class=\"note\">and {} more evictions before</p>\n", evictions.more));
    }
    page.push_str("</section>\n");
}

/// What another would have done, with what that assumes.
fn alternative(who: &str, answer: &Answer) -> String {
    let mut html = format!("<p>The {who} instead: {}.</p>\n", text(&answer.sentence));
    if !answer.assumptions.is_empty() {
        html.push_str("<p class=\"note\">This assumes:</p>\n<ul class=\"note\">\n");
        for assumption in &answer.assumptions {
            html.push_str(&format!("<li>{}</li>\n", text(assumption)));
        }
        html.push_str("</ul>\n");
    }
    html
}

/// What is known of an eviction, each with its label.
fn facts(eviction: &Eviction) -> Vec<(&'static str, String)> {
    let mut facts = vec![("eviction", eviction.id.clone())];
    let mut add = |label, value: Option<String>| facts.extend(value.map(|value| (label, value)));
    add("workload", eviction.workload.clone());
    add("QoS class", eviction.qos_class.clone());
    add("order", eviction.order.clone());
    let amounts = match (eviction.observed_bytes, eviction.threshold_bytes) {
        (Some(observed), Some(threshold)) => Some((human_bytes(observed), human_bytes(threshold))),
        _ => eviction
            .observed_count
            .zip(eviction.threshold_count)
            .map(|(observed, threshold)| (observed.to_string(), threshold.to_string())),
    };
    let trigger = eviction.signal.as_ref().zip(amounts);
    add(
        "trigger",
        trigger.map(|(signal, (observed, threshold))| format!("{signal} {observed} < {threshold}")),
    );
    add("decided by", eviction.decided_by.clone());
    add("used", eviction.usage_bytes.map(human_bytes));
    add("request", eviction.request_bytes.map(human_bytes));
    add("predicted", eviction.predicted_freed_bytes.map(human_bytes));
    if !eviction.is_only_decided() {
        add("freed", Some(freed(eviction)));
        add("dead after", Some(dead(eviction)));
    }
    add("failed", eviction.reason.clone());
    if !eviction.decision_kept {
        add("not known", Some(String::from("the decision is not in the journal")));
    }
    for excluded in &eviction.excluded {
        let pod = format!("{}/{}: {}", excluded.namespace, excluded.name, excluded.reason);
        add("left out", Some(pod));
    }
    facts
}

/// The steps that the journal has, from the crossing.
fn steps(eviction: &Eviction) -> String {
    let steps: Vec<_> = [
        (eviction.crossed_to_decided_ms, "decided"),
        (eviction.crossed_to_signalled_ms, "killed"),
        (eviction.crossed_to_dead_ms, "dead"),
        (eviction.crossed_to_memory_back_ms, "its memory was back"),
    ]
    .into_iter()
    .filter_map(|(ms, what)| Some((ms?, what)))
    .collect();
    if steps.is_empty() {
        return String::new();
    }
    let mut list = String::from("<p>From the crossing:</p>\n<ol class=\"timeline\">\n");
    for (ms, what) in steps {
        list.push_str(&format!("<li><span>+{}</span> {what}</li>\n", milliseconds(ms)));
    }
    list.push_str("</ol>\n");
    list
}

fn ranking(rows: &[Ranked]) -> Table {
    let mut table = Table::new([
        Head::amount("#", 2),
        Head::name("POD"),
        Head::word("EXCEEDS", 7),
        Head::amount("PRIORITY", 8),
        Head::amount("ABOVE", 7),
        Head::amount("USAGE", 7),
        Head::amount("REQUEST", 7),
        Head::amount("TASKS", 5),
    ]);
    let or_unknown = |shown: Option<String>| shown.unwrap_or_else(|| String::from("?"));
    for row in rows {
        let exceeds = row.exceeds_request.map(|exceeds| String::from(if exceeds { "yes" } else { "no" }));
        table.row([
            row.rank.to_string(),
            format!("{}/{}", row.namespace, row.name),
            or_unknown(exceeds),
            row.priority.to_string(),
            or_unknown(row.above_request_bytes.map(signed)),
            or_unknown(row.usage_bytes.map(human_bytes)),
            or_unknown(row.request_bytes.map(human_bytes)),
            or_unknown(row.process_count.map(|count| count.to_string())),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{
        super::{
            alternatives,
            fold::tests::{HOSTILE, everything, hostile},
            recorded::{self, Course, Mark, Sample, tests::recording_of},
        },
        *,
    };

    fn with_a_course(report: &Report) -> String {
        let sample = |ms, available_bytes| Sample { ms, available_bytes };
        let course = Course {
            samples: vec![sample(0, 900 << 20), sample(1_000, 199 << 20)],
            thresholds: vec![(true, 200 << 20)],
            marks: vec![Mark { ms: 500, what: format!("{HOSTILE} was chosen") }],
            more_marks: 0,
            has_gaps: false,
            alternatives: Err(String::from(HOSTILE)),
        };
        let ids = report.evictions.items.iter().map(|eviction| eviction.id.clone());
        with(report, &ids.map(|id| (id, Ok(course.clone()))).collect())
    }

    /// The page with what others would have done, as the verb prints it.
    fn with(report: &Report, recorded: &Recorded) -> String {
        let mut report = report.clone();
        alternatives::add(&mut report.evictions.items, recorded);
        page(&report, recorded)
    }

    #[test]
    fn names_of_pods_are_never_markup() {
        for page in [with_a_course(&hostile()), with(&hostile(), &failed(&hostile()))] {
            for markup in ["<script", "<img", "<b>", "\"'>", "onerror=\""] {
                assert!(!page.contains(markup), "{markup}: {page}");
            }
            assert!(page.contains("The kubelet instead: unknown: &lt;script&gt;"), "{page}");
            assert!(!page.chars().any(|one| one.is_control() && one != '\n'), "{page:?}");
        }
    }

    /// Whatever a recording names its pods and processes.
    #[test]
    fn names_of_a_recording_are_never_markup_nor_obeyed() {
        let obeyed = ['\u{202e}', '\u{2066}', '\u{200b}', '\u{feff}', '\u{85}', '\r', '\t'];
        let name = format!("{HOSTILE}{}", String::from_iter(obeyed));
        let comm = "<b>\u{202e}\u{1b}[m\r\"'&";
        let course = recorded::of(&recording_of(&name, &[comm]), ulid::Ulid(1)).unwrap();
        let others = course.alternatives.clone().unwrap();
        assert_eq!((others.kubelet.outcome, others.kernel.outcome), ("evicts", "kills"), "{others:?}");
        let report = everything();
        let ids = report.evictions.items.iter().map(|eviction| eviction.id.clone());
        let page = with(&report, &ids.map(|id| (id, Ok(course.clone()))).collect());
        for markup in ["<script", "<img", "<b>", "\"'>", "onerror=\""] {
            assert!(!page.contains(markup), "{markup}: {page}");
        }
        assert!(
            page.contains("instead: kills &lt;b&gt;") && page.contains("(pid 1) of default/&lt;script"),
            "{page}"
        );
        assert!(!page.contains(obeyed), "{page:?}");
        assert!(!page.chars().any(|one| one.is_control() && one != '\n'), "{page:?}");
    }

    /// No recording could be read, for a reason that names a pod.
    fn failed(report: &Report) -> Recorded {
        let ids = report.evictions.items.iter().map(|eviction| eviction.id.clone());
        ids.map(|id| (id, Err(String::from(HOSTILE)))).collect()
    }

    #[test]
    fn the_page_refers_to_nothing_outside_of_it_and_runs_nothing() {
        let page = with_a_course(&everything());
        assert!(
            page.contains(&format!("<meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">"))
        );
        let without_policy = page.replace("http-equiv", "");
        for reference in
            ["http", "src=", "url(", "@import", "//", "<script", "<link", "<iframe", "style=\"", "xlink"]
        {
            assert!(!without_policy.contains(reference), "{reference}: {page}");
        }
        let links = page.split("href=\"").skip(1).map(|rest| rest.split('"').next().unwrap());
        for link in links {
            let id = link.strip_prefix('#').unwrap();
            assert!(page.contains(&format!(" id=\"{id}\"")), "{link} leads nowhere");
        }
    }

    #[test]
    fn a_screen_reader_has_headings_captions_and_titles_and_each_id_is_one() {
        let page = with_a_course(&everything());
        assert_eq!(page.matches("<h1>").count(), 1);
        assert_eq!(page.matches("<table>").count(), page.matches("<caption>").count());
        assert_eq!(page.matches("<section").count(), page.matches("<h2 ").count());
        assert_eq!(page.matches("<svg ").count(), page.matches("role=\"img\"").count());
        assert_eq!(page.matches("<svg ").count(), everything().evictions.items.len());
        for tag in ["section", "details", "summary", "table", "div", "dl", "ol", "ul", "svg", "g", "figure"] {
            let opened =
                page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
            assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
        }
        let ids: Vec<_> = page.split(" id=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
        let different: std::collections::BTreeSet<_> = ids.iter().collect();
        assert_eq!(ids.len(), different.len(), "{ids:?}");
    }

    #[test]
    fn what_is_not_known_is_said_before_everything_else() {
        let page = with_a_course(&everything());
        let at = |text: &str| page.find(text).unwrap_or_else(|| panic!("{text} is not in {page}"));
        assert!(at("id=\"losses\"") < at("id=\"section-1\""));
        assert!(at("are no longer kept") < at("id=\"section-1\""));
    }

    /// WCAG's relative luminance of a colour.
    fn luminance(colour: &str) -> f64 {
        let channel = |at: usize| {
            let value = f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * channel(0) + 0.7152 * channel(2) + 0.0722 * channel(4)
    }

    #[test]
    fn every_text_has_enough_contrast_in_light_dark_and_print() {
        let schemes: Vec<BTreeMap<&str, &str>> = STYLE
            .split(":root {")
            .skip(1)
            .map(|block| {
                let block = block.split('}').next().unwrap();
                let pairs =
                    block.split(';').filter_map(|pair| pair.trim().strip_prefix("--")?.split_once(": #"));
                pairs.collect()
            })
            .collect();
        assert_eq!(schemes.len(), 3);
        for scheme in schemes {
            for name in ["text", "quiet", "memory", "hard", "soft", "mark"] {
                let (one, page) = (luminance(scheme[name]), luminance(scheme["page"]));
                let contrast = (one.max(page) + 0.05) / (one.min(page) + 0.05);
                assert!(contrast >= 4.5, "{name}: {contrast:.2}");
            }
        }
    }
}
