//! The event loop: takes keys, answers and signals, and draws pictures.

use std::{
    path::PathBuf,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use ratatui::crossterm::{self, event};
use rustix::process::{Signal, getpid, kill_process};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{mpsc, watch},
    task::JoinHandle,
};

use super::{
    Args,
    draw::{Theme, draw},
    feed,
    model::{Effect, Input},
    picture::Look,
    screen::{self, Screen},
};
use crate::cli::{Context, Failure};

/// The capacity of the input queue; senders wait while it is full.
const QUEUE: usize = 64;

/// How long the visible rows must stay the same before their memory is read.
const SETTLED: Duration = Duration::from_millis(150);

/// How long an answer may take before the picture is called stale.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How often the screen is redrawn while nothing happens.
const TICK: Duration = Duration::from_secs(1);

/// Tasks that query the daemon; they are aborted on drop.
#[derive(Debug)]
struct Asking {
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Asking {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// Shows the view until the user quits. `first` was fetched already.
pub(super) async fn live(
    context: &Arc<Context>,
    args: &Args,
    theme: Theme,
    first: Look,
    start: Instant,
) -> Result<(), Failure> {
    let run_dir = &context.config.run_dir;
    let size = crossterm::terminal::size().context("cannot read the terminal's size")?;
    let mut state = args.state(size);
    state.take(Input::Looked(Box::new(first)));
    let mut signals = Signals::listen().context("cannot listen for signals")?;
    let (sender, mut inputs) = mpsc::channel(QUEUE);
    let (want, wanted) = watch::channel(state.wanted());
    let mut screen = Screen::take().context("cannot take the terminal")?;
    let _asking = Asking {
        tasks: vec![
            tokio::spawn(look(run_dir.to_owned(), args.clone(), wanted, start, sender.clone())),
            tokio::spawn(tally(run_dir.to_owned(), args.interval, sender.clone())),
        ],
    };
    read_keys(sender.clone())?;
    let mut panel: Option<Asking> = None;
    loop {
        screen.draw(|frame| draw(&state, theme, frame)).context("cannot draw")?;
        want.send_if_modified(|want| {
            let now = state.wanted();
            let differs = *want != now;
            *want = now;
            differs
        });
        let mut next = tokio::select! {
            input = inputs.recv() => input,
            signal = signals.next() => match signal {
                Control::End => return Ok(()),
                Control::Stop => {
                    suspend(&mut screen)?;
                    None
                }
                Control::GoOn => {
                    screen.retake().context("cannot take the terminal again")?;
                    None
                }
            },
            () = tokio::time::sleep(TICK) => Some(Input::Tick(feed::since(start))),
        };
        // Take all pending inputs before drawing again, so that a held key does not wait for each picture.
        while let Some(input) = next {
            match state.take(input) {
                None => {}
                Some(Effect::Quit) => return Ok(()),
                Some(Effect::Suspend) => suspend(&mut screen)?,
                Some(Effect::Redraw) => screen.draw_anew().context("cannot draw")?,
                Some(Effect::Ask { panel: number, what, namespace, name }) => {
                    let (context, sender) = (Arc::clone(context), sender.clone());
                    let task = tokio::spawn(async move {
                        let asked = feed::about(context, what, &namespace, &name);
                        let lines = tokio::time::timeout(TIMEOUT, asked).await;
                        let late = |_elapsed| vec![String::from("the daemon does not answer")];
                        // The view is gone when this fails.
                        drop(
                            sender
                                .send(Input::Answered { panel: number, lines: lines.unwrap_or_else(late) })
                                .await,
                        );
                    });
                    panel = Some(Asking { tasks: vec![task] });
                }
            }
            next = inputs.try_recv().ok();
        }
        if panel.as_ref().is_some_and(|panel| panel.tasks.iter().all(JoinHandle::is_finished)) {
            panel = None;
        }
    }
}

/// Restores the terminal and stops this process; takes the terminal again when it is continued.
fn suspend(screen: &mut Screen) -> Result<(), Failure> {
    screen::give_back();
    kill_process(getpid(), Signal::STOP).context("cannot stop")?;
    Ok(screen.retake().context("cannot take the terminal again")?)
}

/// The meaning of a signal.
#[derive(Clone, Copy, Debug)]
enum Control {
    End,
    Stop,
    GoOn,
}

#[derive(Debug)]
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    hang_up: tokio::signal::unix::Signal,
    stop: tokio::signal::unix::Signal,
    go_on: tokio::signal::unix::Signal,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        let raw = |signal: Signal| SignalKind::from_raw(signal.as_raw());
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
            stop: signal(raw(Signal::TSTP))?,
            go_on: signal(raw(Signal::CONT))?,
        })
    }

    async fn next(&mut self) -> Control {
        tokio::select! {
            _ = self.terminate.recv() => Control::End,
            _ = self.interrupt.recv() => Control::End,
            _ = self.hang_up.recv() => Control::End,
            _ = self.stop.recv() => Control::Stop,
            _ = self.go_on.recv() => Control::GoOn,
        }
    }
}

