//! An answer over the present connection, or over another: one that is half open shows it only by silence.

use std::{pin::pin, time::Duration};

use tokio::time::timeout;

/// How long the present connection may be silent before another is opened beside it. To open one takes a busy node longer
/// than a busy server takes to answer.
const PATIENCE: Duration = Duration::from_millis(250);

/// The answer over the present connection, or what is found over another, whichever is there first. `present` has no answer
/// if its connection ends; `other` opens another, and is begun only once that is needed. What is given up is dropped, and so is
/// closed: nothing else was asked over it. Waits for ever if `present` is silent and no other can be opened.
pub(super) async fn answering<C, E>(
    present: impl Future<Output = Option<C>>,
    other: impl Future<Output = Result<C, E>>,
) -> Result<C, E> {
    let mut present = pin!(present);
    match timeout(PATIENCE, &mut present).await {
        Ok(Some(answer)) => return Ok(answer),
        Ok(None) => return other.await,
        Err(_elapsed) => {}
    }
    let mut other = pin!(other);
    tokio::select! {
        biased;
        answer = &mut present => match answer {
            Some(answer) => Ok(answer),
            None => other.await,
        },
        found = &mut other => match found {
            Ok(found) => Ok(found),
            // A server that takes no more connections may still answer over this one.
            Err(error) => present.await.ok_or(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::time::{Instant, sleep};

    use super::*;

    type Chosen = Result<&'static str, &'static str>;

    async fn after<T>(ms: u64, output: T) -> T {
        sleep(Duration::from_millis(ms)).await;
        output
    }

    /// Which one is chosen, and after how many milliseconds of the paused clock.
    async fn chosen(
        present: impl Future<Output = Option<&'static str>>,
        other: impl Future<Output = Chosen>,
    ) -> (Chosen, u128) {
        let begin = Instant::now();
        let chosen = answering(present, other).await;
        (chosen, begin.elapsed().as_millis())
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_answers_in_time_is_used_and_no_other_is_opened() {
        let never = async { panic!("another is opened") };
        assert_eq!(chosen(after(249, Some("present")), never).await, (Ok("present"), 249));
    }

    #[tokio::test(start_paused = true)]
    async fn beside_one_that_is_silent_another_is_opened_and_used() {
        assert_eq!(chosen(pending(), after(40, Ok("other"))).await, (Ok("other"), 290));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_has_ended_is_replaced_at_once() {
        assert_eq!(chosen(ready(None), after(40, Ok("other"))).await, (Ok("other"), 40));
        assert_eq!(chosen(after(300, None), after(100, Ok("other"))).await, (Ok("other"), 350));
    }

    #[tokio::test(start_paused = true)]
    async fn of_one_that_answers_late_and_another_the_first_is_used() {
        assert_eq!(
            chosen(after(400, Some("present")), after(1_000, Ok("other"))).await,
            (Ok("present"), 400)
        );
        assert_eq!(chosen(after(400, Some("present")), after(100, Ok("other"))).await, (Ok("other"), 350));
    }

    #[tokio::test(start_paused = true)]
    async fn without_another_the_silent_one_is_waited_for() {
        let refused = || after(10, Err("refused"));
        assert_eq!(chosen(after(400, Some("present")), refused()).await, (Ok("present"), 400));
        assert_eq!(chosen(after(400, None), refused()).await, (Err("refused"), 400));
        let waits = timeout(Duration::from_mins(1), chosen(pending(), refused())).await;
        assert!(waits.is_err(), "the caller knows for how long: {waits:?}");
        assert_eq!(chosen(ready(None), refused()).await, (Err("refused"), 10));
    }
}
