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

/// Watches the pods, and takes what comes, until the stream ends: there is no way to resume it, and each new one begins
/// with all pods.
pub(super) async fn watch(kubelet: UnixStream, shared: &Arc<Shared>) -> Failure {
    try_watch(kubelet, shared).await.err().unwrap_or(Failure::StreamEnded)
}

async fn try_watch(kubelet: UnixStream, shared: &Arc<Shared>) -> Result<(), Failure> {
    let (channel, connection) = Channel::open(kubelet).await?;
    let connection = tokio::spawn(connection);
    let mut events = open(&channel).await?;
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
    connection.abort();
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
