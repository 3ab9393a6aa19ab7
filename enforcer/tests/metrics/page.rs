//! A page of metrics, as a person reads it.

use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug)]
pub(crate) struct Page {
    /// Each family's kind.
    pub(crate) families: BTreeMap<String, String>,
    rows: BTreeMap<String, f64>,
}

impl Page {
    pub(crate) fn of(text: &str) -> Self {
        assert!(text.ends_with("\n# EOF\n"), "{text}");
        let mut page = Self { families: BTreeMap::new(), rows: BTreeMap::new() };
        for line in text.lines() {
            if let Some(family) = line.strip_prefix("# TYPE ") {
                let (name, kind) = family.split_once(' ').unwrap();
                page.families.insert(name.to_owned(), kind.to_owned());
            } else if !line.starts_with('#') {
                let (row, value) = line.rsplit_once(' ').unwrap();
                page.rows.insert(row.to_owned(), value.parse().unwrap());
            }
        }
        page
    }

    pub(crate) fn get(&self, row: &str) -> f64 {
        *self.rows.get(row).unwrap_or_else(|| panic!("no row {row}"))
    }

    pub(crate) fn find(&self, start: &str) -> impl Iterator<Item = (&String, &f64)> {
        self.rows.iter().filter(move |(row, _)| row.starts_with(start))
    }

    /// The names that rows of these families have, whether there are any or not.
    pub(crate) fn names(&self) -> BTreeSet<String> {
        let suffixes = |kind: &str| -> &[&str] {
            match kind {
                "counter" => &["_total"],
                "info" => &["_info"],
                "histogram" => &["_bucket", "_sum", "_count"],
                _ => &[""],
            }
        };
        self.families
            .iter()
            .flat_map(|(name, kind)| suffixes(kind).iter().map(move |suffix| format!("{name}{suffix}")))
            .collect()
    }
}
