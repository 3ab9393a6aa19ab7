//! How often the runtime is asked, in virtual time.
use std::sync::{Arc, Mutex};

use tokio::time::Instant;

use super::*;
use crate::config::KubeletPlaces;

/// A runtime that answers at once, or not.
#[derive(Clone, Default)]
struct Fake(Arc<Mutex<State>>);

/// Whether names are wanted of what stands, and of what was killed in.
struct Sender {
    standing: watch::Sender<Option<u64>>,
    killed: watch::Sender<Option<u64>>,
}

#[derive(Default)]
struct State {
    is_stopped: bool,
    asked: Vec<Instant>,
    /// What came of each question, once it was taken.
    taken: Vec<bool>,
}

impl Fake {
    fn start(&self) -> Sender {
        let ((standing, of_standing), (killed, of_killed)) = (watch::channel(None), watch::channel(None));
        let wants = Wants { standing: of_standing, killed: of_killed };
        let (sender, mut listings) = mpsc::channel(1);
        let state = Arc::clone(&self.0);
        let list = move || {
            let mut state = state.lock().unwrap();
            state.asked.push(Instant::now());
            let names = Names { listing: Listing::default(), question: None };
            let answer = if state.is_stopped { Err(CriError::NoSocket) } else { Ok(names) };
            async move { answer }
        };
        tokio::spawn(run(list, wants, sender));
        let state = Arc::clone(&self.0);
        tokio::spawn(async move {
            while let Some(listing) = listings.recv().await {
                state.lock().unwrap().taken.push(listing.is_ok());
            }
        });
        Sender { standing, killed }
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.0.lock().unwrap())
    }

    /// The times between questions.
    fn pauses(&self) -> Vec<Duration> {
        self.change(|state| state.asked.windows(2).map(|pair| pair[1] - pair[0]).collect())
    }
}

#[tokio::test(start_paused = true)]
async fn for_containers_that_restart_ten_times_a_second_the_runtime_is_asked_as_often_as_its_pause_allows() {
    const MINUTES: u64 = 10;
    let fake = Fake::default();
    let Sender { standing: wanted, killed: _killed } = fake.start();
    let began = Instant::now();
    // Three of them, each ten times a second.
    for state in 0..MINUTES * 60 * 30 {
        wanted.send_replace(Some(state));
        tokio::time::sleep(Duration::from_nanos(33_333_333)).await;
        // The newest is asked for soon, however many there are.
        let latest = fake.change(|state| *state.asked.last().unwrap());
        assert!(latest.elapsed() <= SHORTEST_PAUSE + Duration::from_millis(35), "{:?}", latest.elapsed());
    }
    let pauses = fake.pauses();
    assert!(pauses.iter().all(|pause| *pause >= SHORTEST_PAUSE), "{:?}", pauses.iter().min());
    let most = usize::try_from(began.elapsed().as_millis() / SHORTEST_PAUSE.as_millis()).unwrap();
    assert!((most / 2..=most).contains(&pauses.len()), "{}", pauses.len());
    // All have names: it is left alone.
    wanted.send_replace(None);
    tokio::time::sleep(Duration::from_mins(1)).await;
    let asked = fake.change(|state| state.asked.len());
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert_eq!(fake.change(|state| state.asked.len()), asked);
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_is_stopped_for_minutes_is_asked_ever_more_seldom_and_again_when_it_is_back() {
    let fake = Fake::default();
    fake.change(|state| state.is_stopped = true);
    let Sender { standing: wanted, killed: _killed } = fake.start();
    wanted.send_replace(Some(1));
    tokio::time::sleep(Duration::from_mins(20)).await;
    let pauses = fake.pauses();
    assert!(pauses.iter().is_sorted() && pauses.len() < 40, "{pauses:?}");
    assert!(*pauses.last().unwrap() <= LONGEST_PAUSE + SHORTEST_PAUSE, "{pauses:?}");
    assert!(fake.change(|state| state.taken.iter().all(|is_listed| !is_listed)));
    fake.change(|state| state.is_stopped = false);
    tokio::time::sleep(LONGEST_PAUSE + SHORTEST_PAUSE).await;
    assert_eq!(fake.change(|state| state.taken.last().copied()), Some(true));
    // What comes then is asked for at once.
    let asked = fake.change(|state| state.asked.len());
    wanted.send_replace(Some(2));
    tokio::time::sleep(SHORTEST_PAUSE * 2).await;
    assert!(fake.change(|state| state.asked.len()) > asked);
}

/// It may have no cgroup any more, and its incident waits for the name.
#[tokio::test(start_paused = true)]
async fn for_what_a_process_was_killed_in_the_runtime_is_asked_at_once_and_once() {
    let fake = Fake::default();
    let Sender { standing, killed } = fake.start();
    let asked = || fake.change(|state| state.asked.len());
    tokio::time::sleep(LONGEST_PAUSE).await;
    assert_eq!(asked(), 0);
    // One whose cgroup stands has no name, and gets none.
    standing.send_replace(Some(1));
    tokio::time::sleep(Duration::from_mins(10)).await;
    let before = asked();
    killed.send_replace(Some(1));
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(asked(), before + 1);
    killed.send_replace(None);
    standing.send_replace(None);
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert_eq!(asked(), before + 1);
    // Without an answer it is asked again and again, as for any other.
    killed.send_replace(Some(2));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!((3..8).contains(&(asked() - before)), "{}", asked() - before);
}

/// Where the kubelet has it is known once its flags and files were read, also while it is away.
#[test]
fn the_runtime_is_looked_for_where_the_kubelet_has_it_unless_that_is_configured() {
    let root = tempfile::tempdir().unwrap();
    let own = root.path().join("own.sock");
    let _held = std::os::unix::net::UnixListener::bind(&own).unwrap();
    let shown = KubeletPlaces { runtime: Some(PathBuf::from("/own.sock")), cgroup_root: None };
    let once = Mutex::new(Some(shown));
    let kubelet = RunningKubelet::that_shows(move || Ok(once.lock().unwrap().take()));
    assert_eq!(sockets(None, &kubelet, root.path()), Vec::<PathBuf>::new(), "nothing was read yet");
    for _ in 0..2 {
        kubelet.places().unwrap();
        assert_eq!(sockets(None, &kubelet, root.path()), std::slice::from_ref(&own));
    }
    let configured = Path::new("/set.sock");
    assert_eq!(sockets(Some(configured), &kubelet, root.path()), [configured]);
}
