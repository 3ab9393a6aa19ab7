//! The programs at work, and what they report.
use std::time::{Duration, Instant};

use enforcer::sense::{
    Choice, Counters, EdgeRing, Exit, Facts, KernelRing, Mark, MarkProgram, Programs, Record, RingStats,
    choose, drain,
};
use tokio::{runtime::Runtime, sync::mpsc, time::timeout};

/// What this kernel's facts come to.
pub(crate) fn choice() -> Choice {
    choose(&Facts::gather())
}

/// What they come to if the kernel did not tell its types.
pub(crate) fn without_btf() -> Choice {
    let facts = Facts {
        btf: Some(false),
        mark_argument: None,
        out_of_memory: None,
        resolved: None,
        ..Facts::gather()
    };
    choose(&facts)
}

/// Attached programs and a task that drains their ring. Dropping it detaches them.
pub(crate) struct Tracer {
    runtime: Runtime,
    records: mpsc::Receiver<Record>,
    counters: Counters,
    edges: EdgeRing,
    _programs: Programs,
}

impl Tracer {
    pub(crate) fn start() -> Self {
        let choice = choice();
        assert_eq!(choice.mark, Some(MarkProgram::Task));
        Self::with(&choice)
    }

    pub(crate) fn with(choice: &Choice) -> Self {
        let attached = Programs::load(choice).unwrap();
        assert!(attached.failed.is_empty(), "{:#?}", attached.failed);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (sink, records) = mpsc::channel(64);
        let events = attached.events;
        runtime.spawn(async move {
            let stats = RingStats::default();
            drain(KernelRing::register(events).unwrap(), sink, &stats).await.unwrap();
        });
        Self {
            runtime,
            records,
            counters: attached.counters,
            edges: attached.edges,
            _programs: attached.programs,
        }
    }

    fn next(&mut self, end: Instant) -> Record {
        let left = end.saturating_duration_since(Instant::now());
        let next = self.runtime.block_on(async { timeout(left, self.records.recv()).await });
        next.expect("no record in time").expect("the ring is no longer read")
    }

    /// The next victim and its exit.
    pub(crate) fn victim(&mut self, patience: Duration) -> (Mark, Exit) {
        let end = Instant::now() + patience;
        let mut marked = None;
        loop {
            match (self.next(end), marked.take()) {
                (Record::Mark(mark), None) => marked = Some(mark),
                (Record::Exit(exit), Some(mark)) => return (mark, exit),
                (Record::MemoryBack(_) | Record::OomOver(_), before) => marked = before,
                (record, marked) => panic!("{record:?} after {marked:?}"),
            }
        }
    }

    /// As many marks, whatever exits come between them.
    pub(crate) fn marks(&mut self, count: usize, patience: Duration) -> Vec<Mark> {
        let end = Instant::now() + patience;
        let mut marks = Vec::new();
        while marks.len() < count {
            if let Record::Mark(mark) = self.next(end) {
                marks.push(mark);
            }
        }
        marks
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(crate) fn edges(&mut self) -> &mut EdgeRing {
        &mut self.edges
    }

    pub(crate) fn assert_nothing_lost(&self) {
        let drops = self.counters.drops().unwrap();
        assert!(drops.iter().all(|(_, count)| *count == 0), "{drops:?}");
    }
}
