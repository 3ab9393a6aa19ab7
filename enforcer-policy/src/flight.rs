//! The format of the flight recorder: what is kept of the eviction engine's inputs, its layout in a file, and its
//! replay.
//!
//! The engine is deterministic, so its inputs say everything: [`Record`]s hold each input with the engine's actions,
//! and now and then the whole state, from which a replay can begin. [`Recording`] reads a file of them, [`replay`] runs
//! them again and reports where the engine would act differently, and [`under`] runs them with other settings. [`alternatives`]
//! says what the kubelet and the kernel would have done in their place.

mod alternatives;
mod codec;
mod counterfactual;
mod file;
mod latest;
mod processes;
mod record;
mod replay;
#[cfg(test)]
mod tests;

pub use self::{
    alternatives::{
        Alternatives, Assumption, AtLeastOne, Episode, Here, Kernel, KernelVictim, Kill, Kubelet, MayExhaust,
        OwnEnd, OwnEviction, Pass, Span, Unknown, alternatives, instead_of,
    },
    codec::{encode, encode_bytes, split_bytes},
    counterfactual::{Counterfactual, NoVictim, OtherDecision, under},
    file::{
        Damage, FORMAT_VERSION, Item, MOST_RECORD_BYTES, Member, NotARecording, Origin, Recording, Writer,
        shape,
    },
    latest::latest,
    processes::{MOST_COMM_BYTES, MOST_PROCESSES, Process, Processes, processes_shape},
    record::{Given, Record, RecordRef, Step, StepRef},
    replay::{Account, Difference, Happening, Moment, replay},
};
