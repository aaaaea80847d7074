"""Cells of a handle that lives through a suspend and a resume, and through broken connections."""

import asyncio
import signal
import time

from k8s_agent_sandbox.exceptions import SandboxRequestError
from lifecycle import works
from places import PATIENCE_SECONDS
from table import CLUSTER, EVERY, HTTP, POD_TUNNELS, SANDBOXD, TUNNELS, absent, check, equal, now, raises, row

UNNOTIFIED = [column for column in POD_TUNNELS if column in CLUSTER]


@row("resume: a command to the Pod address from before", HTTP)
async def resumed_command(place):
    """The client still sends the former address of the Pod; the request reaches the current Pod at once."""
    sandbox = await place.sandbox()
    equal((await now(sandbox.commands.run("echo before"))).stdout, "before\n")
    before = await now(sandbox.get_pod_ip())
    await place.suspend(sandbox)
    await place.resume(sandbox)
    # On one machine a Sandbox keeps its address.
    equal(await now(sandbox.get_pod_ip()) == before, place.where == "up")
    equal((await now(sandbox.commands.run("echo after"))).stdout, "after\n")
    await works(place, sandbox)
    await now(sandbox.terminate())


@row("resume: a file to the Pod address from before", HTTP)
async def resumed_file(place):
    sandbox = await place.sandbox()
    await works(place, sandbox)
    await place.suspend(sandbox)
    await place.resume(sandbox)
    await works(place, sandbox)
    await now(sandbox.terminate())


CALL, FILE = "resume: a command over the tunnel or channel from before", "resume: a file over the tunnel or channel from before"
ASLEEP = "idle suspend: the handle works after a patch to Running, as the package's own resume sends"


def notified(function, name, columns):
    """Makes it the cell of these columns. On a cluster kubectl does not notice that the Pod was deleted: the next call fails."""
    row(name, [column for column in columns if column not in UNNOTIFIED])(function)
    row(name, UNNOTIFIED, "second call")(function)


async def works_again(place, call):
    """The handle works again; its result."""
    if place.column not in UNNOTIFIED:
        return await now(call())
    await raises((RuntimeError, SandboxRequestError), call)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return await now(call())
        except (RuntimeError, SandboxRequestError):
            # kubectl may take a moment to end.
            check(time.monotonic() < deadline, "it never works again")
            await asyncio.sleep(0.1)


async def resumed_sandboxd_command(place):
    sandbox = await place.sandbox()
    equal((await now(sandbox.commands.run("echo before"))).stdout, "before\n")
    await place.suspend(sandbox)
    await place.resume(sandbox)
    equal((await works_again(place, lambda: sandbox.commands.run("echo after"))).stdout, "after\n")
    await works(place, sandbox)
    await now(sandbox.terminate())


async def resumed_sandboxd_file(place):
    sandbox = await place.sandbox()
    await works(place, sandbox)
    await place.suspend(sandbox)
    await place.resume(sandbox)
    await works_again(place, lambda: sandbox.files.write("after.txt", "after"))
    await works(place, sandbox)
    await now(sandbox.terminate())


notified(resumed_sandboxd_command, CALL, SANDBOXD)
notified(resumed_sandboxd_file, FILE, SANDBOXD)


@row("suspended: a command is refused, and the handle works after the resume")
async def refused_meanwhile(place):
    sandbox = await place.sandbox()
    await now(sandbox.commands.run("true"))
    await place.suspend(sandbox)
    if place.speaks == "http":
        await raises(SandboxRequestError, lambda: sandbox.commands.run("true"), status=502)
    else:
        await raises(Exception, lambda: sandbox.commands.run("true", timeout=20))
    await place.resume(sandbox)
    equal((await now(sandbox.commands.run("echo on"))).stdout, "on\n")
    await works(place, sandbox)
    await now(sandbox.terminate())


async def resumed_from_sleep(place):
    sandbox = await place.sandbox()
    await works(place, sandbox)
    await place.falls_asleep(sandbox)
    await place.resume(sandbox)
    equal((await works_again(place, lambda: sandbox.commands.run("echo on"))).stdout, "on\n")
    await works(place, sandbox)
    await now(sandbox.terminate())


notified(resumed_from_sleep, ASLEEP, EVERY)


@row("idle suspend: the next command wakes it", HTTP)
async def woken_by_command(place):
    sandbox = await place.sandbox()
    equal((await now(sandbox.commands.run("echo before"))).stdout, "before\n")
    await place.falls_asleep(sandbox, wake_on_connect="true")
    equal((await now(sandbox.commands.run("echo after"))).stdout, "after\n")
    equal(place.get("Sandbox", sandbox.sandbox_id)["spec"]["operatingMode"], "Running")
    await works(place, sandbox)
    await now(sandbox.terminate())


@row("broken tunnel: kubectl killed between two calls", TUNNELS)
async def killed(place):
    sandbox = await place.sandbox()
    await works(place, sandbox)
    connector = sandbox.connector
    strategy = connector.strategy if hasattr(connector, "strategy") else connector._sandboxd_strategy
    process = strategy.port_forward_process
    process.send_signal(signal.SIGKILL)
    await (process.wait() if place.asynchronous else asyncio.to_thread(process.wait))
    await works(place, sandbox)
    equal((await now(sandbox.commands.run("echo on"))).stdout, "on\n")
    check(strategy.port_forward_process is not process)
    await now(sandbox.terminate())


for name, columns in [("resume: a command to the Pod address from before", SANDBOXD),
                      ("resume: a file to the Pod address from before", SANDBOXD),
                      (CALL, HTTP),
                      (FILE, HTTP),
                      ("idle suspend: the next command wakes it", SANDBOXD),
                      ("broken tunnel: kubectl killed between two calls", [c for c in EVERY if c not in TUNNELS])]:
    absent(name, columns, "-")
