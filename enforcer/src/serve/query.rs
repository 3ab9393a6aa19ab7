//! Reads the parameters of `GET /v1/events`; its errors say how to fix the request.

use std::str::FromStr;

use ulid::Ulid;

use crate::{
    journal::{Cursor, Filter, moment, named_type},
    nearest::nearest,
};

/// The parameters.
const NAMES: [&str; 7] = ["after", "follow", "type", "namespace", "pod", "since", "until"];

/// The longest names in Kubernetes, in bytes.
const NAMESPACE_BYTES: usize = 63;
const POD_BYTES: usize = 253;

/// The longest parameter or value, in bytes: errors quote them. A pod with its namespace fits.
const MOST_BYTES: usize = 320;

/// The query of `GET /v1/events`.
#[derive(Debug, Default, PartialEq)]
pub struct Query {
    /// Only events after this one.
    pub after: Option<Cursor>,
    /// Whether to wait for new events.
    pub follow: Option<bool>,
    /// The wanted events.
    pub filter: Filter,
}

impl Query {
    /// Parses a query string. A parameter that is unknown, invalid or given twice is an error that says how to fix it.
    pub fn parse(pairs: Vec<(String, String)>) -> Result<Self, String> {
        let mut parsed = Self::default();
        let mut seen: Vec<String> = Vec::new();
        for (name, value) in pairs {
            if let Some(long) = [&name, &value].into_iter().find(|text| text.len() > MOST_BYTES) {
                let begin: String = long.chars().take(32).collect();
                return Err(format!(
                    "{begin:?}…: it is {} bytes long, and can be at most {MOST_BYTES}",
                    long.len()
                ));
            }
            if !NAMES.contains(&name.as_str()) {
                let hint = nearest(&name, NAMES);
                let hint = hint.map_or_else(String::new, |name| format!("did you mean {name}? "));
                return Err(format!("{name:?} is not a parameter: {hint}There are {}", NAMES.join(", ")));
            }
            if name != "type" && seen.contains(&name) {
                return Err(format!("{name}: it is given twice, and may be given once"));
            }
            parsed.take(&name, &value).map_err(|error| format!("{name}: {error}"))?;
            seen.push(name);
        }
        if parsed.follow == Some(true) && parsed.filter.until_ms.is_some() {
            return Err(String::from(
                "until: a stream that is followed has no end: leave out follow or until",
            ));
        }
        Ok(parsed)
    }

    fn take(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            // `?type=` asks for no type in particular.
            _ if value.is_empty() && name != "follow" => {}
            "after" => self.after = Some(cursor(value)?),
            "follow" => self.follow = Some(truth(value)?),
            "type" => {
                let kind = named_type(value)?;
                // The same type may be given twice.
                if !self.filter.kinds.contains(&kind) {
                    self.filter.kinds.push(kind);
                }
            }
            "namespace" => self.filter.namespace = Some(part(value, NAMESPACE_BYTES)?),
            "pod" => {
                let pod = match value.split_once('/') {
                    Some((namespace, pod)) => {
                        format!("{}/{}", part(namespace, NAMESPACE_BYTES)?, part(pod, POD_BYTES)?)
                    }
                    None => part(value, POD_BYTES)?,
                };
                self.filter.pod = Some(pod);
            }
            _ => {
                let time = moment(value, jiff::Timestamp::now())?.as_millisecond();
                let bound =
                    if name == "since" { &mut self.filter.since_ms } else { &mut self.filter.until_ms };
                *bound = Some(time);
            }
        }
        Ok(())
    }
}

/// Parses a cursor, of the query or of a header.
pub(super) fn cursor(text: &str) -> Result<Cursor, String> {
    let cursor: Cursor = text.parse().map_err(|error: <Cursor as FromStr>::Err| error.to_string())?;
    if cursor.epoch.parse::<Ulid>().is_err() {
        let Cursor { epoch, .. } = cursor;
        return Err(format!(
            "{text:?} is not a cursor: {epoch:?} is not a log epoch, which has 26 letters and digits"
        ));
    }
    Ok(cursor)
}

