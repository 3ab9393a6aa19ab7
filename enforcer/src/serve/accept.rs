//! Negotiation of the format of an answer (RFC 9110, 12.5.1).

use axum::http::{HeaderMap, header};

/// A format of the event stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Format {
    /// One line of JSON for each event.
    Ndjson,
    /// Server-sent events (HTML, 9.2).
    Sse,
}

/// Why no format fits.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum NoFormat {
    /// The header cannot be read.
    #[error("Accept: {0:?} is not a media range such as text/event-stream or text/*;q=0.5")]
    Malformed(String),
    /// It names none of the offered formats.
    #[error("Accept: the events come as application/x-ndjson or text/event-stream")]
    Unacceptable,
}

/// The offered formats, the preferred one first.
const OFFERS: &[Offer<Format>] = &[
    Offer { format: Format::Ndjson, main: "application", sub: "x-ndjson", parameters: &[] },
    Offer { format: Format::Sse, main: "text", sub: "event-stream", parameters: &[] },
];

impl Format {
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::Ndjson => "application/x-ndjson",
            Self::Sse => "text/event-stream",
        }
    }

    /// The format that the client prefers.
    pub(super) fn wanted(headers: &HeaderMap) -> Result<Self, NoFormat> {
        preferred(headers, OFFERS)?.ok_or(NoFormat::Unacceptable)
    }
}

/// A format on offer, with its media type.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer<F> {
    pub(super) format: F,
    pub(super) main: &'static str,
    pub(super) sub: &'static str,
    /// The parameters that it has, besides `charset=utf-8`; one without a value has any.
    pub(super) parameters: &'static [(&'static str, &'static str)],
}

impl<F> Offer<F> {
    fn has(&self, name: &str, value: &str) -> bool {
        let value = value.trim_matches('"');
        let is = |(own, its): &(&str, &str)| {
            name.eq_ignore_ascii_case(own) && (its.is_empty() || value.eq_ignore_ascii_case(its))
        };
        is(&("charset", "utf-8")) || self.parameters.iter().any(is)
    }
}

/// The format with the highest weight; `None` if none is acceptable. Ties go to the one that the client named more
/// exactly, then to the order of `offers`; without a preference it is the first.
pub(super) fn preferred<F: Copy>(headers: &HeaderMap, offers: &[Offer<F>]) -> Result<Option<F>, NoFormat> {
    let mut ranges = Vec::new();
    for value in headers.get_all(header::ACCEPT) {
        let malformed = |text: &[u8]| NoFormat::Malformed(String::from_utf8_lossy(text).into_owned());
        let text = value.to_str().map_err(|_error| malformed(value.as_bytes()))?;
        for range in split(text, ',').filter(|range| !range.is_empty()) {
            ranges.push(Range::parse(range).ok_or_else(|| malformed(range.as_bytes()))?);
        }
    }
    if ranges.is_empty() {
        return Ok(offers.first().map(|offer| offer.format));
    }
    let liked = offers.iter().rev().filter_map(|offer| {
        let exact = ranges.iter().filter_map(|range| Some((range.exactness(offer)?, range.permille)));
        // The most exact range counts, even if its weight is the lowest.
        let (exactness, permille) = exact.max()?;
        (permille > 0).then_some(((permille, exactness), offer.format))
    });
    Ok(liked.max_by_key(|(liked, _)| *liked).map(|(_, format)| format))
}

/// A media range and its weight, in thousandths.
#[derive(Debug)]
struct Range<'text> {
    main: &'text str,
    sub: &'text str,
    parameters: Vec<(&'text str, &'text str)>,
    permille: u16,
}

impl<'text> Range<'text> {
    fn parse(text: &'text str) -> Option<Self> {
        let mut parts = split(text, ';');
        let (main, sub) = parts.next()?.split_once('/')?;
        let is_range = is_token(main) && is_token(sub) && (main != "*" || sub == "*");
        let mut range = Self { main, sub, parameters: Vec::new(), permille: 1_000 };
        for part in parts {
            let (name, value) = part.split_once('=')?;
            if !is_token(name) {
                return None;
            }
            if name.eq_ignore_ascii_case("q") {
                range.permille = permille(value)?;
                // Parameters after the weight are not part of the media type.
                break;
            }
            range.parameters.push((name, value));
        }
        is_range.then_some(range)
    }

