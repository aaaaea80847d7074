"""Cells of the client: making, finding and ending sandboxes."""

import io
import os
import socket
import ssl
import subprocess
import sys
import uuid

from k8s_agent_sandbox.exceptions import (
    SandboxClaimFailedError,
    SandboxNotFoundError,
    SandboxRequestError,
    SandboxTemplateNotFoundError,
    SandboxWarmPoolNotFoundError,
)
from places import POOL, PLURALS, VERSION
from table import ASYNC, CLUSTER, DIRECT, EVERY, SYNC, absent, check, equal, now, raises, row, within



async def works(place, sandbox):
    """A file in and out: the one thing that every way to a sandbox can do."""
    await now(sandbox.files.write("works.txt", "it works"))
    equal(await now(sandbox.files.read("works.txt")), b"it works")


def fresh(prefix):
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


@row("SandboxClient(connection_config)")
async def connection(place):
    client = place.client(place.config())
    sandbox = await place.sandbox(client)
    check(sandbox.is_active and client.connection_config is sandbox.connection_config)
    await works(place, sandbox)


@row("SandboxClient(api_client)")
async def injected(place):
    """The client given goes to the cluster, and kubectl with it, without any KUBECONFIG."""
    if place.asynchronous:
        from kubernetes_asyncio import client as library, config
        await config.load_kube_config()
    else:
        from kubernetes import client as library, config
        config.load_kube_config()
    own = library.ApiClient()
    kubeconfig, home = os.environ.pop("KUBECONFIG"), os.environ.get("HOME")
    os.environ["HOME"] = "/nonexistent"
    try:
        client = place.client(api_client=own)
        sandbox = await place.sandbox(client)
        await works(place, sandbox)
        await now(sandbox.terminate())
        await now(client.close() if place.asynchronous else None)
    finally:
        os.environ["KUBECONFIG"], os.environ["HOME"] = kubeconfig, home or "/root"
        await now(own.close())


@row("SandboxClient(cleanup)")
async def cleanup(place):
    """A program that ends without a word leaves nothing behind, except what it named itself."""
    name = fresh("mine")
    program = ["--leave", place.column, name]
    run = subprocess.run([sys.executable, os.path.dirname(os.path.abspath(__file__)), *program], capture_output=True, text=True)
    equal(run.returncode, 0)
    automatic, named = run.stdout.split()
    equal(named, name)
    await place.gone(automatic)
    check(place.get("SandboxClaim", named), "an explicit name stays")
    await now(place.client().delete_sandbox(named, place.namespace))
    await place.gone(named)


async def leave(place, name):
    """The program of the cell before: makes two sandboxes and ends."""
    client = place.client(cleanup=True)
    automatic = await place.sandbox(client)
    named = await place.sandbox(client, claim_name=name)
    await works(place, automatic)
    print(automatic.claim_name, named.claim_name)


@row("with SandboxClient")
async def context(place):
    name = fresh("mine")
    async with within(place.client()) as client:
        automatic = (await place.sandbox(client)).claim_name
        await place.sandbox(client, claim_name=name)
    await place.gone(automatic)
    check(place.get("SandboxClaim", name), "an explicit name stays")
    await now(place.client().delete_sandbox(name, place.namespace))


@row("AsyncSandboxClient.close()", ASYNC)
async def close(place):
    client = place.client()
    sandbox = await place.sandbox(client)
    await works(place, sandbox)
    await client.close()
    check(not sandbox.is_active)
    await now(place.client().delete_sandbox(sandbox.claim_name, place.namespace))


absent("AsyncSandboxClient.close()", SYNC, "-")


@row("SandboxClient.create_sandbox(warmpool, namespace, sandbox_ready_timeout)")
async def create(place):
    sandbox = await place.sandbox(sandbox_ready_timeout=60)
    claim = place.get("SandboxClaim", sandbox.claim_name)
    equal(claim["metadata"]["labels"]["agents.x-k8s.io/created-by"], "python-client")
    equal(claim["status"]["sandbox"]["name"], sandbox.sandbox_id)
    equal((await now(sandbox.status()))[0], "SandboxReady")
    await now(sandbox.terminate())


