//! What an event is to say, compared with what it says.
use serde_json::Value;

/// Asserts that everything which is expected is there. Keys that are not named may hold anything; a list is compared
/// item by item, and must be as long.
///
/// # Panics
///
/// Where something is missing or different, with each place.
#[track_caller]
pub fn assert_holds(told: &Value, expected: &Value) {
    let differences = differences("", told, expected);
    assert!(differences.is_empty(), "{}\nin {told:#}", differences.join("\n"));
}

fn differences(at: &str, told: &Value, expected: &Value) -> Vec<String> {
    match (told, expected) {
        (Value::Object(told), Value::Object(expected)) => expected
            .iter()
            .flat_map(|(key, expected)| {
                let at = format!("{at}.{key}");
                match told.get(key) {
                    Some(told) => differences(&at, told, expected),
                    // What is absent is asked for with null.
                    None if expected.is_null() => Vec::new(),
                    None => vec![format!("{at} is missing, expected is {expected}")],
                }
            })
            .collect(),
        (Value::Array(told), Value::Array(expected)) if told.len() == expected.len() => {
            let pairs = told.iter().zip(expected).enumerate();
            pairs
                .flat_map(|(i, (told, expected))| differences(&format!("{at}[{i}]"), told, expected))
                .collect()
        }
        _ if told == expected => Vec::new(),
        _ => vec![format!("{at} is {told}, expected is {expected}")],
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_difference_anywhere_is_found() {
        let told = json!({"scope": "pod", "victims": [{"pid": 7, "comm": "a"}, {"pid": 8}]});
        let count = |expected: &Value| differences("", &told, expected).len();
        assert_eq!(count(&json!({"scope": "pod", "victims": [{"pid": 7}, {}], "trigger": null})), 0);
        assert_eq!(count(&json!({"scope": "node"})), 1);
        assert_eq!(count(&json!({"scope": null})), 1);
        assert_eq!(count(&json!({"victims": [{"pid": 7}]})), 1);
        assert_eq!(count(&json!({"victims": [{"pid": 8}, {"pid": 7}]})), 2);
        assert_eq!(count(&json!({"limitOwner": "/"})), 1);
    }
}
