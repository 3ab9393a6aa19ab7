//! Compares an event with what is expected of it.
use serde_json::Value;

/// Asserts that every expected value is present. Keys that are not named may hold anything; a list is compared item by
/// item, and must have the same length.
///
/// # Panics
///
/// If a value is missing or different, with each place.
#[track_caller]
pub fn assert_holds(reported: &Value, expected: &Value) {
    let differences = differences("", reported, expected);
    assert!(differences.is_empty(), "{}\nin {reported:#}", differences.join("\n"));
}

fn differences(at: &str, reported: &Value, expected: &Value) -> Vec<String> {
    match (reported, expected) {
        (Value::Object(reported), Value::Object(expected)) => expected
            .iter()
            .flat_map(|(key, expected)| {
                let at = format!("{at}.{key}");
                match reported.get(key) {
                    Some(reported) => differences(&at, reported, expected),
                    // An expected null means absent.
                    None if expected.is_null() => Vec::new(),
                    None => vec![format!("{at} is missing, expected is {expected}")],
                }
            })
            .collect(),
        (Value::Array(reported), Value::Array(expected)) if reported.len() == expected.len() => {
            let pairs = reported.iter().zip(expected).enumerate();
            pairs
                .flat_map(|(i, (reported, expected))| differences(&format!("{at}[{i}]"), reported, expected))
                .collect()
        }
        _ if reported == expected => Vec::new(),
        _ => vec![format!("{at} is {reported}, expected is {expected}")],
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_difference_anywhere_is_found() {
        let reported = json!({"scope": "pod", "victims": [{"pid": 7, "comm": "a"}, {"pid": 8}]});
        let count = |expected: &Value| differences("", &reported, expected).len();
        assert_eq!(count(&json!({"scope": "pod", "victims": [{"pid": 7}, {}], "trigger": null})), 0);
        assert_eq!(count(&json!({"scope": "node"})), 1);
        assert_eq!(count(&json!({"scope": null})), 1);
        assert_eq!(count(&json!({"victims": [{"pid": 7}]})), 1);
        assert_eq!(count(&json!({"victims": [{"pid": 8}, {"pid": 7}]})), 2);
        assert_eq!(count(&json!({"limitOwner": "/"})), 1);
    }
}
