"""Talks to the gRPC port given as the first argument with grpcio, knowing nothing but what server reflection tells.

Every check is an assertion; the last line printed is `ok`.
With a token in TOKEN only what has to do with it is checked; DESCRIPTORS is then the compiled contract.
"""

import faulthandler
import os
import queue
import sys
import threading
import time
import traceback

import grpc
from google.protobuf import descriptor_pool, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

# A call of grpcio that is collected waits for a lock without end, if its thread ends meanwhile or another call holds it.
CALLS = []
# The stacks of a client that hangs: each call ends after two minutes.
faulthandler.dump_traceback_later(400, exit=True)
CHANNEL = grpc.insecure_channel(f"127.0.0.1:{sys.argv[1]}")
METADATA = [("authorization", f"Bearer {os.environ['TOKEN']}")] if "TOKEN" in os.environ else []
SERVICE = "process.v1.ProcessService"


class Stub:
    """The methods of the service, made from its descriptor."""

    def __init__(self):
        # The reflection client has no way to send metadata, so it is used only where none is needed.
        if METADATA:
            from google.protobuf import descriptor_pb2
            files = descriptor_pb2.FileDescriptorSet.FromString(open(os.environ["DESCRIPTORS"], "rb").read())
            pool = descriptor_pool.DescriptorPool()
            for file in files.file:
                pool.Add(file)
        else:
            database = ProtoReflectionDescriptorDatabase(CHANNEL)
            assert SERVICE in database.get_services(), database.get_services()
            pool = descriptor_pool.DescriptorPool(database)
        self.service = pool.FindServiceByName(SERVICE)
        for method in self.service.methods:
            request = message_factory.GetMessageClass(method.input_type)
            response = message_factory.GetMessageClass(method.output_type)
            kind = {(False, False): CHANNEL.unary_unary, (False, True): CHANNEL.unary_stream,
                    (True, False): CHANNEL.stream_unary}[(method.client_streaming, method.server_streaming)]
            call = kind(f"/{SERVICE}/{method.name}", request_serializer=request.SerializeToString,
                        response_deserializer=response.FromString)
            setattr(self, method.name, self.bound(call, request))

    @staticmethod
    def bound(call, request):
        def run(*messages, timeout=120, **fields):
            given = (request(**each) for each in messages[0]) if messages else request(**fields)
            CALLS.append(call(given, timeout=timeout, metadata=METADATA))
            return CALLS[-1]
        return run


STUB = Stub()


def fails(code, call, part=""):
    try:
        result = call()
        if hasattr(result, "__iter__"):
            result = list(result)
    except grpc.RpcError as error:
        assert error.code() == code, (error.code(), error.details())
        assert part in error.details(), error.details()
        return
    raise AssertionError(f"no {code}: {result}")


def sh(text, **more):
    return dict(command=["/bin/sh", "-c", text], **more)


def events(stream):
    """Number, standard output, standard error, dropped bytes and exit of a stream that is read to its end."""
    number, out, err, dropped, end = None, bytearray(), bytearray(), 0, None
    for position, message in enumerate(stream):
        kind = message.WhichOneof("event")
        assert (position == 0) == (kind == "init") and end is None, (position, kind)
        if kind == "init":
            number = message.init.process_id
        elif kind == "stdout":
            out += message.stdout
        elif kind == "stderr":
            err += message.stderr
        elif kind == "dropped":
            dropped += message.dropped.bytes
        else:
            end = message.exit
    return number, bytes(out), bytes(err), dropped, end


