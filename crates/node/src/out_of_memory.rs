//! Reports containers whose memory ran out.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use hutch_kubelet::Exit;

use crate::container::{KILLED, Running, code_of};
use crate::live::Live;
use crate::shared::Shared;

/// Time in which a container ends whose further process was lost with it.
const END: Duration = Duration::from_secs(2);

/// Reason of the event.
pub(crate) const REASON: &str = "OOMKilling";

/// Returns the message of the event.
pub(crate) fn message(container: &str) -> String {
    format!("Container {container} ran out of memory and a process of it was killed")
}

/// Returns the number of processes of a container that were killed because memory ran out, if it is known.
pub(crate) async fn kills(running: &Running) -> Option<u64> {
    let container = running.container.clone();
    Some(tokio::task::spawn_blocking(move || container.stats()).await.ok()??.oom_kills)
}

/// Reports after the end of a command that it was killed because memory ran out: by its exit, and by an event. `before` are the
/// kills before it started.
pub(crate) fn noted(
    exit: BoxFuture<'static, Exit>,
    node: &Arc<Shared>,
    live: Arc<Live>,
    running: Arc<Running>,
    before: Option<u64>,
) -> BoxFuture<'static, Exit> {
    let (node, container, mut ended) = (node.clone(), Arc::downgrade(&running), running.ended.clone());
    let lost = running.container.lost_code();
    drop(running);
    async move {
        let exit = exit.await;
        if lost == Some(code_of(&exit)) {
            let main = tokio::time::timeout(END, ended.wait_for(Option::is_some)).await;
            let ran_out =
                main.is_ok_and(|main| main.is_ok_and(|main| main.as_ref().is_some_and(|m| m.out_of_memory)));
            return if ran_out { Exit::OutOfMemory } else { exit };
        }
        if code_of(&exit) != KILLED {
            return exit;
        }
        // A container that has ended reports by itself.
        let Some(running) = container.upgrade() else {
            let ran_out = ended.borrow().as_ref().is_some_and(|main| main.out_of_memory);
            return if ran_out { Exit::OutOfMemory } else { exit };
        };
        let (Some(before), Some(after)) = (before, kills(&running).await) else { return exit };
        if after <= before {
            return exit;
        }
        if running.out_of_memory.grows_to(after) {
            let name = running.blueprint.name.clone();
            node.events.container(&live.pod(), &name, true, REASON, message(&name));
        }
        Exit::OutOfMemory
    }
    .boxed()
}
