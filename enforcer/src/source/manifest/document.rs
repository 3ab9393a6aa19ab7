//! Documents of a YAML stream.

/// One document of a file.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct Document<'text> {
    /// Its text, with its markers; it may be invalid UTF-8.
    pub(super) text: &'text [u8],
    /// The line of the file that its text starts on, from 1.
    pub(super) first_line: u64,
}

/// Splits a stream into its non-empty documents.
///
/// YAML forbids a line that starts with the marker `---` or `...` inside any scalar. So the lines alone show the
/// markers, and one invalid document leaves the others intact.
pub(super) fn split(text: &[u8]) -> Vec<Document<'_>> {
    let mut documents = Vec::new();
    let mut start = 0;
    let mut first_line = 1;
    let mut content = Content::Nothing;
    let mut offset = 0;
    for (line_number, line) in (1..).zip(text.split_inclusive(|byte| *byte == b'\n')) {
        let begins = is_marker(line, b"---");
        // Directives and comments before a marker belong to the document that it begins.
        if begins && content != Content::Nothing {
            push(&mut documents, text, start..offset, first_line, content);
            (start, first_line) = (offset, line_number);
            content = Content::Nothing;
        }
        offset += line.len();
        content = content.max(Content::of(line, begins));
        if is_marker(line, b"...") {
            push(&mut documents, text, start..offset, first_line, content);
            (start, first_line) = (offset, line_number + 1);
            content = Content::Nothing;
        }
    }
    push(&mut documents, text, start..offset, first_line, content);
    documents
}

/// What the lines of a document contained so far.
#[derive(Clone, Copy, Eq, Ord, PartialEq, PartialOrd)]
enum Content {
    /// Comments, directives, empty lines.
    Nothing,
    /// The marker `---` with nothing after it.
    Marker,
    /// Something to parse.
    Text,
}

impl Content {
    fn of(line: &[u8], begins: bool) -> Self {
        let inner = if begins { line.get(3..).unwrap_or_default() } else { line };
        let inner = inner.trim_ascii();
        let is_text = !(inner.is_empty()
            || inner.starts_with(b"#")
            || line.starts_with(b"%")
            || is_marker(line, b"..."));
        match (is_text, begins) {
            (true, _) => Self::Text,
            (false, true) => Self::Marker,
            (false, false) => Self::Nothing,
        }
    }
}

fn push<'text>(
    documents: &mut Vec<Document<'text>>,
    text: &'text [u8],
    range: std::ops::Range<usize>,
    first_line: u64,
    content: Content,
) {
    if content == Content::Text {
        documents.push(Document { text: text.get(range).unwrap_or_default(), first_line });
    }
}

fn is_marker(line: &[u8], marker: &[u8]) -> bool {
    line.strip_prefix(marker)
        .is_some_and(|rest| rest.first().is_none_or(|byte| matches!(byte, b' ' | b'\t' | b'\r' | b'\n')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_part_documents() {
        let text = "# first\n%YAML 1.2\n---\na: |\n  --- x\n---\n# nothing\n---\nb: 1\n...\n# c\n---\n--- c\n--d: 1\n";
        let documents: Vec<_> = split(text.as_bytes())
            .into_iter()
            .map(|part| (part.first_line, str::from_utf8(part.text).unwrap()))
            .collect();
        assert_eq!(
            documents,
            [
                (1, "# first\n%YAML 1.2\n---\na: |\n  --- x\n"),
                (8, "---\nb: 1\n...\n"),
                (13, "--- c\n--d: 1\n"),
            ]
        );
    }

    #[test]
    fn nothing_is_no_document() {
        for text in ["", "\n\n", "# only\n", "---\n---\n...\n", "---"] {
            assert_eq!(split(text.as_bytes()), [], "{text:?}");
        }
    }
}
