//! The flight recorder's language: what is kept of all that the eviction engine learns, how it lies in a file, and how it
//! is run again.
//!
//! The engine is deterministic, so its inputs are the whole truth: [`Record`]s hold each input with what the engine made
//! of it, and now and then its whole state, from which a replay can begin. [`Recording`] reads a file of them,
//! [`replay`] runs them again and says where the engine would act otherwise than it did, and [`under`] runs them with other
//! settings.

mod counterfactual;
mod file;
mod latest;
mod record;
mod replay;
#[cfg(test)]
mod tests;

pub use self::{
    counterfactual::{Counterfactual, NoVictim, OtherDecision, under},
    file::{
        Damage, FORMAT_VERSION, Item, MOST_RECORD_BYTES, Member, NotARecording, Origin, Recording, Writer,
        shape,
    },
    latest::latest,
    record::{Given, Record, Step, put_called, put_candidates, put_key, put_lost, put_settings, put_step},
    replay::{Account, Difference, Happening, Moment, replay},
};
