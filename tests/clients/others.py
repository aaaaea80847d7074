"""Cells of clients that know nothing of sandboxes: the package `kubernetes`, and grpcio."""

import time

import grpc
from kubernetes.stream import portforward, stream
from k8s_agent_sandbox import SandboxClient
from k8s_agent_sandbox.commands._process_stubs import process_pb2, process_pb2_grpc
from k8s_agent_sandbox.models import SandboxDirectConnectionConfig
from table import HTTP, OTHER_COLUMNS, SANDBOXD, absent, check, equal, now, row

BOTH = tuple(OTHER_COLUMNS)
SERVICE = "/process.v1.ProcessService"
# Far more than the windows and pipes on the way hold.
PIECES = [bytes([65 + n % 26]) * 100_000 for n in range(40)]


def shell(text):
    return process_pb2.ProcessConfig(command=["/bin/sh", "-c", text])


async def pod(place):
    """A sandbox's Pod. The client of sandboxes is used to get one, and no further."""
    if not place._clients:
        place.client(SandboxDirectConnectionConfig(api_url=place.settings["router"]), SandboxClient)
    if place._shared is None:
        place._shared = await place.sandbox(place._clients[0])
    return place._shared.sandbox_id


def execute(place, name, command, **more):
    call = place.core.connect_get_namespaced_pod_exec
    given = {"stdin": False, "stdout": True, "stderr": True, "tty": False} | more
    return stream(call, name, place.namespace, command=command, **given)


def to_the_end(session):
    out, err = "", ""
    while session.is_open():
        session.update(timeout=60)
        out += session.read_stdout() if session.peek_stdout() else ""
        err += session.read_stderr() if session.peek_stderr() else ""
    return out + session.read_all(), err


@row("kubernetes: exec, its streams and exit code", BOTH)
async def exec_streams(place):
    name = await pod(place)
    equal(execute(place, name, ["sh", "-c", "echo out"]), "out\n")
    session = execute(place, name, ["sh", "-c", "echo out; echo err >&2; exit 7"], _preload_content=False)
    session.run_forever(timeout=60)
    equal((session.read_stdout(), session.read_stderr(), session.returncode), ("out\n", "err\n", 7))


@row("kubernetes: exec with input", BOTH)
async def exec_input(place):
    session = execute(place, await pod(place), ["sh", "-c", "read line; echo got $line"], stdin=True, _preload_content=False)
    session.write_stdin("word\n")
    session.run_forever(timeout=60)
    equal((session.read_stdout(), session.returncode), ("got word\n", 0))


@row("kubernetes: exec on a terminal", BOTH)
async def exec_terminal(place):
    # The size has a channel of its own: it may arrive after the line.
    script = 'test -t 0 && tty; read line; for i in $(seq 600); do [ "$(stty size)" = "30 90" ] && break; sleep 0.1; done; stty size'
    session = execute(place, await pod(place), ["sh", "-c", script],
                      stdin=True, stderr=False, tty=True, _preload_content=False)
    # Channel 4 carries the size of the terminal.
    session.write_channel(4, '{"Width": 90, "Height": 30}')
    session.write_stdin("\n")
    out, _ = to_the_end(session)
    check("/dev/" in out and "30 90" in out, out)


@row("kubernetes: exec with large output", BOTH)
async def exec_much(place):
    equal(len(execute(place, await pod(place), ["sh", "-c", "yes 0123456 | head -c 8000000"])), 8000000)


@row("kubernetes: logs", BOTH)
async def logs(place):
    text = place.core.read_namespaced_pod_log(await pod(place), place.namespace, container="runtime")
    check("serving" in text, text)


@row("kubernetes: portforward", BOTH)
async def forward(place):
    carried = portforward(place.core.connect_get_namespaced_pod_portforward, await pod(place), place.namespace, ports="8888")
    socket = carried.socket(8888)
    socket.setblocking(True)
    socket.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    answer = b""
    while part := socket.recv(4096):
        answer += part
    check(b"Sandbox Runtime is active." in answer, answer)
    equal(carried.error(8888), None)


