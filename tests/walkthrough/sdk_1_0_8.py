#!/usr/bin/env python3
"""Create, run, files, terminate with the unmodified package k8s-agent-sandbox 1.0.8.

Wants KUBECONFIG, kubectl on PATH and the package on PYTHONPATH. Takes the warm pool's name and the namespace
(default: python-sandbox-warmpool default). Prints what it does; exits 1 at the first thing that is not as it should be.
"""

import io
import sys
import time
from importlib.metadata import version

from k8s_agent_sandbox import SandboxClient
from k8s_agent_sandbox.exceptions import SandboxRequestError, SandboxWarmPoolNotFoundError

VERSION = "1.0.8"
# How long a deleted claim and its Sandbox may still be there.
GONE_SECONDS = 30
# A missing pool must be reported at once, not after the client's timeout.
FAST_SECONDS = 10


def step(text):
    print(f"step: {text}", flush=True)


def check(true, text):
    if not true:
        print(f"FAILED: {text}", flush=True)
        sys.exit(1)
    print(f"ok: {text}", flush=True)


def refused(action, status, text):
    try:
        action()
    except SandboxRequestError as error:
        check(error.status_code == status, f"{text} (status {error.status_code}, wanted {status})")
    else:
        check(False, text)


def commands(sandbox):
    result = sandbox.commands.run("echo 'Hello from the sandboxed environment!'")
    print(result.stdout, flush=True)
    expected = ("Hello from the sandboxed environment!\n", "", 0, False)
    check((result.stdout, result.stderr, result.exit_code, result.timed_out) == expected, "a line comes back")
    result = sandbox.commands.run("sh -c 'echo out; echo err >&2; exit 7'")
    check((result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 7), "streams and exit code")
    begun = time.monotonic()
    result = sandbox.commands.run("sleep 30", command_timeout=1)
    took = time.monotonic() - begun
    check(result.timed_out and took < 10, f"a command that runs too long is ended ({took:.1f} s): {result.stderr}")
    check("timed out after" in result.stderr, "and says so")
    result = sandbox.commands.run("sh -c 'kill -9 $$'")
    check(result.exit_code == -9, "death by a signal is a negative exit code")


def files(sandbox):
    content = bytes(range(256)) * 8192
    sandbox.files.write("deep/down/data file.bin", content)
    check(sandbox.files.read("deep/down/data file.bin") == content, "two megabytes come back, from a path with a blank")
    sandbox.files.write("text.txt", "grüß\n")
    check(sandbox.files.read("text.txt").decode() == "grüß\n", "text comes back")
    sandbox.files.write("streamed.bin", io.BytesIO(content))
    received = io.BytesIO()
    check(sandbox.files.read_to("streamed.bin", received) == len(content), "a stream goes in and comes out")
    check(received.getvalue() == content, "unchanged")
    entries = {entry.name: entry for entry in sandbox.files.list("")}
    check({"deep", "text.txt", "streamed.bin"} <= entries.keys(), f"they are listed: {sorted(entries)}")
    check(entries["deep"].type == "directory" and entries["text.txt"].type == "file", "with their types")
    check(entries["streamed.bin"].size == len(content), "and sizes")
    age = time.time() - entries["text.txt"].modified.timestamp()
    check(-60 < age < 600, f"and times ({age:.0f} s ago)")
    check([entry.name for entry in sandbox.files.list("deep/down")] == ["data file.bin"], "a folder below is listed")
    check(sandbox.files.exists("deep/down/data file.bin"), "what is there exists")
    check(not sandbox.files.exists("deep/up"), "what is not there does not")
    refused(lambda: sandbox.files.read("missing.txt"), 404, "a missing file is refused")
    refused(lambda: sandbox.files.list("text.txt"), 404, "a file is not listed")
    refused(lambda: sandbox.files.read("../../etc/passwd", allow_unsafe_paths=True), 403, "a path outside is denied")
    result = sandbox.commands.run("cat text.txt")
    check(result.stdout == "grüß\n", "commands see the same files")


def gone(api, claim, sandbox, namespace):
    deadline = time.monotonic() + GONE_SECONDS
    while time.monotonic() < deadline:
        if api.get_sandbox_claim(claim, namespace) is None and api.get_sandbox(sandbox, namespace) is None:
            return True
        time.sleep(0.2)
    return False


def main():
    pool = sys.argv[1] if len(sys.argv) > 1 else "python-sandbox-warmpool"
    namespace = sys.argv[2] if len(sys.argv) > 2 else "default"
    found = version("k8s-agent-sandbox")
    check(found == VERSION, f"the package is {VERSION} (found {found})")
    api = SandboxClient()

    step(f"create from pool {pool}")
    begun = time.monotonic()
    sandbox = api.create_sandbox(pool, namespace=namespace, labels={"purpose": "walkthrough"})
    claim, name = sandbox.claim_name, sandbox.sandbox_id
    print(f"claim {claim} has Sandbox {name} after {(time.monotonic() - begun) * 1000:.0f} ms", flush=True)
    check(sandbox.status()[0] == "SandboxReady", "it is ready")
    check(sandbox.get_pod_ip() is not None, f"it has an address: {sandbox.get_pod_ip()}")
    check(claim in api.list_all_sandboxes(namespace, label_selector="purpose=walkthrough"), "it is listed by its label")
    try:
        step("commands")
        commands(sandbox)
        step("files")
        files(sandbox)
        step("attach again by the claim's name")
        again = SandboxClient().get_sandbox(claim, namespace)
        check(again.sandbox_id == name, "it is the same Sandbox")
        check(again.files.read("text.txt").decode() == "grüß\n", "with the same files")
        again.close_connection()
    finally:
        step("terminate")
        sandbox.terminate()
    sandbox.terminate()
    check(gone(api.k8s_helper, claim, name, namespace), "claim and Sandbox are gone")

    step("a pool that is not there")
    before = set(api.list_all_sandboxes(namespace))
    begun = time.monotonic()
    try:
        api.create_sandbox("no-such-pool", namespace=namespace)
    except SandboxWarmPoolNotFoundError as error:
        check(time.monotonic() - begun < FAST_SECONDS, f"is told at once: {error}")
    else:
        check(False, "is told")
    deadline = time.monotonic() + GONE_SECONDS
    while (left := set(api.list_all_sandboxes(namespace)) - before) and time.monotonic() < deadline:
        time.sleep(0.2)
    check(not left, f"the client took its claim back, by UID: {sorted(left)}")
    print(f"{found}: passed", flush=True)


if __name__ == "__main__":
    main()
