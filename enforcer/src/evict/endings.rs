//! One thread that ends pods with the grace that they have, however many at once.

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

/// A pod that is to end, and what is done when that is over.
struct PendingEnd {
    candidate: Arc<Candidate>,
    grace: Duration,
    done: Done,
}

type Done = Box<dyn FnOnce(Result<Ending, EndError>) + Send>;

/// Ends pods beside everything else. When it is dropped, those that were asked to end are left to it.
pub struct Endings(Sender<PendingEnd>);

impl Endings {
    /// Starts the thread.
    pub fn start() -> io::Result<Self> {
        let (sender, wishes) = channel();
        thread::Builder::new().name(String::from("enforcer-ending")).spawn(move || run(&wishes))?;
        Ok(Self(sender))
    }

    /// Ends a pod as [`end`](super::end) does, and calls `done` on that thread when it is over.
    pub fn end(
        &self,
        candidate: Arc<Candidate>,
        grace: Duration,
        done: impl FnOnce(Result<Ending, EndError>) + Send + 'static,
    ) {
        // The thread ends only after this.
        drop(self.0.send(PendingEnd { candidate, grace, done: Box::new(done) }));
    }
}

impl fmt::Debug for Endings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Endings")
    }
}

fn run(wishes: &Receiver<PendingEnd>) {
    let mut courses: Vec<(GracefulEnd<Arc<Candidate>>, Option<Done>)> = Vec::new();
    loop {
        let wish = if courses.is_empty() {
            wishes.recv().map_err(|_error| RecvTimeoutError::Disconnected)
        } else {
            wishes.recv_timeout(LOOK)
        };
        match wish {
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
