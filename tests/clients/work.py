"""Cells of what one does in a sandbox: commands, files, requests of one's own."""

import contextlib
import io
import time

from k8s_agent_sandbox import get_metrics, print_metrics
from k8s_agent_sandbox.exceptions import SandboxRequestError
from k8s_agent_sandbox.extensions import ComputerUseSandboxClient
from lifecycle import works
from table import ASYNC, HTTP, SANDBOXD, SYNC, TUNNELS, absent, check, equal, now, raises, row

MEGABYTE = bytes(range(256)) * 4096


class Sink:
    """Where `read_to` writes: of either kind, and only a part at a time."""

    def __init__(self, asynchronous, most=10_000):
        self.content, self.asynchronous, self.most = bytearray(), asynchronous, most

    def write(self, content):
        part = bytes(content[:self.most])
        self.content += part

        async def later():
            return len(part)
        return later() if self.asynchronous else len(part)


@row("Commands.run(command)")
async def run(place):
    commands = (await place.shared()).commands
    result = await now(commands.run("echo 'Hello from the sandboxed environment!'"))
    wanted = ("Hello from the sandboxed environment!\n", "", 0, False)
    equal((result.stdout, result.stderr, result.exit_code, result.timed_out), wanted)
    result = await now(commands.run("sh -c 'echo out; echo err >&2; exit 7'"))
    equal((result.stdout, result.stderr, result.exit_code), ("out\n", "err\n", 7))
    result = await now(commands.run("no-such-program"))
    check(result.exit_code in (1, 127) and "no-such-program" in result.stderr, result)
    result = await now(commands.run("python3 -c \"print('x' * 3000000)\""))
    equal(len(result.stdout), 3000001)


@row("Commands.run(timeout)")
async def run_timeout(place):
    commands = (await place.shared()).commands
    begun = time.monotonic()
    kind = RuntimeError if place.speaks == "sandboxd" else SandboxRequestError
    await raises(kind, lambda: commands.run("sleep 3600", timeout=1))
    check(time.monotonic() - begun < 600)
    equal((await now(commands.run("echo on", timeout=60))).stdout, "on\n")


@row("Commands.run(command_timeout)")
async def run_command_timeout(place):
    commands = (await place.shared()).commands
    result = await now(commands.run("sleep 3600", command_timeout=1))
    check(result.timed_out and "timed out after" in result.stderr, result)


@row("Commands.run(env, cwd)", SANDBOXD)
async def run_env(place):
    sandbox = await place.shared()
    await now(sandbox.files.write("folder/there", ""))
    result = await now(sandbox.commands.run("echo $GREETING; pwd", env={"GREETING": "hi"}, cwd="folder"))
    check(result.stdout.startswith("hi\n/") and result.stdout.endswith("/folder\n") and result.exit_code == 0, result)
    await raises(RuntimeError, lambda: sandbox.commands.run("true", cwd="../.."), "PERMISSION_DENIED")


@row("Commands.run(env, cwd)", HTTP, "refused by the client")
async def run_env_refused(place):
    commands = (await place.shared()).commands
    await raises(NotImplementedError, lambda: commands.run("true", env={"A": "b"}))


@row("Files.write(path, content, timeout)")
async def write(place):
    sandbox = await place.shared()
    files = sandbox.files
    await now(files.write("deep/down/data file.bin", MEGABYTE, timeout=60))
    equal(await now(files.read("deep/down/data file.bin")), MEGABYTE)
    await now(files.write("deep/down/data file.bin", "grüß\n"))
    equal(await now(files.read("deep/down/data file.bin")), "grüß\n".encode())
    await now(files.write("100% & more?#.txt", io.BytesIO(MEGABYTE)))
    equal(await now(files.read("100% & more?#.txt")), MEGABYTE)
    await now(files.write("empty", b""))
    equal(await now(files.read("empty")), b"")
    await now(files.write("script.py", "print(6 * 7)\n"))
    equal((await now(sandbox.commands.run("python3 script.py"))).stdout, "42\n")
    await raises(ValueError, lambda: files.write("../outside", b""))


