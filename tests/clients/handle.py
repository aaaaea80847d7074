"""Cells of a handle on one sandbox, and of what lies below it."""

from lifecycle import fresh, works
from places import PATIENCE_SECONDS, POOL
from table import ASYNC, SYNC, absent, check, equal, now, raises, row


@row("Sandbox.status()")
async def status(place):
    sandbox = await place.sandbox()
    equal((await now(sandbox.status()))[0], "SandboxReady")
    await place.suspend(sandbox)
    equal((await now(sandbox.status()))[0], "SandboxNotReady")
    claim = sandbox.claim_name
    await now(sandbox.terminate())
    await place.gone(claim, sandbox.sandbox_id)
    equal((await now(sandbox.status()))[0], "SandboxNotFound")


@row("Sandbox.get_pod_name()")
async def pod_name(place):
    sandbox = await place.shared()
    name = await now(sandbox.get_pod_name())
    equal(place.pod(name).metadata.owner_references[0].name, sandbox.sandbox_id)


@row("Sandbox.get_pod_ip()")
async def pod_ip(place):
    sandbox = await place.shared()
    pod = place.pod(await now(sandbox.get_pod_name()))
    equal(await now(sandbox.get_pod_ip()), pod.status.pod_ip)


@row("Sandbox.get_sandbox_name_hash()")
async def name_hash(place):
    sandbox = await place.shared()
    pod = place.pod(await now(sandbox.get_pod_name()))
    equal(await now(sandbox.get_sandbox_name_hash()), pod.metadata.labels["agents.x-k8s.io/sandbox-name-hash"])


@row("Sandbox.get_service_fqdn()")
async def service(place):
    sandbox = await place.shared()
    fqdn = await now(sandbox.get_service_fqdn())
    equal(fqdn, f"{sandbox.sandbox_id}.{place.namespace}.svc.cluster.local")
    check(place.core.read_namespaced_service(sandbox.sandbox_id, place.namespace))


@row("Sandbox.commands, Sandbox.files, Sandbox.is_active, Sandbox.close_connection()")
async def closing(place):
    sandbox = await place.sandbox()
    check(sandbox.is_active and sandbox.commands and sandbox.files)
    await works(place, sandbox)
    await now(sandbox.close_connection())
    await now(sandbox.close_connection())
    check(not sandbox.is_active and sandbox.commands is None and sandbox.files is None)
    equal((await now(sandbox.status()))[0], "SandboxReady")
    await now(sandbox.terminate())


@row("Sandbox.terminate()")
async def terminate(place):
    sandbox = await place.sandbox()
    claim = sandbox.claim_name
    await now(sandbox.terminate())
    await place.gone(claim, sandbox.sandbox_id)
    await now(sandbox.terminate())
    equal(sandbox.claim_name, None)


@row("K8sHelper.create_sandbox_claim(name, warmpool, namespace, annotations, labels, lifecycle, "
     "volume_claim_templates, pod_metadata, env)")
async def helper_create(place):
    helper, name = place.client().k8s_helper, fresh("helped")
    volume = {"metadata": {"name": "data"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}}
    lifecycle = {"shutdownTime": "2199-01-01T00:00:00Z", "shutdownPolicy": "Delete"}
    made = await now(helper.create_sandbox_claim(
        name, "wishes", place.namespace, annotations={"note": "a"}, labels={"purpose": "b"}, lifecycle=lifecycle,
        volume_claim_templates=[volume], pod_metadata={"annotations": {"note": "c"}}, env={"GREETING": "d"}))
    metadata, spec = made["metadata"], made["spec"]
    equal((metadata["annotations"]["note"], metadata["labels"]["purpose"]), ("a", "b"))
    equal((spec["lifecycle"], spec["additionalPodMetadata"]), (lifecycle, {"annotations": {"note": "c"}}))
    equal((spec["env"], spec["volumeClaimTemplates"][0]["metadata"]["name"]), ([{"name": "GREETING", "value": "d"}], "data"))
    check(await now(helper.wait_for_claim_ready(name, place.namespace, PATIENCE_SECONDS)))
    await now(helper.delete_sandbox_claim(name, place.namespace))


@row("K8sHelper.resolve_sandbox_name(claim_name, namespace, timeout, resource_version)")
async def helper_resolve(place):
    sandbox, helper = await place.shared(), place.client().k8s_helper
    claim = sandbox.claim_name
    equal(await now(helper.resolve_sandbox_name(claim, place.namespace, PATIENCE_SECONDS)), sandbox.sandbox_id)
    name = fresh("helped")
    made = await now(helper.create_sandbox_claim(name, POOL, place.namespace))
    await place.until("it is ready before anybody watches", lambda: place.condition("SandboxClaim", name, "Ready") == "True")
    version = made["metadata"]["resourceVersion"]
    resolved = await now(helper.resolve_sandbox_name(name, place.namespace, PATIENCE_SECONDS, resource_version=version))
    equal(resolved, place.get("SandboxClaim", name)["status"]["sandbox"]["name"])
    await now(helper.delete_sandbox_claim(name, place.namespace))
    await raises(TimeoutError, lambda: helper.resolve_sandbox_name("no-such-claim", place.namespace, 1))


