//! Reports containers whose memory ran out.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use hutch_kubelet::Exit;

use crate::container::{KILLED, Running, code_of};
use crate::live::Live;
use crate::shared::Shared;

/// Reason of the event.
pub(crate) const REASON: &str = "OOMKilling";

/// Returns the message of the event.
pub(crate) fn message(container: &str) -> String {
    format!("Container {container} ran out of memory and a process of it was killed")
}

/// Reports after the end of a command that it was killed because memory ran out: by its exit, and by an event.
pub(crate) fn noted(
    exit: BoxFuture<'static, Exit>,
    node: &Arc<Shared>,
    live: Arc<Live>,
    running: Arc<Running>,
) -> BoxFuture<'static, Exit> {
    let (node, container, ended) = (node.clone(), Arc::downgrade(&running), running.ended.clone());
    let before = running.out_of_memory.count();
    drop(running);
    async move {
        let exit = exit.await;
        if code_of(&exit) != KILLED {
            return exit;
        }
        // A container that has ended reports by itself.
        let Some(running) = container.upgrade() else {
            let ran_out = ended.borrow().as_ref().is_some_and(|main| main.out_of_memory);
            return if ran_out { Exit::OutOfMemory } else { exit };
        };
        let (name, of_container) = (running.blueprint.name.clone(), running.container.clone());
        let usage = tokio::task::spawn_blocking(move || of_container.stats()).await.ok().flatten();
        let Some(usage) = usage.filter(|usage| usage.oom_kills > before) else { return exit };
        if running.out_of_memory.grows_to(usage.oom_kills) {
            node.events.container(&live.pod(), &name, true, REASON, message(&name));
        }
        Exit::OutOfMemory
    }
    .boxed()
}
