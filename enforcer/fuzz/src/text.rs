//! Lines and messages.

/// The longest message that a wrong input may bring, in bytes.
const MOST_MESSAGE_BYTES: usize = 4 << 10;

/// How many lines a text has, however it ends them; where one is cut off, the next still has a number.
pub(crate) fn line_count(bytes: &[u8]) -> u64 {
    let breaks = bytes.iter().filter(|byte| matches!(byte, b'\n' | b'\r')).count();
    u64::try_from(breaks).unwrap_or(u64::MAX).saturating_add(1)
}

/// A message is one line of bounded length, whatever the input holds.
pub(crate) fn check_message(message: &str) {
    assert!(!message.is_empty(), "an error says nothing");
    assert!(message.len() <= MOST_MESSAGE_BYTES, "a message of {} bytes", message.len());
    assert!(!message.chars().any(char::is_control), "control characters in {message:?}");
}
