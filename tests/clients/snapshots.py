"""Cells of the client of GKE's Pod snapshots, which `hutch up` serves as a view of its own."""

import asyncio
from datetime import datetime, timedelta, timezone

from kubernetes.client import ApiException
from k8s_agent_sandbox.gke_extensions.snapshots import PodSnapshotSandboxClient
from lifecycle import works
from places import PATIENCE_SECONDS, POOL
from setup import container
from table import SNAPSHOT_COLUMNS, check, equal, now, row

HERE = tuple(SNAPSHOT_COLUMNS)
GROUP, VERSION = "podsnapshot.gke.io", "v1"
SHARES = {"hutch.dev/shares-generators": "true"}


async def sandbox(place, annotations=SHARES, **more):
    """A sandbox in gVisor of a new client of snapshots."""
    pool = "shared-generators" if annotations else "own-generators"
    if place.get("SandboxTemplate", pool) is None:
        # The runtime alone needs no annotation.
        other = {"name": "other", "image": "hutch/host", "command": ["sleep", "infinity"]}
        containers = [container()] if annotations else [container(), other]
        spec = {"runtimeClassName": "gvisor", "terminationGracePeriodSeconds": 1, "containers": containers}
        place.create("SandboxTemplate", pool, {"podTemplate": {"metadata": {"annotations": annotations}, "spec": spec}})
        place.create("SandboxWarmPool", pool, {"replicas": 1, "sandboxTemplateRef": {"name": pool}})
    client = place.client(kind=PodSnapshotSandboxClient)
    return await place.sandbox(client, pool, **more)


def write(sandbox, text):
    """A file on the disk, and one in memory."""
    sandbox.files.write("state.txt", text)
    equal(sandbox.commands.run(f"sh -c 'echo {text} > /dev/shm/state'").exit_code, 0)


def read(sandbox):
    on_disk = sandbox.files.read("state.txt").decode()
    in_memory = sandbox.commands.run("sh -c 'cat /dev/shm/state || true'").stdout.strip()
    equal(on_disk, in_memory)
    return on_disk


def taken(sandbox, name="snap"):
    made = sandbox.snapshots.create(name)
    check(made.success, made.error_reason)
    return made.snapshot_uid


def listed(sandbox, **filter_by):
    found = sandbox.snapshots.list(filter_by)
    check(found.success, found.error_reason)
    return [each.snapshot_uid for each in found.snapshots]


def found(place, plural, name, group=GROUP, version=VERSION):
    try:
        return place.custom.get_namespaced_custom_object(group, version, place.namespace, plural, name)
    except ApiException as error:
        if error.status == 404:
            return None
        raise


def succeeded(answer):
    check(answer.success, answer.error_reason)
    return answer


@row("PodSnapshotSandboxClient(connection_config)", HERE)
async def discovered(place):
    client = place.client(kind=PodSnapshotSandboxClient)
    check(client.snapshot_crd_installed)


@row("SandboxWithSnapshotSupport.snapshots, SandboxWithSnapshotSupport.is_active", HERE)
async def active(place):
    own = await sandbox(place)
    check(own.is_active and own.snapshots is not None)
    own.terminate()
    check(not own.is_active and own.snapshots is None)


@row("SnapshotEngine.create(trigger_name, podsnapshot_timeout)", HERE)
async def created(place):
    own = await sandbox(place)
    made = succeeded(own.snapshots.create("First_Try", podsnapshot_timeout=PATIENCE_SECONDS))
    check(made.trigger_name.startswith("first-try-") and made.snapshot_timestamp)
    view = found(place, "podsnapshots", made.snapshot_uid)
    equal(view["metadata"]["annotations"]["podsnapshot.gke.io/origin-pod"], own.get_pod_name())
    equal(view["metadata"]["labels"]["agents.x-k8s.io/sandbox-name-hash"], own.get_sandbox_name_hash())
    kept = found(place, "sandboxsnapshots", made.snapshot_uid, "hutch.dev", "v1alpha1")
    equal((kept["spec"]["source"]["sandbox"], kept["spec"]["content"]), (own.sandbox_id, "Full"))
    # It runs on.
    await works(place, own)
    # No other namespace has this Pod.
    body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "PodSnapshotManualTrigger", "metadata": {"name": made.trigger_name},
            "spec": {"targetPod": own.get_pod_name()}}
    place.custom.create_namespaced_custom_object(GROUP, VERSION, "default", "podsnapshotmanualtriggers", body)

    def condition():
        trigger = place.custom.get_namespaced_custom_object(
            GROUP, VERSION, "default", "podsnapshotmanualtriggers", made.trigger_name)
        return (trigger.get("status") or {"conditions": [{}]})["conditions"][0]
    await place.until("it fails", lambda: condition().get("reason") == "Failed")
    check("there is no Pod" in condition()["message"], condition())


