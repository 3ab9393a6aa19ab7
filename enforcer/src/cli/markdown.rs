//! Untrusted text in Markdown: shown as it is, and never markup.

use super::render;

/// Escapes what Markdown, HTML in it, or a ticket system would take for more than text: markup, links and mentions.
/// Controls are escaped as on a terminal.
pub(super) fn escape(text: &str) -> String {
    let safe = render::escape(text).chars().fold(String::new(), |mut safe, character| {
        match character {
            // A mention would call somebody, and has no backslash escape.
            '@' => safe.push_str("&#64;"),
            '\\' | '`' | '*' | '_' | '{' | '}' | '[' | ']' | '<' | '>' | '(' | ')' | '#' | '!' | '|'
            | '~' | '&' | '$' => {
                safe.push('\\');
                safe.push(character);
            }
            _ => safe.push(character),
        }
        safe
    });
    // Nor has what becomes a link without markup.
    safe.replace("://", "&#58;//").replace("www.", "www&#46;")
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn a_name_is_neither_markup_nor_a_link_nor_a_mention() {
        assert_eq!(escape("default/web-1.2"), "default/web-1.2");
        assert_eq!(escape("[a](http://b) @all"), "\\[a\\]\\(http&#58;//b\\) &#64;all");
        assert_eq!(escape("<img>|`x`"), "\\<img\\>\\|\\`x\\`");
        let hostile = escape("a\u{1b}[2J\nb\u{202e}");
        assert!(!hostile.contains(['\u{1b}', '\n', '\u{202e}']), "{hostile:?}");
    }
}
