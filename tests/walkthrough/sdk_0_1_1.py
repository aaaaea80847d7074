#!/usr/bin/env python3
"""The published walk-through with the unmodified package k8s-agent-sandbox 0.1.1.post2.

Wants KUBECONFIG, kubectl on PATH and the package on PYTHONPATH. Takes the template's name and the namespace
(default: python-runtime-template default). Prints what it does; exits 1 at the first thing that is not as it should be.
"""

import sys
import time
from importlib.metadata import version

from kubernetes import client, config

VERSION = "0.1.1.post2"
LINE = "Hello from the sandboxed environment!"
GROUP, CLAIMS = "extensions.agents.x-k8s.io", "sandboxclaims"
# How long a deleted claim may still be there.
GONE_SECONDS = 30


def step(text):
    print(f"step: {text}", flush=True)


def check(true, text):
    if not true:
        print(f"FAILED: {text}", flush=True)
        sys.exit(1)
    print(f"ok: {text}", flush=True)


def snippet():
    """The documented program, word for word but for the names that a test may give."""
    from agentic_sandbox import SandboxClient
    with SandboxClient(template_name="python-runtime-template", namespace="default") as sandbox:
        print(sandbox.run("echo 'Hello from the sandboxed environment!'").stdout)


def thorough(template, namespace):
    """The same with every result checked, and files. Returns the claim's name."""
    from agentic_sandbox import SandboxClient
    with SandboxClient(template_name=template, namespace=namespace) as sandbox:
        check(sandbox.sandbox_name == sandbox.claim_name, "the Sandbox has the claim's name")
        result = sandbox.run(f"echo '{LINE}'")
        check((result.stdout, result.stderr, result.exit_code) == (LINE + "\n", "", 0), "the line comes back")
        result = sandbox.run("sh -c 'echo out; echo err >&2; exit 7'")
        check((result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 7), "streams and exit code")
        result = sandbox.run("no-such-program")
        check(result.exit_code == 1 and "[Errno 2]" in result.stderr, "a missing program is told")
        content = bytes(range(256)) * 4096
        sandbox.write("data.bin", content)
        check(sandbox.read("data.bin") == content, "what was written is read back, a megabyte of it")
        sandbox.write("script.py", "print(6 * 7)\n")
        result = sandbox.run("python3 script.py")
        check(result.stdout == "42\n", f"a script that was written runs: {result.stdout!r} {result.stderr!r}")
        try:
            sandbox.read("missing.txt")
        except RuntimeError:
            check(True, "a missing file is refused")
        else:
            check(False, "a missing file is refused")
        return sandbox.claim_name


def gone(claim, namespace):
    api = client.CustomObjectsApi()
    deadline = time.monotonic() + GONE_SECONDS
    while time.monotonic() < deadline:
        try:
            api.get_namespaced_custom_object(GROUP, "v1alpha1", namespace, CLAIMS, claim)
        except client.ApiException as error:
            if error.status == 404:
                return True
            raise
        time.sleep(0.2)
    return False


def main():
    template = sys.argv[1] if len(sys.argv) > 1 else "python-runtime-template"
    namespace = sys.argv[2] if len(sys.argv) > 2 else "default"
    found = version("k8s-agent-sandbox")
    check(found == VERSION, f"the package is {VERSION} (found {found})")
    config.load_kube_config()
    if (template, namespace) == ("python-runtime-template", "default"):
        step("the documented snippet")
        snippet()
    step("the same, looked at closely, with files")
    claim = thorough(template, namespace)
    step("the claim is deleted at the end")
    check(gone(claim, namespace), f"{claim} is gone")
    print(f"{found}: passed", flush=True)


if __name__ == "__main__":
    main()
