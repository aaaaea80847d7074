"""Times of the stock client, in nanoseconds, as one line of JSON: against a sandbox, and against a server that does nothing."""

import json
import sys
import time

from k8s_agent_sandbox import SandboxClient
from k8s_agent_sandbox.models import SandboxDirectConnectionConfig

ROUNDS = 300
WARM_UP = 20
CONTENT = b"x" * 4096


def times(call):
    taken = []
    for _ in range(WARM_UP + ROUNDS):
        begun = time.perf_counter_ns()
        call()
        taken.append(time.perf_counter_ns() - begun)
    return taken[WARM_UP:]


def ran(result):
    if result.exit_code != 0:
        raise RuntimeError(f"true ended with {result.exit_code}: {result.stderr}")


def came(content):
    if content != CONTENT:
        raise RuntimeError(f"{len(content)} other bytes came back")


def measure(url):
    client = SandboxClient(SandboxDirectConnectionConfig(api_url=url), cleanup=False)
    sandbox = client.create_sandbox("bench", "default")
    try:
        return {
            "run `true`": times(lambda: ran(sandbox.commands.run("true"))),
            "write 4 KiB": times(lambda: sandbox.files.write("bench.bin", CONTENT)),
            "read 4 KiB": times(lambda: came(sandbox.files.read("bench.bin"))),
        }
    finally:
        client.delete_all()


# Twice in turn, so that what changes on the machine meanwhile meets both.
results = [(name, measure(url)) for _ in range(2) for name, url in (("sandbox", sys.argv[1]), ("nothing", sys.argv[2]))]
whole = {}
for name, result in results:
    for call, taken in result.items():
        whole.setdefault(name, {}).setdefault(call, []).extend(taken)
print(json.dumps(whole))
