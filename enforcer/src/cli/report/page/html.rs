//! Untrusted text in HTML, and tables.

use crate::cli::{columns::Table, render};

/// A text as it is shown, in elements and in quoted attributes: it is never markup, and has no characters that are
/// obeyed or hidden.
pub(super) fn text(text: &str) -> String {
    render::escape(text).chars().fold(String::new(), |mut safe, character| {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            _ => safe.push(character),
        }
        safe
    })
}

/// A table with its caption, which a keyboard can scroll where it is too wide.
pub(super) fn table(caption: &str, table: &Table) -> String {
    let caption = text(caption);
    let mut html = format!(
        "<div class=\"wide\" role=\"region\" aria-label=\"{caption}\" tabindex=\"0\">\n<table>\n<caption>{caption}</caption>\n\
         <thead><tr>"
    );
    let heads: Vec<_> = table.heads().collect();
    for (title, is_right, _) in &heads {
        html.push_str(&format!("<th scope=\"col\"{}>{}</th>", class(*is_right), text(title)));
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for row in table.rows() {
        html.push_str("<tr>");
        for (cell, (_, is_right, is_name)) in row.iter().zip(&heads) {
            let cell = text(cell);
            if *is_name {
                html.push_str(&format!("<th scope=\"row\">{cell}</th>"));
            } else {
                html.push_str(&format!("<td{}>{cell}</td>", class(*is_right)));
            }
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody>\n</table>\n</div>\n");
    html
}

fn class(is_right: bool) -> &'static str {
    if is_right { " class=\"amount\"" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::columns::Head;

    #[test]
    fn a_name_is_no_markup_in_an_element_or_an_attribute() {
        assert_eq!(text("a<b>&\"'"), "a&lt;b&gt;&amp;&quot;&#39;");
        let hostile = text("a\u{1b}[2J\u{202e}\n\u{200b}");
        assert!(!hostile.contains(['\u{1b}', '\u{202e}', '\n', '\u{200b}']), "{hostile:?}");
        let mut shown = Table::new([Head::name("POD"), Head::amount("USAGE", 5)]);
        shown.row([String::from("</td><script>"), String::from("\"1")]);
        let html = table("a \"caption\"", &shown);
        assert!(html.contains("<th scope=\"row\">&lt;/td&gt;&lt;script&gt;</th>"), "{html}");
        assert!(html.contains("<td class=\"amount\">&quot;1</td>"), "{html}");
        assert!(html.contains("aria-label=\"a &quot;caption&quot;\""), "{html}");
    }
}