class Router:
    """The service of a sandbox's sandboxd by way of the router, over HTTP/2 without TLS."""

    def __init__(self, place, name):
        self.channel = grpc.insecure_channel(place.settings["router"].removeprefix("http://"))
        self.stub = process_pb2_grpc.ProcessServiceStub(self.channel)
        self.more = {"timeout": 120, "metadata": [
            ("authorization", place.headers["Authorization"]), ("x-sandbox-id", name),
            ("x-sandbox-namespace", place.namespace), ("x-sandbox-port", "9090")]}


@row("grpcio through the router: one response", BOTH)
async def router_execute(place):
    router = Router(place, await pod(place))
    done = router.stub.Execute(process_pb2.ExecuteRequest(config=shell("echo out; echo err >&2; exit 3")), **router.more)
    equal((done.stdout, done.stderr, done.exit_code), (b"out\n", b"err\n", 3))
    try:
        router.stub.Execute(process_pb2.ExecuteRequest(), **router.more)
        raise AssertionError("no refusal")
    except grpc.RpcError as error:
        equal((error.code(), error.details()), (grpc.StatusCode.INVALID_ARGUMENT, "command is required"))


@row("grpcio through the router: a stream of responses as they arrive", BOTH)
async def router_start(place):
    router = Router(place, await pod(place))
    answers = router.stub.Start(process_pb2.StartRequest(config=shell("echo one; sleep 1; echo two; exit 4")), **router.more)
    kinds, began = [], time.monotonic()
    for answer in answers:
        kinds.append((answer.WhichOneof("event"), answer.stdout))
    check(time.monotonic() - began > 0.5)
    equal(kinds, [("init", b""), ("stdout", b"one\n"), ("stdout", b"two\n"), ("exit", b"")])


def both_ways(channel, more):
    """A process that echoes: pieces go in by one stream of requests while they come back by another of answers."""
    stub = process_pb2_grpc.ProcessServiceStub(channel)
    answers = stub.Start(process_pb2.StartRequest(config=process_pb2.ProcessConfig(command=["cat"])), **more)
    number = next(answers).init.process_id
    stub.WriteStdin(process_pb2.WriteStdinRequest(process_id=number, input=b"first"), **more)
    equal(next(answers).stdout, b"first")
    requests = [process_pb2.WriteStdinRequest(process_id=number, input=piece) for piece in PIECES]
    requests.append(process_pb2.WriteStdinRequest(process_id=number, eof={}))
    write = channel.stream_unary(f"{SERVICE}/StreamStdin",
                                 request_serializer=process_pb2.WriteStdinRequest.SerializeToString,
                                 response_deserializer=process_pb2.WriteStdinResponse.FromString)
    written = write.future(iter(requests), **more)
    rest = list(answers)
    written.result(timeout=60)
    check(b"".join(each.stdout for each in rest) == b"".join(PIECES), "what came back is what went in")
    equal((rest[-1].WhichOneof("event"), rest[-1].exit.exit_code), ("exit", 0))


@row("grpcio through the router: both directions at once", BOTH)
async def router_both_ways(place):
    router = Router(place, await pod(place))
    both_ways(router.channel, router.more)


@row("grpcio through the router: a cancel ends the process", BOTH)
async def router_cancel(place):
    router = Router(place, await pod(place))
    answers = router.stub.Start(process_pb2.StartRequest(config=shell("echo $$; exec sleep 98765")), **router.more)
    check(next(answers).WhichOneof("event") == "init")
    there = shell(f"test -e /proc/{next(answers).stdout.decode().strip()}")

    def gone():
        return router.stub.Execute(process_pb2.ExecuteRequest(config=there), **router.more).exit_code == 1
    check(not gone())
    answers.cancel()
    await place.until("the process is gone", gone)


@row("grpcio over the client's channel: both directions at once", SANDBOXD)
async def channel_both_ways(place):
    sandbox = await place.shared()
    await now(sandbox.connector.connect())
    if place.asynchronous:
        # The asynchronous client's address, with a channel of this cell's own: `both_ways` reads and writes as threads do.
        both_ways(grpc.insecure_channel(sandbox.connector.grpc_target), {"timeout": 120})
    else:
        both_ways(sandbox.connector.grpc_channel(), {"timeout": 120})


absent("grpcio over the client's channel: both directions at once", HTTP, "-")
