//! One table of all facilities that the daemon can use: their rungs, the rung of this host, what is lost there, and how
//! to get it.
//!
//! [`ladder`] is a pure rule over facts. Events about losses and `enforcer doctor` both come from it.
use serde::{Deserialize, Serialize};

use super::{Choice, Facts, HostFacts, Lost};
use crate::sense::Failure;

mod rows;
mod rules;

pub use self::rows::CGROUP2;
use self::{
    rows::{CONFINEMENT, HOST, Row},
    rules::{Seen, Stand},
};

/// How well a facility is available here.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// On the best of its rungs.
    Full,
    /// On a lower one.
    Lesser,
    /// Not at all.
    Missing,
    /// Unknown.
    Unknown,
}

/// One way to provide a facility.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rung {
    /// What is used.
    pub uses: String,
    /// What an operator loses on this rung; `None` on the best.
    pub loses: Option<String>,
}

/// A facility that the daemon can use, and its availability here.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Facility {
    /// Its name, one word.
    pub name: String,
    /// How well it is available.
    pub state: State,
    /// What was found.
    pub found: String,
    /// What is used; `None` if unknown.
    pub uses: Option<String>,
    /// What an operator loses by that.
    pub lost: Option<String>,
    /// How to get what is lost.
    pub remedy: Option<String>,
    /// All rungs, from the best to the last.
    pub rungs: Vec<Rung>,
}

impl Facility {
    fn new(row: &Row, seen: &Seen<'_>) -> Self {
        let facility = Self {
            name: row.name.to_owned(),
            state: State::Unknown,
            found: String::new(),
            uses: None,
            lost: None,
            remedy: None,
            rungs: row
                .rungs
                .iter()
                .map(|(uses, loses)| Rung {
                    uses: (*uses).to_owned(),
                    loses: (!loses.is_empty()).then(|| (*loses).to_owned()),
                })
                .collect(),
        };
        match (row.stand)(seen) {
            Stand::On(rung, found) => facility.on(row, rung, found),
            Stand::Unknown => Self { found: row.unknown.to_owned(), ..facility },
        }
    }

    /// The facility on that rung.
    fn on(self, row: &Row, rung: usize, found: String) -> Self {
        let lowest = self.rungs.len().saturating_sub(1);
        let state = match rung {
            0 => State::Full,
            rung if rung >= lowest && row.last_is_nothing => State::Missing,
            _ => State::Lesser,
        };
        let here = self.rungs.get(rung.min(lowest)).cloned();
        let (uses, loses) = here.map_or((None, None), |here| (Some(here.uses), here.loses));
        let remedy = (rung > 0).then(|| row.remedy.to_owned());
        Self { state, found, uses, lost: loses, remedy, ..self }
    }

    /// A loss without a row of its own.
    fn lost(name: &str, found: String, lost: &str) -> Self {
        Self {
            name: name.to_owned(),
            state: State::Lesser,
            found,
            uses: None,
            lost: Some(lost.to_owned()),
            remedy: None,
            rungs: Vec::new(),
        }
    }
}

impl Lost {
    /// How to get what is missing, if the table has a remedy.
    #[must_use]
    pub fn remedy(&self) -> Option<&'static str> {
        rows::of_word(self.what).map(|row| row.remedy)
    }

    /// Cause, consequence and remedy, in one line.
    #[must_use]
    pub fn message(&self) -> String {
        let Self { what: _, why, consequence } = self;
        match self.remedy() {
            Some(remedy) => format!("{why}: {consequence}; to get it: {remedy}"),
            None => format!("{why}: {consequence}"),
        }
    }
}

/// The table for these facts and the choice based on them.
#[must_use]
pub fn ladder(facts: &Facts, host: &HostFacts, choice: &Choice) -> Vec<Facility> {
    let seen = Seen { facts, host, choice };
    let rows = rows::all().map(|row| Facility::new(row, &seen));
    let others = choice
        .lost
        .iter()
        .filter(|lost| rows::of_word(lost.what).is_none())
        .map(|lost| Facility::lost(lost.what, lost.why.clone(), lost.consequence));
    rows.chain(others).collect()
}

/// What this host lacks, apart from tracing.
#[must_use]
pub fn host_lost(host: &HostFacts) -> Vec<Lost> {
    let (facts, choice) = (Facts::default(), super::choose(&Facts::default()));
    let seen = Seen { facts: &facts, host, choice: &choice };
    let lost = |row: &Row| match (row.stand)(&seen) {
        Stand::On(rung, why) if rung > 0 => {
            row.rungs.get(rung).map(|(_, consequence)| Lost { what: row.name, why, consequence })
        }
        Stand::On(..) | Stand::Unknown => None,
    };
    HOST.iter().chain(CONFINEMENT).filter_map(lost).collect()
}

/// The table after loading, if some programs could not be attached or some files not pinned. If nothing could be
/// loaded at all, `error` has the reason.
#[must_use]
pub fn without(
    table: Vec<Facility>,
    attached: &[&str],
    failed: &[Failure],
    unpinned: &[Lost],
    error: Option<&str>,
) -> Vec<Facility> {
    let mut table: Vec<_> = table
        .into_iter()
        .map(|facility| worse(facility, attached, failed, error))
        .map(|facility| match (rows::of_name(&facility.name), unpinned.first()) {
            (Some(row), Some(lost)) if row.name == rows::PINS => {
                facility.on(row, row.rungs.len().saturating_sub(1), lost.why.clone())
            }
            _ => facility,
        })
        .collect();
    let placed = |failure: &Failure| rows::of_program(failure.program).is_some();
    table.extend(
        failed
            .iter()
            .filter(|failure| !placed(failure))
            .map(|failure| Facility::lost(failure.program, refused(failure), failure.consequence)),
    );
    table
}

fn worse(facility: Facility, attached: &[&str], failed: &[Failure], error: Option<&str>) -> Facility {
    let Some(row) = rows::of_name(&facility.name) else { return facility };
    let last = row.rungs.len().saturating_sub(1);
    match error {
        Some(error) if row.needs_programs => return facility.on(row, last, error.to_owned()),
        Some(_) => return facility,
        None => {}
    }
    let Some(failure) = failed.iter().find(|failure| row.programs.contains(&failure.program)) else {
        return facility;
    };
    // If there is one program for each rung, they are listed in the order of the rungs.
    let rung = row.programs.iter().position(|program| attached.contains(program));
    let rung = rung.filter(|_| row.program_a_rung).unwrap_or(last);
    facility.on(row, rung, refused(failure))
}

fn refused(failure: &Failure) -> String {
    format!("{} at {}: {}", failure.program, failure.hook, failure.error)
}

#[cfg(test)]
mod tests;