@row("create_sandbox: no such pool, no such template")
async def create_refused(place):
    client = place.client()
    await raises(SandboxWarmPoolNotFoundError, lambda: place.sandbox(client, "no-such-pool"))
    await raises(SandboxTemplateNotFoundError, lambda: place.sandbox(client, "no-template"))
    await place.until("the client takes back its claims", lambda: not any(
        each["spec"]["warmPoolRef"]["name"] in ("no-such-pool", "no-template")
        for each in place.custom.list_namespaced_custom_object(
            *(PLURALS["SandboxClaim"][0], VERSION, place.namespace, "sandboxclaims"))["items"]))


@row("SandboxClient.create_sandbox(labels)")
async def labels(place):
    client, value = place.client(), fresh("v")
    sandbox = await place.sandbox(client, labels={"purpose": value})
    equal(await now(client.list_all_sandboxes(place.namespace, label_selector=f"purpose={value}")), [sandbox.claim_name])
    await now(sandbox.terminate())


@row("SandboxClient.create_sandbox(claim_name, adopt_existing)")
async def adopt(place):
    client, name = place.client(), fresh("mine")
    first = await place.sandbox(client, claim_name=name)
    equal(first.claim_name, name)
    error = await raises(Exception, lambda: place.sandbox(client, claim_name=name))
    equal(error.status, 409)
    check(await place.sandbox(client, claim_name=name, adopt_existing=True) is first, "the handle that is there")
    other = place.client()
    again = await place.sandbox(other, claim_name=name, adopt_existing=True)
    equal(again.sandbox_id, first.sandbox_id)
    await works(place, again)
    await raises(ValueError, lambda: place.sandbox(other, "wishes", claim_name=name, adopt_existing=True), "wishes")
    await now(client.delete_sandbox(name, place.namespace))
    await place.gone(name, first.sandbox_id)


@row("SandboxClient.create_sandbox(shutdown_after_seconds)")
async def shutdown(place):
    sandbox = await place.sandbox(shutdown_after_seconds=3)
    lifecycle = place.get("SandboxClaim", sandbox.claim_name)["spec"]["lifecycle"]
    equal(lifecycle["shutdownPolicy"], "Delete")
    await place.gone(sandbox.claim_name, sandbox.sandbox_id)
    equal((await now(sandbox.status()))[0], "SandboxNotFound")


@row("SandboxClient.create_sandbox(volume_claim_templates)")
async def volumes(place):
    wanted = {"metadata": {"name": "data"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}}
    sandbox = await place.sandbox(pool="wishes", volume_claim_templates=[wanted])
    volume = place.core.read_namespaced_persistent_volume_claim(f"data-{sandbox.sandbox_id}", place.namespace)
    equal(volume.metadata.owner_references[0].name, sandbox.sandbox_id)
    await works(place, sandbox)
    await now(sandbox.terminate())
    refused = lambda: place.sandbox(volume_claim_templates=[wanted])
    await raises(SandboxClaimFailedError, refused, "VolumeClaimTemplatesError")


@row("SandboxClient.create_sandbox(pod_labels, pod_annotations)")
async def metadata(place):
    sandbox = await place.sandbox(pod_labels={"sandbox.users.io/team": "red"}, pod_annotations={"note": "for you"})
    name = await now(sandbox.get_pod_name())

    def carries():
        pod = place.pod(name).metadata
        return ((pod.labels or {}).get("sandbox.users.io/team"), (pod.annotations or {}).get("note")) == ("red", "for you")
    # A Pod of the pool gets them a moment after its claim is Ready.
    await place.until("its Pod carries them", carries)
    await works(place, sandbox)
    await now(sandbox.terminate())
    await raises(SandboxClaimFailedError, lambda: place.sandbox(pod_labels={"team": "red"}), "InvalidMetadata")


