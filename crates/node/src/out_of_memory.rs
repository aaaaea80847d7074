//! Reports containers whose memory ran out.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use hutch_kubelet::Exit;

use crate::container::{Running, code_of};
use crate::live::Live;
use crate::shared::Shared;

/// Reason of the event.
pub(crate) const REASON: &str = "OOMKilling";
/// Exit code of a process that was killed.
const KILLED: i32 = 137;

/// Returns the message of the event.
pub(crate) fn message(container: &str) -> String {
    format!("Container {container} ran out of memory and a process of it was killed")
}

/// Reports after the end of a command if it was killed because memory ran out.
pub(crate) fn noted(
    exit: BoxFuture<'static, Exit>,
    node: &Arc<Shared>,
    live: Arc<Live>,
    running: Arc<Running>,
) -> BoxFuture<'static, Exit> {
    let (node, container) = (node.clone(), Arc::downgrade(&running));
    drop(running);
    async move {
        let exit = exit.await;
        // A container that has ended reports by itself.
        let Some(running) = container.upgrade().filter(|_| code_of(&exit) == KILLED) else { return exit };
        let (name, of_container) = (running.blueprint.name.clone(), running.container.clone());
        let usage = tokio::task::spawn_blocking(move || of_container.stats()).await.ok().flatten();
        if usage.is_some_and(|usage| running.out_of_memory.grows_to(usage.oom_kills)) {
            node.events.container(&live.pod(), &name, true, REASON, message(&name));
        }
        exit
    }
    .boxed()
}
