/// The longest text that is compared: no name that is meant comes near it.
const MAX_BYTES: usize = 64;

/// What was meant, if something is near: one in three characters may be wrong.
pub(super) fn nearest<'a>(wrong: &str, right: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if wrong.len() > MAX_BYTES {
        return None;
    }
    let distances = right.map(|right| (strsim::osa_distance(wrong, right), right));
    let (distance, right) = distances.min_by_key(|(distance, _)| *distance)?;
    (distance * 3 <= right.len().max(3)).then_some(right)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn a_slip_is_understood_and_nonsense_is_not() {
        let names = ["follow", "after", "type"];
        for (wrong, right) in
            [("folow", Some("follow")), ("afetr", Some("after")), ("limit", None), ("", None)]
        {
            assert_eq!(nearest(wrong, names.into_iter()), right, "{wrong}");
        }
        assert_eq!(nearest(&"a".repeat(1_000), names.into_iter()), None);
    }
}
