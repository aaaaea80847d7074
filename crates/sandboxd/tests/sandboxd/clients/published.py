"""The published client's own code for sandboxd (k8s-agent-sandbox 1.0.8) against the ports given as arguments."""

import io
import logging
import sys

from k8s_agent_sandbox.commands.command_executor import CommandExecutor
from k8s_agent_sandbox.connector import SandboxConnector
from k8s_agent_sandbox.exceptions import SandboxRequestError
from k8s_agent_sandbox.files.filesystem import Filesystem
from k8s_agent_sandbox.models import SandboxdInClusterConnectionConfig

logging.disable(logging.CRITICAL)


class NoCluster:
    """The client asks a cluster for nothing when it is told the address."""

    injected_api_client = None


config = SandboxdInClusterConnectionConfig(
    mode="in-cluster-pod-ip", rest_port=int(sys.argv[1]), grpc_port=int(sys.argv[2]))
connector = SandboxConnector("box", "default", config, NoCluster(), get_pod_ip=lambda: "127.0.0.1")
files, commands = Filesystem(connector, None, ""), CommandExecutor(connector, None, "")

files.write("notes/a file.txt", "hello")
files.write("notes/stream.bin", io.BytesIO(b"x" * 3_000_000))
assert files.read("notes/a file.txt") == b"hello"
assert len(files.read("notes/stream.bin")) == 3_000_000
target = io.BytesIO()
assert files.read_to("notes/stream.bin", target) == 3_000_000
listed = {entry.name: entry for entry in files.list("notes")}
assert sorted(listed) == ["a file.txt", "stream.bin"], listed
assert (listed["a file.txt"].size, listed["a file.txt"].type, listed["a file.txt"].mode) == (5, "file", "0644")
assert files.exists("notes/a file.txt") and not files.exists("notes/none") and not files.exists("notes/a file.txt/x")
assert [entry.name for entry in files.list("")] == ["notes"]

ran = commands.run("echo $GREETING; pwd; exit 3", env={"GREETING": "hi"}, cwd="notes")
assert ran.stdout.startswith("hi\n/") and ran.stdout.endswith("/notes\n") and ran.exit_code == 3, ran
late = commands.run("sleep 81.5; true", command_timeout=0.5)
assert late.timed_out and late.exit_code == 124, late
try:
    commands.run("true", cwd="../..")
    raise AssertionError("no refusal")
except RuntimeError as error:
    assert "PERMISSION_DENIED" in str(error) and "cwd: " in str(error), error

files.delete("notes/a file.txt")
assert not files.exists("notes/a file.txt")
for path, status in [("notes", 409), ("none", 404)]:
    try:
        files.delete(path)
        raise AssertionError("no refusal")
    except SandboxRequestError as error:
        assert error.status_code == status, error
files.delete("notes", recursive=True)
assert not files.exists("notes")
try:
    files.read("../../etc/passwd", allow_unsafe_paths=True)
    raise AssertionError("no refusal")
except SandboxRequestError as error:
    assert error.status_code == 403, error
print("ok")
