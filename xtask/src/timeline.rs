//! When each step ran, how long, and which steps ran beside it.
use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// The steps of one command so far.
#[derive(Debug)]
pub(crate) struct Timeline {
    start: Instant,
    spans: Mutex<Vec<Span>>,
}

/// One step; times count from the start of the command.
#[derive(Clone, Debug)]
struct Span {
    name: String,
    from: Duration,
    to: Duration,
    tests: u64,
}

impl Span {
    /// Whether both ran at the same time.
    fn overlaps(&self, other: &Self) -> bool {
        self.from < other.to && other.from < self.to
    }
}

impl Timeline {
    pub(crate) fn start() -> Self {
        Self { start: Instant::now(), spans: Mutex::default() }
    }

    /// Runs a step, which returns its result and how many tests ran in it.
    pub(crate) fn step<T>(&self, name: &str, step: impl FnOnce() -> (T, u64)) -> T {
        let from = self.start.elapsed();
        let (result, tests) = step();
        let span = Span { name: name.to_owned(), from, to: self.start.elapsed(), tests };
        self.spans().push(span);
        result
    }

    /// How long the steps of that name took together.
    pub(crate) fn took(&self, name: &str) -> Duration {
        let spans = self.spans();
        spans.iter().filter(|span| span.name == name).map(|span| span.to.saturating_sub(span.from)).sum()
    }

    /// How long the command has taken so far.
    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// One line per step, in the order in which they started.
    pub(crate) fn table(&self) -> String {
        let mut spans = self.spans().clone();
        spans.sort_by_key(|span| span.from);
        table(&spans)
    }

    fn spans(&self) -> MutexGuard<'_, Vec<Span>> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn table(spans: &[Span]) -> String {
    let width = spans.iter().map(|span| span.name.len()).max().unwrap_or_default().max("step".len());
    let mut table =
        format!(" #  {:<width$} {:>6} {:>8} {:>6}  beside\n", "step", "from s", "took s", "tests");
    for (index, span) in spans.iter().enumerate() {
        let beside: Vec<String> = spans
            .iter()
            .enumerate()
            .filter(|(other, one)| *other != index && one.overlaps(span))
            .map(|(other, _)| (other + 1).to_string())
            .collect();
        let Span { name, from, to, tests } = span;
        let took = to.saturating_sub(*from);
        let mut line = format!(
            "{:>2}  {name:<width$} {:>6.0} {:>8.1} {tests:>6}  {}",
            index + 1,
            from.as_secs_f64(),
            took.as_secs_f64(),
            beside.join(" ")
        );
        line.truncate(line.trim_end().len());
        table.push_str(&line);
        table.push('\n');
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_says_what_ran_beside_what() {
        let span = |name: &str, from, to, tests| Span {
            name: name.to_owned(),
            from: Duration::from_secs(from),
            to: Duration::from_secs(to),
            tests,
        };
        let spans = [
            span("clippy", 0, 10, 1),
            span("kernel 6.1", 10, 40, 30),
            span("kernel 6.12", 10, 25, 20),
            span("kernel 7.2", 25, 60, 5),
        ];
        let expected = " #  step        from s   took s  tests  beside\n \
                         1  clippy           0     10.0      1\n \
                         2  kernel 6.1      10     30.0     30  3 4\n \
                         3  kernel 6.12     10     15.0     20  2\n \
                         4  kernel 7.2      25     35.0      5  2\n";
        assert_eq!(table(&spans), expected);
    }

    #[test]
    fn steps_are_listed_in_the_order_in_which_they_started() {
        let timeline = Timeline::start();
        let result = timeline.step("outer", || (timeline.step("inner", || (3, 0)), 7));
        assert_eq!(result, 3);
        let table = timeline.table();
        let (outer, inner) = (table.find("outer").unwrap(), table.find("inner").unwrap());
        assert!(outer < inner, "{table}");
    }
}