/// Reads keys on a separate thread, which ends with the process.
fn read_keys(sender: mpsc::Sender<Input>) -> Result<(), Failure> {
    let work = move || {
        while let Ok(event) = event::read() {
            if let Some(input) = screen::input(&event)
                && sender.blocking_send(input).is_err()
            {
                return;
            }
        }
        // The terminal is gone.
        drop(sender.blocking_send(Input::Key(super::model::Key::Interrupt)));
    };
    thread::Builder::new().name(String::from("keys")).spawn(work).context("cannot start a thread")?;
    Ok(())
}

/// Fetches a new look each interval, and the memory of newly visible rows once they stay visible.
async fn look(
    run_dir: PathBuf,
    args: Args,
    mut wanted: watch::Receiver<Vec<String>>,
    start: Instant,
    sender: mpsc::Sender<Input>,
) {
    loop {
        let due = tokio::time::Instant::now() + args.interval;
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(due) => break,
                changed = wanted.changed() => if changed.is_err() { return },
            }
            // Wait until the visible rows stay the same.
            while let Ok(changed) = tokio::time::timeout(SETTLED, wanted.changed()).await {
                if changed.is_err() {
                    return;
                }
            }
            let uids = wanted.borrow_and_update().clone();
            if let Ok(Ok(memories)) = tokio::time::timeout(TIMEOUT, feed::memories(&run_dir, &uids)).await
                && sender.send(Input::Filled(memories)).await.is_err()
            {
                return;
            }
        }
        let uids = wanted.borrow_and_update().clone();
        let input = match tokio::time::timeout(TIMEOUT, feed::look(&run_dir, &uids, &args.pods, start)).await
        {
            Ok(Ok(look)) => Input::Looked(Box::new(look)),
            Ok(Err(failure)) => Input::Failed { why: failure.to_string(), at_ms: feed::since(start) },
            Err(_elapsed) => {
                Input::Failed { why: String::from("it takes too long"), at_ms: feed::since(start) }
            }
        };
        if sender.send(input).await.is_err() {
            return;
        }
    }
}

/// Follows the events, and reconnects after each end of the stream.
async fn tally(run_dir: PathBuf, interval: Duration, sender: mpsc::Sender<Input>) {
    loop {
        let (emit, mut reported) = watch::channel(None);
        let following = feed::follow(&run_dir, |tally| {
            emit.send_replace(Some(tally));
        });
        tokio::pin!(following);
        loop {
            tokio::select! {
                // The other requests report why the daemon is unreachable.
                _ended = &mut following => break,
                changed = reported.changed() => {
                    let tally = reported.borrow_and_update().clone();
                    let (Ok(()), Some(tally)) = (changed, tally) else { break };
                    if sender.send(Input::Tallied(tally)).await.is_err() {
                        return;
                    }
                }
            }
        }
        tokio::time::sleep(interval).await;
    }
}