@row("SandboxClient.create_sandbox(env)")
async def environment(place):
    sandbox = await place.sandbox(pool="wishes", env={"GREETING": "claim", "MORE": "of it"})
    result = await now(sandbox.commands.run("printenv GREETING MORE"))
    equal((result.stdout, result.exit_code), ("claim\nof it\n", 0))
    await now(sandbox.terminate())
    await raises(SandboxClaimFailedError, lambda: place.sandbox(env={"A": "b"}), "EnvVarsInjectionRejected")


@row("SandboxClient.get_sandbox(claim_name, namespace, resolve_timeout)")
async def attach(place):
    first = await place.shared()
    other = place.client()
    again = await now(other.get_sandbox(first.claim_name, place.namespace, resolve_timeout=30))
    equal(again.sandbox_id, first.sandbox_id)
    await works(place, again)
    check(await now(other.get_sandbox(first.claim_name, place.namespace)) is again)
    await now(again.close_connection())
    fresh_handle = await now(other.get_sandbox(first.claim_name, place.namespace))
    check(fresh_handle is not again and fresh_handle.is_active)
    await now(fresh_handle.close_connection())
    missing = lambda: other.get_sandbox("no-such-claim", place.namespace, resolve_timeout=1)
    await raises(SandboxNotFoundError, missing, "no-such-claim")


@row("AsyncSandboxClient.get_sandbox(warmpool_name)", ASYNC)
async def attach_of_pool(place):
    first, other = await place.shared(), place.client()
    again = await other.get_sandbox(first.claim_name, place.namespace, warmpool_name=POOL)
    equal(again.sandbox_id, first.sandbox_id)
    await again.close_connection()
    wrong = lambda: other.get_sandbox(first.claim_name, place.namespace, warmpool_name="wishes")
    await raises(ValueError, wrong, POOL)


absent("AsyncSandboxClient.get_sandbox(warmpool_name)", SYNC, "-")


@row("SandboxClient.list_active_sandboxes()")
async def list_active(place):
    client = place.client()
    equal(await now(client.list_active_sandboxes()), [])
    sandbox = await place.sandbox(client)
    equal(await now(client.list_active_sandboxes()), [(place.namespace, sandbox.claim_name)])
    await now(sandbox.terminate())
    equal(await now(client.list_active_sandboxes()), [])


@row("SandboxClient.list_all_sandboxes(namespace, label_selector)")
async def list_all(place):
    sandbox = await place.shared()
    client = place.client()
    check(sandbox.claim_name in await now(client.list_all_sandboxes(place.namespace)))
    selector = "agents.x-k8s.io/created-by=python-client"
    check(sandbox.claim_name in await now(client.list_all_sandboxes(place.namespace, label_selector=selector)))
    equal(await now(client.list_all_sandboxes(place.namespace, label_selector="no=such")), [])


@row("SandboxClient.delete_sandbox(claim_name, namespace)")
async def delete(place):
    client = place.client()
    sandbox = await place.sandbox(client)
    claim = sandbox.claim_name
    await now(client.delete_sandbox(claim, place.namespace))
    await place.gone(claim, sandbox.sandbox_id)
    await place.until("its Pod is gone", lambda: place.pod(sandbox.sandbox_id) is None)
    await now(client.delete_sandbox(claim, place.namespace))


@row("SandboxClient.delete_all()")
async def delete_all(place):
    client = place.client()
    made = [await place.sandbox(client), await place.sandbox(client)]
    claims = [each.claim_name for each in made]
    await now(client.delete_all())
    for claim, sandbox in zip(claims, made):
        await place.gone(claim, sandbox.sandbox_id)
    equal(await now(client.list_active_sandboxes()), [])


@row("SandboxClient.get_sandbox_claim_warmpool_name(claim_name, namespace)", SYNC)
async def pool_name(place):
    sandbox = await place.shared()
    equal(place.client().get_sandbox_claim_warmpool_name(sandbox.claim_name, place.namespace), POOL)


absent("SandboxClient.get_sandbox_claim_warmpool_name(claim_name, namespace)", ASYNC, "-")


