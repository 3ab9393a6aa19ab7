//! Reports the end of the process that runs the program before a kill.

use std::io;

use super::emit;
use crate::{evict, journal::Journal};

/// What is reported.
const WHAT: &str = "preKillHook";

/// Reports it once it has ended: it had rights that this daemon has given up, and so is not started again. Must be called
/// inside a tokio runtime, before the first eviction.
pub(super) fn watch(journal: &Journal) {
    tokio::spawn(report(evict::hook_process_ended(), journal.clone()));
}

async fn report(ended: impl Future<Output = io::Result<()>>, journal: Journal) {
    let message = match ended.await {
        Ok(()) => String::from(
            "the process that runs it has ended; no program is run before a kill until the daemon is restarted",
        ),
        Err(error) => {
            format!("the process that runs it cannot be watched, and its end is not reported: {error}")
        }
    };
    emit::degraded(&journal, WHAT, &message);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::{Batch, Filter};

    #[tokio::test]
    async fn the_end_is_reported_with_what_to_do() {
        let journal = Journal::new("n", "b");
        report(std::future::ready(Ok(())), journal.clone()).await;
        let Some(Batch::Records(records)) = journal.reader(None, Filter::default()).read() else { panic!() };
        let [record] = &records[..] else { panic!("{} events", records.len()) };
        let line = String::from_utf8_lossy(&record.line);
        assert!(
            line.contains("degraded.entered")
                && line.contains(r#""what":"preKillHook""#)
                && line.contains("until the daemon is restarted"),
            "{line}"
        );
    }
}
