//! The kubelet's Pods API (KEP-4188): a stream of changes over a unix socket.

use std::sync::Arc;

use prost::Message as _;
use tokio::net::UnixStream;

use super::{
    process::{Failure, Shared},
    proto::{
        self, ADDED, DELETED, INITIAL_SYNC_COMPLETE, MODIFIED, SERVICES, WatchPodsEvent, WatchPodsRequest,
    },
    store::Store,
};
use crate::grpc::{Channel, GrpcError, Messages};

/// Watches the pods, and takes what comes, until the stream ends or the kubelet no longer answers: there is no way to resume
/// it, and each new one begins with all pods.
pub(super) async fn watch(kubelet: UnixStream, shared: &Arc<Shared>) -> Failure {
    let (channel, connection) = match Channel::open(kubelet).await {
        Ok(opened) => opened,
        Err(error) => return error.into(),
    };
    let connection = tokio::spawn(connection);
    let failure = tokio::select! {
        ended = try_watch(&channel, shared) => ended.err().unwrap_or(Failure::StreamEnded),
        silent = channel.silence() => silent.into(),
    };
    connection.abort();
    failure
}

async fn try_watch(channel: &Channel, shared: &Arc<Shared>) -> Result<(), Failure> {
    let mut events = open(channel).await?;
    while let Some(event) = events.next().await? {
        let WatchPodsEvent { kind, pod } = WatchPodsEvent::decode(&event[..])?;
        match kind {
            ADDED | MODIFIED => {
                match proto::pod(&pod) {
                    Ok(mut pod) => {
                        pod.metadata.annotations.keep_kubelets();
                        pod.cut();
                        shared.change(|store| store.put(&pod));
                    }
                    // One that cannot be read must not hide the others; its cgroup is known all the same. Its former spec is
                    // no longer right: it may have been resized.
                    Err(_error) => match proto::uid(&pod) {
                        Some(uid) => shared.change(|store| store.leave_out(&uid)),
                        None => shared.change(Store::note_unreadable),
                    },
                }
            }
            DELETED => {
                let pod = proto::pod(&pod)?;
                shared.change(|store| store.remove(&pod.metadata.uid));
            }
            INITIAL_SYNC_COMPLETE => shared.change(Store::complete),
            kind => return Err(Failure::UnknownEvent { kind }),
        }
    }
    Ok(())
}

/// Calls the first service that the kubelet has.
async fn open(channel: &Channel) -> Result<Messages, Failure> {
    let mut unknown = None;
    for service in SERVICES {
        match channel.stream(&format!("/{service}/WatchPods"), &WatchPodsRequest {}).await {
            Ok(events) => return Ok(events),
            Err(error) if error.unimplemented().is_some() => unknown = Some(error),
            Err(error) => return Err(error.into()),
        }
    }
    Err(unknown.unwrap_or(GrpcError::Incomplete).into())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{
        super::fake::{FakeKubelet, FakePod},
        *,
    };

    /// Lets virtual time pass in small steps, and in each what is on its way arrive.
    async fn pass(time: Duration) {
        const STEP: Duration = Duration::from_secs(2);
        let mut left = time;
        while !left.is_zero() {
            let step = STEP.min(left);
            tokio::time::advance(step).await;
            // Each gives way to what a socket has brought.
            for _ in 0..64 {
                tokio::task::yield_now().await;
            }
            left -= step;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_kubelet_that_has_nothing_to_say_is_kept_and_one_that_hangs_counts_as_lost() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let kubelet = FakeKubelet::new();
        kubelet.put(FakePod { uid: String::from("a"), ..FakePod::default() });
        tokio::spawn(kubelet.clone().serve_one(theirs));
        let shared = Arc::new(Shared::default());
        let of_task = Arc::clone(&shared);
        let watching = tokio::spawn(async move { watch(ours, &of_task).await });
        pass(Duration::from_mins(10)).await;
        assert!(shared.is_whole() && !watching.is_finished(), "silence alone is no failure");
        kubelet.hang();
        // Twice 20 s until the next question, and 10 s for its answer.
        pass(Duration::from_secs(40)).await;
        assert!(!watching.is_finished(), "one question may be unanswered on a busy node");
        pass(Duration::from_mins(1)).await;
        assert!(watching.is_finished(), "its connection stays open for ever");
        let why = crate::chain(&watching.await.unwrap());
        assert!(why.contains("it hangs"), "{why}");
    }
}