@row("DirectConnectionConfig(extra_headers)", DIRECT)
async def token(place):
    """The router refuses requests without the token."""
    sandbox = await place.shared()
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        stranger = place.client(place.config(extra_headers=headers))
        handle = await now(stranger.get_sandbox(sandbox.claim_name, place.namespace))
        await raises(SandboxRequestError, lambda: handle.commands.run("true"), status=401)
        await now(handle.close_connection())


absent("DirectConnectionConfig(extra_headers)", [c for c in EVERY if c not in DIRECT], "-")


SCOPED = "DirectConnectionConfig(extra_headers): a token for one sandbox"


@row(SCOPED, [c for c in DIRECT if c in CLUSTER])
async def scoped_token(place):
    """`hutch token create` mints it; it opens this sandbox, in this life, and no other."""
    first, second, scoped = await place.shared(), await place.sandbox(), place.settings["scoped"]
    uid = place.get("Sandbox", first.sandbox_id)["metadata"]["uid"]
    words = ["--key-file", scoped["key"], "--namespace", place.namespace, "--uid", uid]
    minted = subprocess.check_output([scoped["hutch"], "token", "create", first.sandbox_id, *words], text=True)
    headers = {"Authorization": f"Bearer {minted.strip()}"}
    client = place.client(place.config(api_url=scoped["router"], extra_headers=headers))
    await works(place, await now(client.get_sandbox(first.claim_name, place.namespace)))
    other = await now(client.get_sandbox(second.claim_name, place.namespace))
    await raises(SandboxRequestError, lambda: other.commands.run("true"), status=403)
    await now(client.close() if place.asynchronous else None)
    await now(second.terminate())


absent(SCOPED, [c for c in EVERY if c not in DIRECT or c not in CLUSTER], "-")


def chain(error):
    """The error, and what it came of."""
    found = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def demanded(secure):
    """What the TLS listener says to one who shows no certificate, and only listens."""
    host, port = secure["router"].removeprefix("https://").rsplit(":", 1)
    context = ssl.create_default_context(cafile=secure["certificate"])
    with socket.create_connection((host, int(port)), timeout=30) as plain:
        with context.wrap_socket(plain, server_hostname=host) as stream:
            try:
                return f"no alert: {stream.recv(1)!r}"
            except ssl.SSLError as error:
                return error.reason


@row("DirectConnectionConfig(ca_cert, client_cert)", [c for c in DIRECT if c in CLUSTER])
async def tls(place):
    """The router's TLS listener, which verifies the certificate that the client shows."""
    sandbox, secure = await place.shared(), place.settings["tls"]
    config = {"api_url": secure["router"], "ca_cert": secure["certificate"]}
    pair = (secure["certificate"], secure["key"])
    client = place.client(place.config(**config, client_cert=pair))
    handle = await now(client.get_sandbox(sandbox.claim_name, place.namespace))
    await works(place, handle)
    await now(handle.close_connection())
    anonymous = await now(place.client(place.config(**config)).get_sandbox(sandbox.claim_name, place.namespace))
    # Of a stream, because the client tries that once only. When the alert comes with the response, the client's HTTP
    # library does not wrap the error of `ssl`.
    errors = (SandboxRequestError, ssl.SSLError)
    refused = await raises(errors, lambda: anonymous.files.write("works.txt", io.BytesIO(b"")))
    causes = chain(refused)
    # The alert, or what is left of it when the client was still writing as it came.
    alert = any("certificate required" in str(cause).lower() for cause in causes)
    broken = any(isinstance(cause, OSError) and not isinstance(cause, TimeoutError)
                 or type(cause).__name__ in ("ReadError", "WriteError") for cause in causes)
    check(getattr(refused, "status_code", None) is None and (alert or broken), f"not refused by TLS: {causes}")
    equal(demanded(secure), "TLSV13_ALERT_CERTIFICATE_REQUIRED")


absent("DirectConnectionConfig(ca_cert, client_cert)",
       [c for c in EVERY if c not in DIRECT or c not in CLUSTER], "-")