fn truth(value: &str) -> Result<bool, String> {
    match value {
        "true" | "1" | "" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err(format!("{value:?} is not true or false")),
    }
}

/// Checks that the value can be a name.
fn part(value: &str, most_bytes: usize) -> Result<String, String> {
    let is_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    if value.is_empty() || value.len() > most_bytes || !value.bytes().all(is_part) {
        return Err(format!(
            "{value:?} is not a name: lower-case letters, digits, - and ., at most {most_bytes} of them"
        ));
    }
    Ok(value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::EventType;

    fn parse(pairs: &[(&str, &str)]) -> Result<Query, String> {
        Query::parse(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn a_query_is_read() {
        let query = parse(&[
            ("type", "oom.detected"),
            ("type", "dev.enforcer.pod.added"),
            ("type", "oom.detected"),
            ("namespace", "a"),
            ("follow", "true"),
            ("pod", ""),
            ("after", "01J8Z3NDEKTSV4RRFFQ69G5FAV:00000000000000000042"),
        ])
        .unwrap();
        assert_eq!(query.filter.kinds, [EventType::OomDetected, EventType::PodAdded]);
        assert_eq!(query.filter.namespace.as_deref(), Some("a"));
        assert_eq!(query.filter.pod, None);
        assert_eq!(query.follow, Some(true));
        assert_eq!(query.after.unwrap().sequence, 42);
        let bounded = parse(&[("since", "2h"), ("until", "2026-01-31T12:00:00Z")]).unwrap().filter;
        assert_eq!(bounded.until_ms, Some(1_769_860_800_000));
        let age_ms = jiff::Timestamp::now().as_millisecond() - bounded.since_ms.unwrap();
        assert!((7_200_000..7_260_000).contains(&age_ms), "{age_ms}");
        assert_eq!(parse(&[("follow", "")]).unwrap().follow, Some(true));
        assert_eq!(parse(&[]).unwrap(), Query::default());
    }

    #[test]
    fn a_query_says_what_is_wrong_with_it() {
        for (pairs, reported) in [
            (
                &[("type", "oom.incidnet")][..],
                "type: there is no event type \"oom.incidnet\": did you mean oom.incident?",
            ),
            (&[("type", "oom")], "oom.detected or oom.incident or oom.averted"),
            (&[("type", "oom.*")], "oom.detected or oom.incident"),
            (&[("type", "x")], "it is one of pressure.rising, "),
            (&[("after", "12")], "after: \"12\" is not a cursor"),
            (&[("after", ":12")], "is not a cursor"),
            (&[("after", "01J8Z3NDEKTSV4RRFFQ69G5FAV:+12")], "is not a cursor"),
            (&[("after", "01J8Z3NDEKTSV4RRFFQ69G5FAV:18446744073709551616")], "is not a cursor"),
            (&[("after", "yesterday:12")], "\"yesterday\" is not a log epoch"),
            (&[("follow", "1"), ("until", "5m")], "a stream that is followed has no end"),
            (&[("until", "2w")], "until: \"2w\" is not a time: write an age such as 5m"),
            (&[("follow", "maybe")], "follow: \"maybe\" is not true or false"),
            (&[("since", "yesterday")], "since: \"yesterday\" is not a time"),
            (
                &[("folow", "1")],
                "\"folow\" is not a parameter: did you mean follow? There are after, follow, type, namespace, pod, since, until",
            ),
            (&[("limit", "3")], "\"limit\" is not a parameter: There"),
            (&[("pod", "a"), ("pod", "b")], "pod: it is given twice"),
            (
                &[("since", &"2026".repeat(200))],
                "\"20262026202620262026202620262026\"…: it is 800 bytes long",
            ),
            (&[("follow", "1"), ("follow", "1")], "follow: it is given twice"),
            (&[("pod", "a/b/c")], "pod: \"b/c\" is not a name"),
            (&[("namespace", "\u{fffd}")], "namespace: "),
            (&[("namespace", "Default")], "namespace: \"Default\" is not a name"),
        ] {
            let error = parse(pairs).unwrap_err();
            assert!(error.contains(reported), "{error}");
        }
    }
}
