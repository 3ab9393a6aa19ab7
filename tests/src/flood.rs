//! An action repeated in an endless loop.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
};

/// The name of the thread that does it.
pub const NAME: &str = "flood";

/// Repeats an action on a thread of its own, until this is dropped.
#[derive(Debug)]
pub struct Flood {
    is_over: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    /// Begins.
    pub fn start(mut step: impl FnMut() + Send + 'static) -> anyhow::Result<Self> {
        let (is_over, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let work = {
            let (is_over, done) = (Arc::clone(&is_over), Arc::clone(&done));
            move || {
                while !is_over.load(Ordering::Relaxed) {
                    step();
                    done.fetch_add(1, Ordering::Relaxed);
                }
            }
        };
        let thread = Some(thread::Builder::new().name(NAME.to_owned()).spawn(work)?);
        Ok(Self { is_over, done, thread })
    }

    /// How often it was done.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It panicked only where the scene has failed already.
            drop(thread.join());
        }
    }
}
