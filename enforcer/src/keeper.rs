//! Writes state files on a thread of its own: no caller waits for the disk.

use std::{
    io,
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// The next content of a file.
#[derive(Debug)]
struct Queue<T> {
    next: Option<T>,
    is_closing: bool,
}

/// Keeps the last content that it was given. Dropping it waits until that is written.
#[derive(Debug)]
pub(crate) struct Keeper<T> {
    queue: Arc<(Mutex<Queue<T>>, Condvar)>,
    writer: Option<JoinHandle<()>>,
}

impl<T: Send + 'static> Keeper<T> {
    /// Starts the thread. `write` is called with a content, at most once in `pause`.
    pub(crate) fn start(
        name: &str,
        pause: Duration,
        write: impl FnMut(T) + Send + 'static,
    ) -> io::Result<Self> {
        let queue = Arc::new((Mutex::new(Queue { next: None, is_closing: false }), Condvar::new()));
        let shared = Arc::clone(&queue);
        let thread = std::thread::Builder::new().name(name.to_owned());
        let writer = thread.spawn(move || run(&shared, pause, write))?;
        Ok(Self { queue, writer: Some(writer) })
    }

    /// Keeps this from now on, instead of what was given before.
    pub(crate) fn keep(&self, content: T) {
        let (queue, waker) = &*self.queue;
        queue.lock().unwrap_or_else(PoisonError::into_inner).next = Some(content);
        waker.notify_one();
    }
}

impl<T> Drop for Keeper<T> {
    fn drop(&mut self) {
        let (queue, waker) = &*self.queue;
        queue.lock().unwrap_or_else(PoisonError::into_inner).is_closing = true;
        waker.notify_one();
        if let Some(thread) = self.writer.take() {
            crate::threads::join(thread);
        }
    }
}

fn run<T>((queue, waker): &(Mutex<Queue<T>>, Condvar), pause: Duration, mut write: impl FnMut(T)) {
    let mut written: Option<Instant> = None;
    loop {
        let content = {
            let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
            loop {
                let rest = written.map_or(Duration::ZERO, |written| pause.saturating_sub(written.elapsed()));
                if (rest.is_zero() || queue.is_closing)
                    && let Some(next) = queue.next.take()
                {
                    break next;
                }
                if queue.is_closing {
                    return;
                }
                queue = if queue.next.is_some() {
                    waker.wait_timeout(queue, rest).unwrap_or_else(PoisonError::into_inner).0
                } else {
                    waker.wait(queue).unwrap_or_else(PoisonError::into_inner)
                };
            }
        };
        write(content);
        written = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn the_last_content_is_written_and_waits_for_no_pause_at_the_end() {
        let (sender, written) = mpsc::channel();
        let keeper = Keeper::start("test", Duration::from_hours(1), move |content| {
            sender.send(content).unwrap();
        });
        let keeper = keeper.unwrap();
        keeper.keep(1);
        assert_eq!(written.recv(), Ok(1));
        keeper.keep(2);
        keeper.keep(3);
        assert!(written.try_recv().is_err(), "within the pause");
        drop(keeper);
        assert_eq!(written.iter().collect::<Vec<_>>(), [3]);
    }
}