    /// How exactly it names a format; `None` if it does not match.
    fn exactness<F>(&self, offer: &Offer<F>) -> Option<u8> {
        let names = |range: &str, name: &str| range == "*" || range.eq_ignore_ascii_case(name);
        let fits = names(self.main, offer.main)
            && names(self.sub, offer.sub)
            && self.parameters.iter().all(|(name, value)| offer.has(name, value));
        let exactness = match (self.main, self.sub) {
            ("*", _) => 0,
            (_, "*") => 1,
            _ if self.parameters.is_empty() => 2,
            _ => 3,
        };
        fits.then_some(exactness)
    }
}

/// Parses 0 to 1 with at most three decimals, in thousandths.
fn permille(text: &str) -> Option<u16> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    if decimals.len() > 3 || !decimals.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let thousandths: u16 = format!("{decimals:0<3}").parse().ok()?;
    match whole {
        "0" => Some(thousandths),
        "1" if thousandths == 0 => Some(1_000),
        _ => None,
    }
}

fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

/// Splits at separators outside of quotes, and trims blanks.
fn split(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let mut is_quoted = false;
    let mut is_escaped = false;
    let parts = text.split(move |character| {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' if is_quoted => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            _ => return character == separator && !is_quoted,
        }
        false
    });
    parts.map(|part| part.trim_matches([' ', '\t']))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn wanted(accept: &[&str]) -> Result<Format, NoFormat> {
        let mut headers = HeaderMap::new();
        for value in accept {
            headers.append(header::ACCEPT, HeaderValue::from_str(value).unwrap());
        }
        Format::wanted(&headers)
    }

    #[test]
    fn the_form_is_the_one_that_is_liked_best() {
        use Format::{Ndjson, Sse};
        for (accept, format) in [
            ("", Ndjson),
            ("*/*", Ndjson),
            ("text/event-stream", Sse),
            ("TEXT/Event-Stream", Sse),
            ("text/*", Sse),
            ("application/*", Ndjson),
            ("text/event-stream, application/x-ndjson", Ndjson),
            ("text/event-stream, application/x-ndjson;q=0.9", Sse),
            ("text/event-stream;q=0.001, */*;q=0", Sse),
            ("text/event-stream;q=0, */*", Ndjson),
            ("text/event-stream, */*", Sse),
            ("text/event-stream;q=0.5, */*;q=0.6", Ndjson),
            ("text/*;q=0.9, text/event-stream;q=0.2, application/x-ndjson;q=0.3", Ndjson),
            ("text/event-stream; charset=utf-8", Sse),
            ("text/event-stream; charset=\"UTF-8\" ; q=1.000", Sse),
            ("text/html;a=\"x,y/z\\\"\";q=0.3 , , text/event-stream;q=0.2", Sse),
            ("text/event-stream;q=1;ext=1", Sse),
        ] {
            assert_eq!(wanted(&[accept]), Ok(format), "{accept}");
        }
        assert_eq!(wanted(&[]), Ok(Ndjson));
        assert_eq!(wanted(&["application/x-ndjson;q=0.1", "text/event-stream"]), Ok(Sse));
    }

    #[test]
    fn what_is_not_there_and_what_cannot_be_read_are_reported() {
        for accept in [
            "application/json",
            "text/event-stream;q=0",
            "*/*;q=0.0",
            "text/event-stream;charset=latin1",
            "image/*",
        ] {
            assert_eq!(wanted(&[accept]), Err(NoFormat::Unacceptable), "{accept}");
        }
        for accept in [
            "text",
            "*/x",
            "/",
            "text/event-stream;q=2",
            "text/event-stream;q=0.1234",
            "a/b;q=",
            "a/b;q=-1",
            "a/b;c",
            "a b/c",
        ] {
            assert!(matches!(wanted(&[accept]), Err(NoFormat::Malformed(_))), "{accept}");
        }
    }
}