@row("SnapshotEngine.create: a sandbox whose random numbers would repeat", HERE, "refused")
async def refused(place):
    own = await sandbox(place, annotations={})
    made = own.snapshots.create("no")
    check(not made.success and made.snapshot_uid is None)
    check("hutch.dev/after-restore" in made.error_reason, made.error_reason)
    equal(listed(own, ready_only=False), [])
    await works(place, own)


@row("SnapshotEngine.create: a sandbox outside of gVisor", HERE, "refused")
async def native(place):
    client = place.client(kind=PodSnapshotSandboxClient)
    own = await place.sandbox(client, POOL)
    body = {"metadata": {"annotations": SHARES}}
    place.custom.patch_namespaced_custom_object("agents.x-k8s.io", "v1beta1", place.namespace, "sandboxes", own.sandbox_id, body)
    made = own.snapshots.create("no")
    check(not made.success and "runtimeClassName: gvisor" in made.error_reason, made.error_reason)
    equal(listed(own, ready_only=False), [])


@row("SnapshotEngine.list(filter_by)", HERE)
async def lists(place):
    own, other = await sandbox(place), await sandbox(place)
    equal(listed(own), [])
    first, second = taken(own), taken(own)
    of_other = taken(other)
    # The newest first, also of two in a row.
    equal(listed(own), [second, first])
    equal(listed(other), [of_other])
    equal(listed(own, ready_only=False), [second, first])
    details = own.snapshots.list().snapshots
    equal([(each.source_pod, each.status) for each in details], [(own.get_pod_name(), "Ready")] * 2)
    equal(listed(own, created_after=details[0].creation_timestamp), [second])
    equal(listed(own, created_before=details[1].creation_timestamp), [first])
    equal(listed(own, created_after=datetime.now(timezone.utc) + timedelta(hours=1)), [])
    check(not own.snapshots.list({"newest": True}).success)


@row("SnapshotEngine.delete(snapshot_uid, timeout)", HERE)
async def deleted(place):
    own = await sandbox(place)
    first, second = taken(own), taken(own)
    equal(succeeded(own.snapshots.delete(first, timeout=PATIENCE_SECONDS)).deleted_snapshots, [first])
    equal(listed(own), [second])
    equal(found(place, "sandboxsnapshots", first, "hutch.dev", "v1alpha1"), None)
    equal(succeeded(own.snapshots.delete(first)).deleted_snapshots, [])
    # The other way round.
    place.custom.delete_namespaced_custom_object("hutch.dev", "v1alpha1", place.namespace, "sandboxsnapshots", second)
    await place.until("its PodSnapshot is gone", lambda: found(place, "podsnapshots", second) is None)


@row("SnapshotEngine.delete_all(delete_by, timestamp, timeout)", HERE)
async def all_deleted(place):
    own = await sandbox(place)
    uids = [taken(own) for _ in range(3)]
    times = [each.creation_timestamp for each in reversed(own.snapshots.list().snapshots)]
    gone = succeeded(own.snapshots.delete_all("created_before", times[0], timeout=PATIENCE_SECONDS))
    equal(gone.deleted_snapshots, uids[:1])
    gone = succeeded(own.snapshots.delete_all("created_after", times[2], timeout=PATIENCE_SECONDS))
    equal(gone.deleted_snapshots, uids[2:])
    equal(succeeded(own.snapshots.delete_all(timeout=PATIENCE_SECONDS)).deleted_snapshots, uids[1:2])
    equal(listed(own, ready_only=False), [])