@row("Files.read(path, timeout)")
async def read(place):
    files = (await place.shared()).files
    await now(files.write("read.bin", MEGABYTE))
    equal(await now(files.read("read.bin", timeout=60)), MEGABYTE)
    equal(await now(files.read("/read.bin")), MEGABYTE)
    await raises(SandboxRequestError, lambda: files.read("missing.txt"), status=404)


@row("Files.read_to(path, destination, timeout, max_bytes)")
async def read_to(place):
    files = (await place.shared()).files
    await now(files.write("stream.bin", MEGABYTE))
    sink = Sink(place.asynchronous)
    equal(await now(files.read_to("stream.bin", sink, timeout=60)), len(MEGABYTE))
    equal(bytes(sink.content), MEGABYTE)
    sink = Sink(place.asynchronous)
    equal(await now(files.read_to("stream.bin", sink, max_bytes=len(MEGABYTE))), len(MEGABYTE))
    await raises(RuntimeError, lambda: files.read_to("stream.bin", Sink(place.asynchronous), max_bytes=1000), "1000 bytes")
    missing = lambda: files.read_to("missing.txt", Sink(place.asynchronous))
    check("detail" not in (await raises(SandboxRequestError, missing, status=404)).response.text)
    equal(await now(files.read("stream.bin")), MEGABYTE)


@row("Files.read, Files.read_to, Files.write(allow_unsafe_paths)")
async def unsafe(place):
    """Paths that the client would refuse are the runtime's to judge."""
    files, sink = (await place.shared()).files, Sink(place.asynchronous)
    await raises(ValueError, lambda: files.read("../../etc/passwd"))
    for call in (lambda: files.read("../../etc/passwd", allow_unsafe_paths=True),
                 lambda: files.read_to("../../etc/passwd", sink, allow_unsafe_paths=True),
                 lambda: files.write("../../etc/passwd", b"x", allow_unsafe_paths=True)):
        await raises(SandboxRequestError, call, status=403)
    await now(files.write("a/../b//c.txt", b"up and down", allow_unsafe_paths=True))
    equal(await now(files.read("b/c.txt")), b"up and down")


@row("Files.list(path, timeout)")
async def listing(place):
    files = (await place.shared()).files
    await now(files.write("listed/inner/file", MEGABYTE))
    await now(files.write("listed/grüß.txt", "grüß"))
    entries = {entry.name: entry for entry in await now(files.list("listed", timeout=60))}
    equal({name: (entry.type, entry.size) for name, entry in entries.items() if entry.type == "file"}, {"grüß.txt": ("file", 6)})
    equal(entries["inner"].type, "directory")
    check(abs(time.time() - entries["grüß.txt"].modified.timestamp()) < 3600)
    equal(entries["grüß.txt"].mode, "0644" if place.speaks == "sandboxd" else None)
    equal([entry.name for entry in await now(files.list("listed/inner"))], ["file"])
    check("listed" in [entry.name for entry in await now(files.list(""))])
    await raises(SandboxRequestError, lambda: files.list("no/such"), status=404)


@row("Files.exists(path, timeout)")
async def exists(place):
    files = (await place.shared()).files
    await now(files.write("there/it is", b""))
    for path, wanted in [("there/it is", True), ("there", True), ("there/not", False), ("there/it is/below", False)]:
        equal((path, await now(files.exists(path, timeout=60))), (path, wanted))


DELETE = "Files.delete(path, recursive, timeout)"


@row(DELETE, SANDBOXD)
async def delete(place):
    files = (await place.shared()).files
    await now(files.write("old/file", b""))
    await raises(SandboxRequestError, lambda: files.delete("old"), status=409)
    await now(files.delete("old/file", timeout=60))
    check(not await now(files.exists("old/file")))
    await now(files.write("old/file", b""))
    await now(files.delete("old", recursive=True))
    check(not await now(files.exists("old")))
    await raises(SandboxRequestError, lambda: files.delete("old"), status=404)


@row(DELETE, HTTP, "refused by the client")
async def delete_refused(place):
    files = (await place.shared()).files
    await raises(NotImplementedError, lambda: files.delete("old"))


AGENT = "ComputerUseSandboxClient: SandboxWithComputerUseSupport.agent(query, timeout)"


