//! The query of `GET /v1/events`: refused with a plain message, or read as what it says.

use enforcer::serve::Query;

use super::text::check_message;

/// `name=value` joined by `&`, as they are after percent-decoding.
pub fn check(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let pairs: Vec<(String, String)> = text
        .split('&')
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    match Query::parse(pairs.clone()) {
        Err(message) => check_message(&message),
        Ok(query) => {
            assert_eq!(Query::parse(pairs.clone()).as_ref(), Ok(&query));
            // What is asked for is in the query.
            for name in [&query.filter.namespace, &query.filter.pod].into_iter().flatten() {
                assert!(text.contains(name.as_str()), "{name:?} was not asked for");
                assert!(name.bytes().all(|byte| byte.is_ascii_graphic()), "{name:?}");
            }
            assert!(query.filter.kinds.len() <= pairs.len());
        }
    }
}
