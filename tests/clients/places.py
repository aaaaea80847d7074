"""One column: how a client of it is made, and the Kubernetes API to look at what it did."""

import asyncio
import json
import os
import time

import kubernetes
from k8s_agent_sandbox import AsyncSandboxClient, SandboxClient
from k8s_agent_sandbox.models import (
    SandboxdInClusterConnectionConfig,
    SandboxdPodTunnelConnectionConfig,
    SandboxDirectConnectionConfig,
    SandboxLocalTunnelConnectionConfig,
)
from table import COLUMNS, OTHER_COLUMNS, POD_TUNNELS, ROUTER_TUNNELS, SNAPSHOT_COLUMNS, check, now

CORE, EXTENSIONS, VERSION = "agents.x-k8s.io", "extensions.agents.x-k8s.io", "v1beta1"
PLURALS = {"Sandbox": (CORE, "sandboxes"), "SandboxClaim": (EXTENSIONS, "sandboxclaims"),
           "SandboxTemplate": (EXTENSIONS, "sandboxtemplates"), "SandboxWarmPool": (EXTENSIONS, "sandboxwarmpools")}
# Long enough for anything that happens at all on a busy machine.
PATIENCE_SECONDS = 90
POOL = "python"


class Place:
    def __init__(self, column, settings):
        self.column, self.settings = column, settings
        self.where, self.asynchronous, self.speaks = (COLUMNS | OTHER_COLUMNS | SNAPSHOT_COLUMNS)[column]
        self.namespace = settings["namespace"]
        kubernetes.config.load_kube_config()
        self.custom, self.core = kubernetes.client.CustomObjectsApi(), kubernetes.client.CoreV1Api()
        self._clients, self._shared = [], None

    @property
    def headers(self):
        return {"Authorization": f"Bearer {self.settings['token']}"}

    def config(self, **more):
        """The way of this column to a sandbox."""
        if "direct" in self.column or self.column in SNAPSHOT_COLUMNS:
            return SandboxDirectConnectionConfig(
                **{"api_url": self.settings["router"], "extra_headers": self.headers} | more)
        if self.column in ROUTER_TUNNELS:
            return SandboxLocalTunnelConnectionConfig(**more)
        if self.column in POD_TUNNELS:
            return SandboxdPodTunnelConnectionConfig(**more)
        return SandboxdInClusterConnectionConfig(mode="in-cluster-pod-ip", **more)

    def client(self, config=None, kind=None, **more):
        """A new client, closed at the end."""
        kind = kind or (AsyncSandboxClient if self.asynchronous else SandboxClient)
        client = kind(config or self.config(), **{"cleanup": False} | more)
        self._clients.append(client)
        return client

    async def sandbox(self, client=None, pool=POOL, **more):
        """A new sandbox of a new client."""
        return await now((client or self.client()).create_sandbox(pool, self.namespace, **more))

    async def shared(self):
        """A sandbox that cells use which leave it as it was."""
        if self._shared is None:
            self._shared = await self.sandbox()
        return self._shared

    async def close(self):
        for client in self._clients:
            await now(client.delete_all())
            if hasattr(client, "close"):
                await client.close()

    # The Kubernetes API.

    def get(self, kind, name):
        """The object, or nothing."""
        group, plural = PLURALS[kind]
        try:
            return self.custom.get_namespaced_custom_object(group, VERSION, self.namespace, plural, name)
        except kubernetes.client.ApiException as error:
            if error.status == 404:
                return None
            raise

    def pod(self, name):
        try:
            return self.core.read_namespaced_pod(name, self.namespace)
        except kubernetes.client.ApiException as error:
            if error.status == 404:
                return None
            raise

    def create(self, kind, name, spec):
        group, plural = PLURALS[kind]
        body = {"apiVersion": f"{group}/{VERSION}", "kind": kind, "metadata": {"name": name}, "spec": spec}
        return self.custom.create_namespaced_custom_object(group, VERSION, self.namespace, plural, body)

    def mode(self, sandbox, mode):
        """What `kubectl patch` would do: the client has no call for it."""
        body = {"spec": {"operatingMode": mode}}
        self.custom.patch_namespaced_custom_object(CORE, VERSION, self.namespace, "sandboxes", sandbox.sandbox_id, body)

    async def suspend(self, sandbox):
        self.mode(sandbox, "Suspended")
        await self.until("it is suspended", lambda: self.condition("Sandbox", sandbox.sandbox_id, "Suspended") == "True")
        await self.until("its Pod is gone", lambda: self.pod(sandbox.sandbox_id) is None)

    def annotate(self, sandbox, **annotations):
        """Annotations of Hutch, by their name with `_` for `-`; None takes one away."""
        named = {f"hutch.dev/{name.replace('_', '-')}": said for name, said in annotations.items()}
        self.custom.patch_namespaced_custom_object(
            CORE, VERSION, self.namespace, "sandboxes", sandbox.sandbox_id, {"metadata": {"annotations": named}})

    async def falls_asleep(self, sandbox, **more):
        """Waits until the idle Sandbox is suspended, and removes the annotation so that it happens once."""
        self.annotate(sandbox, suspend_after="2s", activity_port="8080", **more)
        await self.until("it is asleep", lambda: self.condition("Sandbox", sandbox.sandbox_id, "Suspended") == "True")
        check(self.get("Sandbox", sandbox.sandbox_id)["metadata"]["annotations"]["hutch.dev/asleep-generation"])
        await self.until("its Pod is gone", lambda: self.pod(sandbox.sandbox_id) is None)
        self.annotate(sandbox, suspend_after=None)

    async def resume(self, sandbox):
        self.mode(sandbox, "Running")
        await now(sandbox.k8s_helper.wait_for_sandbox_ready(sandbox.sandbox_id, self.namespace, PATIENCE_SECONDS))

    def condition(self, kind, name, wanted):
        found = self.get(kind, name) or {}
        conditions = (found.get("status") or {}).get("conditions") or []
        return next((each["status"] for each in conditions if each["type"] == wanted), None)

    async def until(self, what, holds):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not holds():
            check(time.monotonic() < deadline, f"never: {what}")
            await asyncio.sleep(0.05)

    async def gone(self, claim, sandbox=None):
        await self.until(f"{claim} is gone", lambda: self.get("SandboxClaim", claim) is None)
        if sandbox:
            await self.until(f"{sandbox} is gone", lambda: self.get("Sandbox", sandbox) is None)


def settings():
    return json.loads(os.environ["CLIENTS_SETTINGS"])