@row(AGENT, [column for column in SYNC if column in HTTP])
async def agent(place):
    """The query arrives at whatever the sandbox has there, and its answer comes back: nothing more is promised."""
    sandbox = await place.sandbox(place.client(kind=ComputerUseSandboxClient), "agent")
    result = sandbox.agent("open the door", timeout=60)
    equal((result.stdout, result.stderr, result.exit_code), ("rood eht nepo", sandbox.sandbox_id, 0))
    sandbox.terminate()


@row(AGENT, [column for column in SYNC if column in SANDBOXD], "404")
async def agent_refused(place):
    """sandboxd has no such path."""
    sandbox = await place.sandbox(place.client(kind=ComputerUseSandboxClient))
    await raises(SandboxRequestError, lambda: sandbox.agent("open the door"), status=404)
    sandbox.terminate()


absent(AGENT, ASYNC, "-")


@row("Connector.connect(), Connector.is_sandboxd()")
async def connect(place):
    connector = (await place.shared()).connector
    equal(connector.is_sandboxd(), place.speaks == "sandboxd")
    url = await now(connector.connect())
    equal(await now(connector.connect()), url)
    check(url.startswith("http://"), url)


@row("Connector.send_request(method, endpoint)")
async def request(place):
    connector = (await place.shared()).connector
    path, status = ("v1/health", "ok") if place.speaks == "sandboxd" else ("", "ok")
    equal((await now(connector.send_request("GET", path, timeout=60))).json()["status"], status)
    await raises(SandboxRequestError, lambda: connector.send_request("GET", "no/such/path"), status=404)
    allowed = await now(connector.send_request("GET", "no/such/path", allowed_statuses={404}))
    equal(allowed.status_code, 404)


@row("Connector.close()")
async def close(place):
    sandbox = await place.sandbox()
    await works(place, sandbox)
    await now(sandbox.connector.close())
    if place.asynchronous:
        # The asynchronous client's connector stays closed.
        await raises(Exception, lambda: sandbox.files.read("works.txt"), "closed")
    else:
        await works(place, sandbox)
    await now(sandbox.terminate())


CHANNEL = "Connector.grpc_channel()"


@row(CHANNEL, SANDBOXD)
async def channel(place):
    """The channel is a real one: the standard health of the service is requested over it, through its reflection."""
    connector = (await place.shared()).connector
    await now(connector.connect())
    own = await now(connector.grpc_channel())
    check(await now(connector.grpc_channel()) is own)
    from k8s_agent_sandbox.commands._process_stubs import process_pb2, process_pb2_grpc
    execute = process_pb2_grpc.ProcessServiceStub(own).Execute
    done = await now(execute(process_pb2.ExecuteRequest(config=process_pb2.ProcessConfig(command=["printf", "%s", "$HOME *"]))))
    equal(done.stdout, b"$HOME *")


@row(CHANNEL, HTTP, "refused by the client")
async def channel_refused(place):
    connector = (await place.shared()).connector
    await raises(RuntimeError, connector.grpc_channel, "sandboxd")


INVALIDATE = "Connector.invalidate_sandboxd_transport(channel, transport_token)"


@row(INVALIDATE)
async def invalidate(place):
    """What the client does after a failure; the next call works."""
    sandbox = await place.shared()
    await works(place, sandbox)
    await now(sandbox.connector.invalidate_sandboxd_transport(None, transport_token=None))
    await works(place, sandbox)
    equal((await now(sandbox.commands.run("echo on"))).stdout, "on\n")


INJECT = "AsyncConnector.should_inject_router_headers()"


@row(INJECT, ASYNC)
async def injects(place):
    equal((await place.shared()).connector.should_inject_router_headers(), place.speaks == "http")


absent(INJECT, SYNC, "-")


@row("get_metrics(), print_metrics()")
async def metrics(place):
    await works(place, await place.shared())
    check("sandbox_client_discovery_latency_ms" in get_metrics())
    if place.column in TUNNELS and not place.asynchronous:
        mode = "port_forward" if place.speaks == "http" else "sandboxd_pod_tunnel"
        check(f'sandbox_client_discovery_latency_ms_count{{mode="{mode}",status="success"}}' in get_metrics())
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        print_metrics()
    check("sandbox_client_discovery_latency_ms" in printed.getvalue())