@row("SnapshotEngine.delete_manual_triggers(max_retries)", HERE)
async def triggers_deleted(place):
    own = await sandbox(place)
    made = succeeded(own.snapshots.create("snap"))
    equal(own.snapshots.created_manual_triggers, [made.trigger_name])
    own.snapshots.delete_manual_triggers(max_retries=1)
    equal(own.snapshots.created_manual_triggers, [])
    equal(found(place, "podsnapshotmanualtriggers", made.trigger_name), None)
    equal(listed(own), [made.snapshot_uid])


@row("SandboxWithSnapshotSupport.suspend(snapshot_before_suspend, wait_timeout)", HERE)
async def suspends(place):
    own = await sandbox(place)
    name = own.get_pod_name()
    answer = succeeded(own.suspend(snapshot_before_suspend=False, wait_timeout=PATIENCE_SECONDS))
    equal((answer.snapshot_response, place.pod(name)), (None, None))
    # It is suspended already.
    equal(succeeded(own.suspend()).snapshot_response, None)
    equal(listed(own), [])


@row("SandboxWithSnapshotSupport.is_suspended()", HERE)
async def says_suspended(place):
    own = await sandbox(place)
    for mode, expected in [("Suspended", True), ("Running", False)]:
        place.mode(own, mode)
        equal(own.is_suspended(), expected)


@row("SandboxWithSnapshotSupport.resume(wait_timeout)", HERE)
async def resumes(place):
    own = await sandbox(place)
    taken(own)
    write(own, "kept")
    uid = succeeded(await asyncio.to_thread(own.suspend)).snapshot_response.snapshot_uid
    resumed = succeeded(await asyncio.to_thread(own.resume, wait_timeout=PATIENCE_SECONDS))
    equal((resumed.restored_from_snapshot, resumed.snapshot_uid), (True, uid))
    equal(read(own), "kept")
    await works(place, own)


@row("SandboxWithSnapshotSupport.resume: no snapshot", HERE)
async def resumes_anew(place):
    own = await sandbox(place)
    write(own, "lost")
    succeeded(await asyncio.to_thread(own.suspend, snapshot_before_suspend=False))
    resumed = succeeded(await asyncio.to_thread(own.resume))
    equal((resumed.restored_from_snapshot, resumed.snapshot_uid), (False, None))
    check(not own.files.exists("state.txt"))


@row("SandboxWithSnapshotSupport.restore(snapshot_uid, sandbox_ready_timeout)", HERE)
async def restores(place):
    own = await sandbox(place)
    write(own, "one")
    first = taken(own)
    write(own, "two")
    second = taken(own)
    check("currently running" in own.restore(first).error_reason)
    succeeded(await asyncio.to_thread(own.suspend, snapshot_before_suspend=False))
    check("does not exist" in own.restore("no-such-snapshot").error_reason)
    restored = succeeded(await asyncio.to_thread(own.restore, first, sandbox_ready_timeout=PATIENCE_SECONDS))
    equal((restored.restored_from_snapshot, restored.snapshot_uid), (True, first))
    equal(read(own), "one")
    # Later it begins with the newest one again.
    succeeded(await asyncio.to_thread(own.suspend, snapshot_before_suspend=False))
    equal(succeeded(await asyncio.to_thread(own.resume)).snapshot_uid, second)
    equal(read(own), "two")


@row("SandboxWithSnapshotSupport.terminate()", HERE)
async def terminates(place):
    own = await sandbox(place)
    made = succeeded(own.snapshots.create("snap"))
    claim, name = own.claim_name, own.sandbox_id
    await now(own.terminate())
    await place.gone(claim, name)
    equal(found(place, "podsnapshotmanualtriggers", made.trigger_name), None)
    # The snapshot stays, and is not that of a later sandbox of the name.
    view = found(place, "podsnapshots", made.snapshot_uid)
    await place.until("it has no label", lambda: not found(place, "podsnapshots", view["metadata"]["name"])["metadata"].get("labels"))
