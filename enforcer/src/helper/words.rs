//! What the daemon takes as a word from a helper process, which is not trusted.

/// The longest text for people, in characters.
pub(crate) const MOST_CHARACTERS: usize = 500;

/// The longest id or uid. Runtimes use 64 characters, Kubernetes 36.
pub(crate) const MOST_ID_BYTES: usize = 128;

/// The longest name of a pod, a namespace or a container: a DNS subdomain.
pub(crate) const MOST_NAME_BYTES: usize = 253;

/// A text for people without control characters, cut.
pub(crate) fn plain(text: &str) -> String {
    text.chars().filter(|character| !character.is_control()).take(MOST_CHARACTERS).collect()
}

/// Whether a text can be an id.
pub(crate) fn is_id(text: &str) -> bool {
    is_word(text, MOST_ID_BYTES)
}

/// Whether a text can be a name.
pub(crate) fn is_name(text: &str) -> bool {
    is_word(text, MOST_NAME_BYTES)
}

/// Whether a text may name a cgroup, an event's subject or a log line's pod. Kubernetes allows less.
fn is_word(text: &str, most_bytes: usize) -> bool {
    (1..=most_bytes).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'/' | b'"' | b'\\'))
        && !matches!(text, "." | "..")
}
