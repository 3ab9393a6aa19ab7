//! Reads credentials on a thread of its own: the disk that they are on may hang, and who asks must not hang with it.

use std::{
    collections::BTreeMap,
    fmt, io,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    time::{Duration, Instant},
};

use tokio::{sync::oneshot, time::timeout};

/// How long reading may take. The request of a soft eviction, which has 5 s in all, must fail within that.
const PATIENCE: Duration = Duration::from_secs(4);

/// The same where the last credentials are known: they are used instead.
const PATIENCE_WITH_LAST: Duration = Duration::from_secs(1);

/// How many may wait for the thread. It is full only if that hangs.
const WAITING: usize = 8;

/// The disk of the credentials hangs, and none are known.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("credentials unreadable: their files cannot be read within {} s, as their disk hangs", PATIENCE.as_secs())]
pub struct CredentialsHang;

/// A handle for reading credentials, from any async runtime. `P` says which, `C` are the credentials, and `E` says why there
/// are none. The thread ends with the handle, once nothing hangs.
pub struct CredentialsReader<P, C, E> {
    jobs: mpsc::SyncSender<Job<P, C, E>>,
    known: Arc<Mutex<Known<P, C>>>,
}

/// What is to be read, and where it goes.
type Job<P, C, E> = (P, oneshot::Sender<Result<C, E>>);

struct Known<P, C> {
    /// The credentials of the last reading that ended, if it gave some.
    last: BTreeMap<P, C>,
    /// Since when the thread reads.
    reading_since: Option<Instant>,
}

impl<P, C, E> fmt::Debug for CredentialsReader<P, C, E> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("CredentialsReader").finish_non_exhaustive()
    }
}

impl<P, C, E> CredentialsReader<P, C, E>
where
    P: Copy + Ord + Send + 'static,
    C: Clone + Send + 'static,
    E: Send + 'static,
{
    /// Starts the thread, which reads with `read`.
    pub fn start(mut read: impl FnMut(P) -> Result<C, E> + Send + 'static) -> io::Result<Self> {
        let (jobs, asked) = mpsc::sync_channel::<Job<P, C, E>>(WAITING);
        let known = Arc::new(Mutex::new(Known { last: BTreeMap::new(), reading_since: None }));
        let of_thread = Arc::clone(&known);
        std::thread::Builder::new().name(String::from("credentials")).spawn(move || {
            while let Ok((which, reply)) = asked.recv() {
                // Who has asked no longer waits.
                if reply.is_closed() {
                    continue;
                }
                lock(&of_thread).reading_since = Some(Instant::now());
                let found = read(which);
                let mut known = lock(&of_thread);
                known.reading_since = None;
                match &found {
                    Ok(found) => known.last.insert(which, found.clone()),
                    // What was taken away is used no more.
                    Err(_) => known.last.remove(&which),
                };
                drop(known);
                drop(reply.send(found));
            }
        })?;
        Ok(Self { jobs, known })
    }

    /// The credentials as they are now; while they cannot be read, the last ones. Fails within 4 s if there are none. Safe to
    /// cancel.
    pub async fn read(&self, which: P) -> Result<Result<C, E>, CredentialsHang> {
        let (last, hangs) = {
            let known = lock(&self.known);
            let hangs = known.reading_since.is_some_and(|since| since.elapsed() >= PATIENCE_WITH_LAST);
            (known.last.get(&which).cloned(), hangs)
        };
        let patience = match last {
            Some(last) if hangs => return Ok(Ok(last)),
            Some(_) => PATIENCE_WITH_LAST,
            None => PATIENCE,
        };
        let (reply, replied) = oneshot::channel();
        if self.jobs.try_send((which, reply)).is_ok()
            && let Ok(Ok(read)) = timeout(patience, replied).await
        {
            return Ok(read);
        }
        last.map(Ok).ok_or(CredentialsHang)
    }
}

fn lock<T>(known: &Mutex<T>) -> MutexGuard<'_, T> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Read = Result<&'static str, &'static str>;
    type Reader = CredentialsReader<u8, &'static str, &'static str>;

    /// A reader that gives what is sent to it, and waits until something is.
    fn reader() -> (Reader, mpsc::Sender<Read>) {
        let (disk, read) = mpsc::channel();
        let reader = CredentialsReader::start(move |_| read.recv().unwrap_or(Err("the test is over")));
        (reader.unwrap(), disk)
    }

    #[tokio::test]
    async fn the_last_credentials_are_used_while_the_disk_hangs_and_new_ones_once_it_does_not() {
        let (reader, disk) = reader();
        disk.send(Ok("first")).unwrap();
        assert_eq!(reader.read(1).await, Ok(Ok("first")));
        for _ in 0..2 * WAITING {
            assert_eq!(reader.read(1).await, Ok(Ok("first")), "the disk hangs");
        }
        assert_eq!(reader.read(2).await, Err(CredentialsHang), "these were never read");
        // What was asked for meanwhile is not read for nobody.
        disk.send(Ok("second")).unwrap();
        disk.send(Ok("third")).unwrap();
        while lock(&reader.known).reading_since.is_some() {
            tokio::task::yield_now().await;
        }
        assert_eq!(lock(&reader.known).last.get(&1), Some(&"second"));
        while reader.read(1).await == Ok(Ok("second")) {}
        assert_eq!(reader.read(1).await, Ok(Ok("third")));
    }

    #[tokio::test]
    async fn credentials_that_were_taken_away_are_used_no_more() {
        let (reader, disk) = reader();
        disk.send(Ok("first")).unwrap();
        assert_eq!(reader.read(1).await, Ok(Ok("first")));
        disk.send(Err("no token")).unwrap();
        while reader.read(1).await == Ok(Ok("first")) {}
        assert_eq!(lock(&reader.known).last.get(&1), None);
        assert_eq!(reader.read(1).await, Err(CredentialsHang));
    }
}