@row("K8sHelper.wait_for_claim_ready(claim_name, namespace, timeout, resource_version, expected_uid, initial_claim)")
async def helper_wait(place):
    helper, name = place.client().k8s_helper, fresh("helped")
    made = await now(helper.create_sandbox_claim(name, POOL, place.namespace))
    metadata = made["metadata"]
    more = {"resource_version": metadata["resourceVersion"], "expected_uid": metadata["uid"], "initial_claim": made}
    found = await now(helper.wait_for_claim_ready(name, place.namespace, PATIENCE_SECONDS, **more))
    equal(found, place.get("SandboxClaim", name)["status"]["sandbox"]["name"])
    other = {"expected_uid": "another"}
    await raises(Exception, lambda: helper.wait_for_claim_ready(name, place.namespace, 30, **other), "was replaced")
    # A version that is long gone: the server says 410 or replays, and the client gets there either way.
    old = await now(helper.wait_for_claim_ready(name, place.namespace, PATIENCE_SECONDS, resource_version="1"))
    equal(old, found)
    await now(helper.delete_sandbox_claim(name, place.namespace))


@row("K8sHelper.wait_for_sandbox_ready(name, namespace, timeout)")
async def helper_sandbox_ready(place):
    sandbox, helper = await place.shared(), place.client().k8s_helper
    address = await now(helper.wait_for_sandbox_ready(sandbox.sandbox_id, place.namespace, PATIENCE_SECONDS))
    equal(address, await now(sandbox.get_pod_ip()))
    await raises(TimeoutError, lambda: helper.wait_for_sandbox_ready("no-such-sandbox", place.namespace, 1))


@row("K8sHelper.get_sandbox(name, namespace)")
async def helper_get(place):
    sandbox, helper = await place.shared(), place.client().k8s_helper
    equal((await now(helper.get_sandbox(sandbox.sandbox_id, place.namespace)))["metadata"]["name"], sandbox.sandbox_id)
    equal(await now(helper.get_sandbox("no-such-sandbox", place.namespace)), None)


@row("K8sHelper.get_sandbox_claim(name, namespace)")
async def helper_get_claim(place):
    sandbox, helper = await place.shared(), place.client().k8s_helper
    claim = await now(helper.get_sandbox_claim(sandbox.claim_name, place.namespace))
    equal(claim["spec"]["warmPoolRef"]["name"], POOL)
    equal(await now(helper.get_sandbox_claim("no-such-claim", place.namespace)), None)


@row("K8sHelper.list_sandbox_claims(namespace, label_selector)")
async def helper_list(place):
    sandbox, helper = await place.shared(), place.client().k8s_helper
    check(sandbox.claim_name in await now(helper.list_sandbox_claims(place.namespace)))
    equal(await now(helper.list_sandbox_claims(place.namespace, label_selector="no=such")), [])


PATCH = "K8sHelper.patch_sandbox_claim(name, namespace, body)"


@row(PATCH, SYNC)
async def helper_patch(place):
    sandbox, helper = await place.shared(), place.client().k8s_helper
    body = {"metadata": {"annotations": {"note": fresh("v")}}}
    changed = helper.patch_sandbox_claim(sandbox.claim_name, place.namespace, body)
    equal(changed["metadata"]["annotations"]["note"], body["metadata"]["annotations"]["note"])


absent(PATCH, ASYNC, "-")


@row("K8sHelper.delete_sandbox_claim(name, namespace, expected_uid)")
async def helper_delete(place):
    helper, name = place.client().k8s_helper, fresh("helped")
    made = await now(helper.create_sandbox_claim(name, POOL, place.namespace))
    error = await raises(Exception, lambda: helper.delete_sandbox_claim(name, place.namespace, expected_uid="another"))
    equal(error.status, 409)
    check(place.get("SandboxClaim", name), "it is still there")
    await now(helper.delete_sandbox_claim(name, place.namespace, expected_uid=made["metadata"]["uid"]))
    await place.gone(name)
    await now(helper.delete_sandbox_claim(name, place.namespace))


LIMIT = "K8sHelper.delete_sandbox_claim(_request_timeout)"


@row(LIMIT, SYNC)
async def helper_delete_limit(place):
    place.client().k8s_helper.delete_sandbox_claim("no-such-claim", place.namespace, _request_timeout=(5, 30))


absent(LIMIT, ASYNC, "-")