def runs(word):
    """Whether a process has this word among its arguments."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                words = open(f"/proc/{entry}/cmdline", "rb").read().split(b"\0")
            except OSError:
                continue
            if word.encode() in words:
                return True
    return False


def eventually(what, check):
    for _ in range(6000):
        if check():
            return
        time.sleep(0.02)
    raise AssertionError(f"not within two minutes: {what}")


def gone(word):
    eventually(f"{word} is gone", lambda: not runs(word))


def execute():
    done = STUB.Execute(config=sh("echo out; echo err >&2; exit 3"))
    assert (done.stdout, done.stderr, done.exit_code) == (b"out\n", b"err\n", 3), done
    done = STUB.Execute(config=dict(command=["printf", "%s", "$HOME *"]))
    assert done.stdout == b"$HOME *", "no shell"
    done = STUB.Execute(config=sh('echo "$GREETING $PATH"', env_vars={"GREETING": "hello"}))
    assert done.stdout.startswith(b"hello /"), done.stdout
    assert STUB.Execute(config=sh("kill -9 $$")).exit_code == -1
    assert STUB.Execute(config=dict(command=["cat"])).stdout == b"", "standard input is empty"
    folder = STUB.Execute(config=dict(command=["pwd"])).stdout.strip()
    for cwd in ["inner", "/inner", folder.decode() + "/inner", "inner/../inner/."]:
        STUB.Execute(config=sh("mkdir -p inner"))
        assert STUB.Execute(config=dict(command=["pwd"], cwd=cwd)).stdout == folder + b"/inner\n", cwd
    # Something that is left behind and holds the output does not hold up the answer.
    begun = time.monotonic()
    assert STUB.Execute(config=sh("sleep 71.5 & echo on")).stdout == b"on\n"
    assert time.monotonic() - begun < 65
    STUB.Execute(config=sh("pkill -f 'sleep 71.5' || true"))
    invalid, missing, denied = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND,
                                grpc.StatusCode.PERMISSION_DENIED)
    fails(invalid, lambda: STUB.Execute(), "command is required")
    fails(invalid, lambda: STUB.Execute(config=sh("true", env_vars={"A=B": "c"})), "A=B")
    fails(missing, lambda: STUB.Execute(config=dict(command=["no-such-program"])),
          "failed to execute command: command or path not found: ")
    fails(denied, lambda: STUB.Execute(config=dict(command=["/etc/passwd"])), "failed to execute command")
    fails(denied, lambda: STUB.Execute(config=sh("true", cwd="../..")), "cwd: ")
    fails(missing, lambda: STUB.Execute(config=sh("true", cwd="nowhere")), "cwd: ")
    fails(grpc.StatusCode.RESOURCE_EXHAUSTED, lambda: STUB.Execute(config=sh("head -c 6000000 /dev/zero")), "Start")
    fails(grpc.StatusCode.DEADLINE_EXCEEDED,
          lambda: STUB.Execute(config=sh("sleep 72.5; true"), timeout=0.5))
    gone("72.5")


def start():
    number, out, err, dropped, end = events(STUB.Start(config=sh("echo out; echo err >&2; exit 4")))
    assert number >= 1 and (out, err, dropped) == (b"out\n", b"err\n", 0)
    assert (end.exit_code, end.signal) == (4, 0)
    second = events(STUB.Start(config=dict(command=["true"])))[0]
    assert second > number, "numbers go up"
    fails(grpc.StatusCode.NOT_FOUND, lambda: STUB.SendSignal(process_id=number, signal=15), f"process {number} not found")
    fails(grpc.StatusCode.NOT_FOUND, lambda: STUB.Start(config=dict(command=["/no/such"])),
          "failed to start command: command or path not found")
    fails(grpc.StatusCode.INVALID_ARGUMENT, lambda: STUB.Start(), "command is required")
    # Far more than what fits into the windows and pipes on the way, read slowly at first.
    stream = STUB.Start(config=sh("head -c 50000000 /dev/zero; echo end"))
    time.sleep(0.3)
    assert len(events(stream)[1]) == 50000004
    begun = time.monotonic()
    assert events(STUB.Start(config=sh("sleep 73.5 & echo on")))[1] == b"on\n"
    assert time.monotonic() - begun < 65
    STUB.Execute(config=sh("pkill -f 'sleep 73.5' || true"))


def talk():
    stream = STUB.Start(config=dict(command=["cat"]))
    number = next(stream).init.process_id
    STUB.WriteStdin(process_id=number, input=b"one\n")
    assert next(stream).stdout == b"one\n"
    # A stream of writes, each waiting for room: the process echoes as fast as its output is taken.
    pieces = [dict(process_id=number, input=bytes([65 + part]) * 100000) for part in range(20)]
    got = queue.SimpleQueue()
    reader = threading.Thread(target=lambda: got.put(list(stream)))
    reader.start()
    STUB.StreamStdin(pieces + [dict(process_id=number, eof={})])
    rest = got.get(timeout=60)
    reader.join()
    assert b"".join(m.stdout for m in rest) == b"".join(bytes([65 + part]) * 100000 for part in range(20))
    assert rest[-1].exit.exit_code == 0
    stream = STUB.Start(config=sh("exec cat"))
    number = next(stream).init.process_id
    STUB.WriteStdin(process_id=number, eof={})
    assert next(stream).exit.exit_code == 0
    stream = STUB.Start(config=sh("exec 0<&-; sleep 60"))
    number = next(stream).init.process_id
    STUB.WriteStdin(process_id=number, eof={})
    fails(grpc.StatusCode.FAILED_PRECONDITION, lambda: STUB.WriteStdin(process_id=number, input=b"x"),
          f"process {number} has no stdin")
    fails(grpc.StatusCode.INVALID_ARGUMENT, lambda: STUB.WriteStdin(process_id=number), "input and eof")
    fails(grpc.StatusCode.INVALID_ARGUMENT, lambda: STUB.SendSignal(process_id=number),
          "unsupported or unspecified signal: SIGNAL_UNSPECIFIED")
    fails(grpc.StatusCode.INVALID_ARGUMENT, lambda: STUB.SendSignal(process_id=number, signal=7),
          "unsupported or unspecified signal: 7")
    fails(grpc.StatusCode.FAILED_PRECONDITION, lambda: STUB.ResizeTTY(process_id=number, cols=1, rows=1),
          "failed to resize TTY: ")
    STUB.SendSignal(process_id=number, signal=15)
    end = next(stream).exit
    assert (end.exit_code, end.signal) == (-1, 15), end
    fails(grpc.StatusCode.NOT_FOUND, lambda: STUB.WriteStdin(process_id=12345, input=b"x"), "process 12345 not found")
    # A signal goes to the whole group.
    stream = STUB.Start(config=sh("sleep 74.5 & sleep 74.5"))
    number = next(stream).init.process_id
    STUB.SendSignal(process_id=number, signal=9)
    assert next(stream).exit.signal == 9
    gone("74.5")
    # The client's cancel ends the process, also one that ignores SIGTERM, with what it started.
    stream = STUB.Start(config=sh("trap '' TERM INT HUP; sleep 75.5 & while :; do sleep 75.5; done"))
    next(stream)
    stream.cancel()
    gone("75.5")


def terminal():
    stream = STUB.Start(config=dict(command=["sh", "-c", "stty size; tty; echo done"]), pty=dict(cols=90, rows=30))
    _, out, err, _, end = events(stream)
    assert out.startswith(b"30 90\r\n/dev/") and out.endswith(b"done\r\n") and err == b"", out
    assert end.exit_code == 0
    # Nothing of the end is lost, however much it is.
    for _ in range(20):
        out = events(STUB.Start(config=sh("seq 20000; printf last"), pty={}))[1]
        assert out.endswith(b"20000\r\nlast"), out[-40:]
    # ^D ends the input of a program, and the terminal stays.
    stream = STUB.Start(config=sh("cat; stty -echo; echo between; cat; echo after"), pty={})
    number = next(stream).init.process_id
    STUB.WriteStdin(process_id=number, eof={})
    seen = b""
    while b"between" not in seen:
        seen += next(stream).stdout
    STUB.WriteStdin(process_id=number, input=b"no line end")
    STUB.WriteStdin(process_id=number, eof={})
    for message in stream:
        seen += message.stdout
        end = message
    assert seen.endswith(b"no line endafter\r\n") and end.exit.exit_code == 0, seen
    # Another size is told to the program; ^C reaches the job in the foreground of an interactive shell.
    stream = STUB.Start(config=dict(command=["sh", "-i"], env_vars={"PS1": "> "}), pty={})
    number = next(stream).init.process_id
    STUB.ResizeTTY(process_id=number, cols=101, rows=33)
    STUB.WriteStdin(process_id=number, input=b"stty size; echo ready; sleep 76.5\n")
    seen = b""
    while b"33 101" not in seen or seen.count(b"ready") < 2:
        seen += next(stream).stdout
    eventually("the job is in the foreground", lambda: runs("76.5"))
    STUB.SendSignal(process_id=number, signal=2)
    gone("76.5")
    STUB.WriteStdin(process_id=number, input=b"exit 5\n")
    assert events_after_init(stream).exit_code == 5
    fails(grpc.StatusCode.NOT_FOUND, lambda: STUB.Start(config=dict(command=["/no/such"]), pty={}),
          "failed to start command: command or path not found")
    fails(grpc.StatusCode.INVALID_ARGUMENT, lambda: STUB.Start(config=sh("true"), pty=dict(cols=70000)), "70000")


def events_after_init(stream):
    last = None
    for last in stream:
        pass
    return last.exit


def detached():
    stream = STUB.Start(config=sh("echo begun; read line; echo got $line; sleep 0.2; exit 6"), detach=True)
    number = next(stream).init.process_id
    assert next(stream).stdout == b"begun\n"
    stream.cancel()
    listed = {each.process_id: each for each in STUB.List().processes}
    assert listed[number].detached and not listed[number].HasField("exit")
    assert list(listed[number].command)[:2] == ["/bin/sh", "-c"] and listed[number].output_end == 6
    again = STUB.Connect(process_id=number, offset=6)
    next(again)
    STUB.WriteStdin(process_id=number, input=b"words\n")
    assert next(again).stdout == b"got words\n"
    assert STUB.Wait(process_id=number).exit.exit_code == 6
    assert events_after_init(again).exit_code == 6
    whole = events(STUB.Connect(process_id=number))
    assert whole[1] == b"begun\ngot words\n" and whole[4].exit_code == 6
    assert events(STUB.Connect(process_id=number, offset=10))[1] == b"words\n"
    assert events(STUB.Connect(process_id=number, offset=16))[1] == b""
    fails(grpc.StatusCode.OUT_OF_RANGE, lambda: STUB.Connect(process_id=number, offset=17), "offset 17")
    fails(grpc.StatusCode.NOT_FOUND, lambda: STUB.SendSignal(process_id=number, signal=15))
    listed = {each.process_id: each for each in STUB.List().processes}
    assert listed[number].exit.exit_code == 6 and listed[number].output_end == 16
    # More output than is kept: the oldest is dropped, and counted.
    stream = STUB.Start(config=sh("seq 1000000; echo end"), detach=True)
    number = next(stream).init.process_id
    stream.cancel()
    STUB.Wait(process_id=number)
    _, out, _, dropped, _ = events(STUB.Connect(process_id=number))
    total = sum(len(str(each)) + 1 for each in range(1, 1000001)) + 4
    assert dropped > 0 and dropped + len(out) == total and out.endswith(b"1000000\nend\n"), (dropped, len(out))
    # One that belongs to its client cannot be read by another.
    stream = STUB.Start(config=sh("sleep 77.5; true"))
    number = next(stream).init.process_id
    fails(grpc.StatusCode.FAILED_PRECONDITION, lambda: STUB.Connect(process_id=number), "detach")
    stream.cancel()
    gone("77.5")
    # Detached ones end by a signal, their group with them.
    stream = STUB.Start(config=sh("sleep 78.5 & sleep 78.5"), detach=True)
    number = next(stream).init.process_id
    STUB.SendSignal(process_id=number, signal=9)
    end = STUB.Wait(process_id=number).exit
    assert (end.exit_code, end.signal) == (-1, 9)
    gone("78.5")
    fails(grpc.StatusCode.DEADLINE_EXCEEDED, lambda: STUB.Wait(
        process_id=next(STUB.Start(config=sh("sleep 79.5; true"), detach=True)).init.process_id, timeout=0.3))
    # Only so many detached processes at once, and only so many that have ended are remembered.
    streams = []
    try:
        for _ in range(100):
            streams.append(STUB.Start(config=sh("sleep 79.5; true"), detach=True))
            next(streams[-1])
        raise AssertionError("no bound")
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, error
    running = [each.process_id for each in STUB.List().processes if not each.HasField("exit")]
    assert len(running) == 64, len(running)
    for number in running:
        STUB.SendSignal(process_id=number, signal=9)
    for number in running:
        try:
            STUB.Wait(process_id=number)
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.NOT_FOUND, error
    gone("79.5")
    ended = [each for each in STUB.List().processes if each.HasField("exit")]
    assert len(ended) == 32, len(ended)


def endurance():
    """What hostile or clumsy code does leaves it answering."""
    stream = STUB.Start(config=sh("yes"))
    next(stream)
    for _ in range(1000):
        next(stream)
    kept = STUB.Start(config=sh("yes"), detach=True)
    number = next(kept).init.process_id
    for _ in range(20):
        assert STUB.Execute(config=sh("echo on")).stdout == b"on\n"
    STUB.SendSignal(process_id=number, signal=9)
    stream.cancel()
    resident = next(line for line in open(f"/proc/{os.environ['PID']}/status") if line.startswith("VmRSS"))
    assert int(resident.split()[1]) < 96 << 10, resident
    # Processes that nobody waits for are buried.
    STUB.Execute(config=sh("for i in 1 2 3 4 5 6 7 8; do (sleep 0.1 &) ; done"))
    for _ in range(2400):
        states = STUB.Execute(config=sh(f"cat /proc/[0-9]*/stat 2>/dev/null | grep -c '^[0-9]* (sleep) Z {os.environ['PID']} '"))
        if states.stdout == b"0\n":
            break
        time.sleep(0.05)
    else:
        raise AssertionError("zombies")
    many = [STUB.Start(config=dict(command=["echo", str(each)])) for each in range(60)]
    assert [events(each)[1] for each in many] == [f"{each}\n".encode() for each in range(60)]
    flood()


def flood():
    """10 GB that nobody reads: all of it is taken and counted, others are served meanwhile, and no memory is."""
    size = 10_000_000_000
    stream = STUB.Start(config=dict(command=["head", "-c", str(size), "/dev/zero"]), detach=True)
    number = next(stream).init.process_id
    stream.cancel()
    while True:
        mine = next(each for each in STUB.List().processes if each.process_id == number)
        if mine.HasField("exit"):
            break
        assert STUB.Execute(config=sh("echo on")).stdout == b"on\n"
    assert (mine.output_end, mine.exit.exit_code) == (size, 0), mine
    _, out, _, dropped, _ = events(STUB.Connect(process_id=number))
    assert dropped + len(out) == size and not any(out), (dropped, len(out))
    resident = next(line for line in open(f"/proc/{os.environ['PID']}/status") if line.startswith("VmHWM"))
    assert int(resident.split()[1]) < 96 << 10, resident


def main():
    if METADATA:
        assert STUB.Execute(config=sh("echo $SANDBOXD_TOKEN end")).stdout == b"end\n", "commands do not inherit the token"
        METADATA.clear()
        fails(grpc.StatusCode.UNAUTHENTICATED, lambda: STUB.Execute(config=sh("true")), "token")
        fails(grpc.StatusCode.UNAUTHENTICATED, lambda: STUB.Start(config=sh("true")), "token")
    else:
        fails(grpc.StatusCode.UNIMPLEMENTED, lambda: CHANNEL.unary_unary(f"/{SERVICE}/Nothing")(b""), "Nothing")
        for part in (execute, start, talk, terminal, detached, endurance):
            print(part.__name__, file=sys.stderr, flush=True)
            part()
    print("ok")


def leave(code):
    """Ends without the interpreter's last collection."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


try:
    main()
except BaseException:
    traceback.print_exc()
    leave(1)
leave(0)
