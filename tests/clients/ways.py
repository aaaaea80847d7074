"""Cells of the ways to a sandbox: their options, and much or many at once."""

import asyncio
import io

from k8s_agent_sandbox.exceptions import SandboxPortForwardError
from lifecycle import works
from table import EVERY, HTTP, ROUTER_TUNNELS, SANDBOXD, absent, check, equal, now, raises, row
from work import Sink

PORT = "DirectConnectionConfig, LocalTunnelConnectionConfig(server_port)"
PORTS = "SandboxdPodTunnelConnectionConfig, SandboxdInClusterConnectionConfig(rest_port, grpc_port)"
ROUTER = "LocalTunnelConnectionConfig(router_namespace)"
CALLS = 40
LARGE = bytes(range(256)) * (1 << 17)


@row(PORT, HTTP)
async def server_port(place):
    """The port of sandboxd's other contract, by the same router."""
    first = await place.shared()
    handle = await now(place.client(place.config(server_port=8080)).get_sandbox(first.claim_name, place.namespace))
    equal((await now(handle.connector.send_request("GET", "v1/health"))).json()["status"], "ok")
    await now(handle.close_connection())


@row(PORTS, SANDBOXD)
async def sandboxd_ports(place):
    first = await place.shared()
    handle = await now(place.client(place.config(rest_port=8888, grpc_port=9090)).get_sandbox(first.claim_name, place.namespace))
    equal((await now(handle.connector.send_request("GET", ""))).json()["message"], "Sandbox Runtime is active.")
    equal((await now(handle.commands.run("echo on"))).stdout, "on\n")
    await now(handle.close_connection())


@row(ROUTER, ROUTER_TUNNELS)
async def router_namespace(place):
    first = await place.shared()
    client = place.client(place.config(router_namespace="agent-sandbox-system"))
    await works(place, client.get_sandbox(first.claim_name, place.namespace))
    lost = place.client(place.config(router_namespace="no-such-namespace")).get_sandbox(first.claim_name, place.namespace)
    await raises(SandboxPortForwardError, lambda: lost.commands.run("true"), "not found in namespace 'no-such-namespace'")


async def at_once(place, calls):
    """All of them at once: as tasks, or as threads of the synchronous client."""
    if place.asynchronous:
        return await asyncio.gather(*[call() for call in calls])
    return await asyncio.gather(*[asyncio.to_thread(call) for call in calls])


@row("many concurrent commands and files")
async def many(place):
    sandbox = await place.sandbox()
    await works(place, sandbox)
    numbers = range(CALLS)
    results = await at_once(place, [lambda n=n: sandbox.commands.run(f"sh -c 'sleep 0.1; echo {n}'") for n in numbers])
    equal([result.stdout for result in results], [f"{n}\n" for n in numbers])
    await at_once(place, [lambda n=n: sandbox.files.write(f"many/{n}", bytes([n]) * 100_000) for n in numbers])
    found = await at_once(place, [lambda n=n: sandbox.files.read(f"many/{n}") for n in numbers])
    check(found == [bytes([n]) * 100_000 for n in numbers])
    equal(len(await now(sandbox.files.list("many"))), CALLS)
    await now(sandbox.terminate())


@row("a file of 32 MiB in and out")
async def large(place):
    files, sink = (await place.shared()).files, Sink(place.asynchronous, len(LARGE))
    await now(files.write("large.bin", io.BytesIO(LARGE), timeout=120))
    equal(await now(files.read_to("large.bin", sink, timeout=120)), len(LARGE))
    check(bytes(sink.content) == LARGE)


for name, columns in [(PORT, HTTP), (PORTS, SANDBOXD), (ROUTER, ROUTER_TUNNELS)]:
    absent(name, [column for column in EVERY if column not in columns], "-")
