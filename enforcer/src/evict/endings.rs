//! One thread that ends any number of pods at once, each with its grace period.

use std::{
    fmt, io,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use super::{
    candidate::Candidate,
    graceful::{EndError, Ending, GracefulEnd, LOOK},
};

/// A pod to end, and the callback for its end.
struct PendingEnd {
    candidate: Arc<Candidate>,
    grace: Duration,
    done: Done,
}

type Done = Box<dyn FnOnce(Result<Ending, EndError>) + Send>;

/// Ends pods in the background. Dropping it leaves pods that got SIGTERM to end without it.
pub struct Endings(Sender<PendingEnd>);

impl Endings {
    /// Starts the thread.
    pub fn start() -> io::Result<Self> {
        let (sender, requests) = channel();
        thread::Builder::new().name(String::from("enforcer-ending")).spawn(move || run(&requests))?;
        Ok(Self(sender))
    }

    /// Ends a pod as [`end`](super::end) does, then calls `done` on that thread.
    pub fn end(
        &self,
        candidate: Arc<Candidate>,
        grace: Duration,
        done: impl FnOnce(Result<Ending, EndError>) + Send + 'static,
    ) {
        // The thread ends only after this sender is dropped.
        drop(self.0.send(PendingEnd { candidate, grace, done: Box::new(done) }));
    }
}

impl fmt::Debug for Endings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Endings")
    }
}

fn run(requests: &Receiver<PendingEnd>) {
    let mut courses: Vec<(GracefulEnd<Arc<Candidate>>, Option<Done>)> = Vec::new();
    loop {
        let request = if courses.is_empty() {
            requests.recv().map_err(|_error| RecvTimeoutError::Disconnected)
        } else {
            requests.recv_timeout(LOOK)
        };
        match request {
            Ok(PendingEnd { candidate, grace, done }) => {
                match GracefulEnd::begin(candidate, grace, &mut |_| ()) {
                    Ok(course) => courses.push((course, Some(done))),
                    Err(error) => done(Err(error)),
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let now = Instant::now();
        courses.retain_mut(|(course, done)| match course.step(now, &|| None, &mut |_| ()) {
            None => true,
            Some(ended) => {
                if let Some(done) = done.take() {
                    done(ended);
                }
                false
            }
        });
    }
}
