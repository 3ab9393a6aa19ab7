//! Whether the daemon is ready, for readers of its socket and for a supervisor.

use tokio::sync::watch;

/// Reports readiness once.
pub(super) fn emit_ready(ready: &watch::Sender<bool>, is_loaded: bool) {
    if !is_loaded || *ready.borrow() {
        return;
    }
    ready.send_replace(true);
    tracing::info!("ready");
    sd_notify(&[sd_notify::NotifyState::Ready]);
}

/// Notifies a supervisor of the daemon's state; without one this does nothing.
pub(super) fn sd_notify(state: &[sd_notify::NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "cannot notify the supervisor");
    }
}
