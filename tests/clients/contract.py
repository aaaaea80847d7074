"""Compares the rows with the package: every public method and parameter has a row, or a reason why not."""

import importlib
import inspect
import pkgutil
import re

import k8s_agent_sandbox
import table

# What is not tested here, and why. A name that ends in a dot stands for all below it.
OUT = {
    "k8s_agent_sandbox.gke_extensions.": "data of SnapshotEngine and SandboxWithSnapshotSupport, or inside them",
    "k8s_agent_sandbox.k8s_helper.K8sHelper.wait_for_gateway_ip": "Gateway",
    "k8s_agent_sandbox.async_k8s_helper.AsyncK8sHelper.wait_for_gateway_ip": "Gateway",
    "k8s_agent_sandbox.async_k8s_helper.AsyncK8sHelper.close": "by AsyncSandboxClient.close()",
    "k8s_agent_sandbox.connector.GatewayConnectionStrategy.": "Gateway",
    "k8s_agent_sandbox.models.SandboxGatewayConnectionConfig.": "Gateway",
    "k8s_agent_sandbox.connector.InClusterConnectionStrategy.": "in-cluster",
    "k8s_agent_sandbox.models.SandboxInClusterConnectionConfig.": "in-cluster",
    "k8s_agent_sandbox.connector.": "inside Connector, whose columns go through it",
    "k8s_agent_sandbox.async_connector.": "inside Connector, whose columns go through it",
    "k8s_agent_sandbox.files.filesystem.BinaryWriter.": "what a caller of read_to brings",
    "k8s_agent_sandbox.files.async_filesystem.AsyncBinaryWriter.": "what a caller of read_to brings",
    "k8s_agent_sandbox.trace_manager.": "the extra `tracing`: nothing of it but an annotation reaches a server",
    "k8s_agent_sandbox.models.": "data of calls that have rows",
    "k8s_agent_sandbox.exceptions.": "what calls raise that have rows",
    "k8s_agent_sandbox.utils.": "asks no server",
    "k8s_agent_sandbox.pod_metadata.": "asks no server",
    "k8s_agent_sandbox.claim_adoption.": "asks no server",
    "k8s_agent_sandbox.commands._process_stubs.": "generated",
    "k8s_agent_sandbox._proto.": "generated",
}
# The name of a class in the rows.
CLASSES = {
    "k8s_agent_sandbox.sandbox_client.SandboxClient": "SandboxClient",
    "k8s_agent_sandbox.async_sandbox_client.AsyncSandboxClient": "SandboxClient",
    "k8s_agent_sandbox.sandbox.Sandbox": "Sandbox",
    "k8s_agent_sandbox.async_sandbox.AsyncSandbox": "Sandbox",
    "k8s_agent_sandbox.commands.command_executor.CommandExecutor": "Commands",
    "k8s_agent_sandbox.commands.async_command_executor.AsyncCommandExecutor": "Commands",
    "k8s_agent_sandbox.files.filesystem.Filesystem": "Files",
    "k8s_agent_sandbox.files.async_filesystem.AsyncFilesystem": "Files",
    "k8s_agent_sandbox.k8s_helper.K8sHelper": "K8sHelper",
    "k8s_agent_sandbox.async_k8s_helper.AsyncK8sHelper": "K8sHelper",
    "k8s_agent_sandbox.connector.SandboxConnector": "Connector",
    "k8s_agent_sandbox.async_connector.AsyncSandboxConnector": "Connector",
    "k8s_agent_sandbox.extensions.computer_use.SandboxWithComputerUseSupport": "SandboxWithComputerUseSupport",
    "k8s_agent_sandbox.extensions.computer_use.ComputerUseSandboxClient": "ComputerUseSandboxClient",
    "k8s_agent_sandbox.gke_extensions.snapshots.podsnapshot_client.PodSnapshotSandboxClient": "PodSnapshotSandboxClient",
    "k8s_agent_sandbox.gke_extensions.snapshots.sandbox_with_snapshot_support.SandboxWithSnapshotSupport":
        "SandboxWithSnapshotSupport",
    "k8s_agent_sandbox.gke_extensions.snapshots.snapshot_engine.SnapshotEngine": "SnapshotEngine",
}
# Parameters that no row names, and why.
PARAMETERS = {
    "SandboxClient.tracer_config": "the extra `tracing`",
    "PodSnapshotSandboxClient.args": "those of SandboxClient",
    "PodSnapshotSandboxClient.kwargs": "those of SandboxClient",
    "Connector.send_request.stream": "by Files.read_to",
    "Connector.send_request.kwargs": "goes to requests and httpx",
}
# Attributes of classes that carry no request.
ATTRIBUTES = {"SandboxClient.sandbox_class", "ComputerUseSandboxClient.sandbox_class",
              "PodSnapshotSandboxClient.sandbox_class", "K8sHelper.injected_api_client"}


def out(name):
    return any(name.startswith(each) if each.endswith(".") else name == each for each in OUT)


def modules():
    found = [k8s_agent_sandbox]
    # `gke_extensions` itself is no package, and is not walked through.
    packages = [k8s_agent_sandbox, importlib.import_module("k8s_agent_sandbox.gke_extensions.snapshots")]
    for each in (each for package in packages for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")):
        reason = next((why for name, why in OUT.items() if f"{each.name}.".startswith(name)), "")
        if reason != "generated":
            found.append(importlib.import_module(each.name))
    return found


def wanted():
    """Class (or nothing), method and parameter of everything public that has no reason to be left out."""
    for module in modules():
        for name, member in vars(module).items():
            if name.startswith("_") or getattr(member, "__module__", None) != module.__name__:
                continue
            full = f"{module.__name__}.{name}"
            if inspect.isclass(member) and full in CLASSES:
                yield from of_class(full, member)
            elif inspect.isfunction(member) and not out(full):
                yield from parameters("", name, member)
            elif inspect.isclass(member) and not out(full + "."):
                raise SystemExit(f"{full} is a class that no row and no reason knows")


def of_class(full, kind):
    own = CLASSES[full]
    for name, member in vars(kind).items():
        if name.startswith("_") or f"{full}.{name}" in OUT or f"{own}.{name}" in ATTRIBUTES:
            if name == "__init__" and own in ("SandboxClient", "PodSnapshotSandboxClient"):
                yield from parameters(own, "", member)
            continue
        plain = inspect.unwrap(member.__func__ if isinstance(member, staticmethod) else member)
        if inspect.isfunction(plain):
            yield from parameters(own, name, plain)
        else:
            yield own, name, ""


def parameters(own, name, function):
    yield own, name, ""
    for parameter in inspect.signature(function).parameters:
        known = ".".join(part for part in (own, name, parameter) if part)
        if parameter != "self" and known not in PARAMETERS:
            yield own, name, parameter


def known():
    """The same of the rows: `Class.method(parameter, ...)`, several of them with commas between."""
    found = set()
    for row in table.rows(table.COLUMNS | table.SNAPSHOT_COLUMNS):
        text = row.split(": ")[-1] if row.startswith("Computer") else row
        inner = re.search(r"\((.*)\)", text)
        given = [part.strip() for part in inner.group(1).split(",")] if inner else []
        for word in re.findall(r"[A-Za-z0-9_.]+", re.sub(r"\(.*?\)", "", text)):
            own, _, name = word.rpartition(".")
            if not own and word[0].isupper():
                own, name = word, ""
            own = own.replace("AsyncSandboxClient", "SandboxClient").replace("AsyncConnector", "Connector")
            found.add((own, name, ""))
            found.update((own, name, parameter) for parameter in given if parameter)
    return found


def compare():
    rows, methods = known(), set(wanted())
    missing = sorted(methods - rows)
    classes = set(CLASSES.values())
    invented = sorted(each for each in rows - methods if each[0] in classes and not each[2])
    if missing or invented:
        raise SystemExit(f"without a row: {missing}\nnot in the package: {invented}")
    absent_from_the_asynchronous()
    print(f"{len(methods)} methods and parameters have rows")


def absent_from_the_asynchronous():
    """A `-` because a client lacks the method is true: nothing of that name is there."""
    from k8s_agent_sandbox.async_k8s_helper import AsyncK8sHelper
    from k8s_agent_sandbox.async_sandbox_client import AsyncSandboxClient
    for kind, name in [(AsyncSandboxClient, "get_sandbox_claim_warmpool_name"), (AsyncK8sHelper, "patch_sandbox_claim"),
                       (k8s_agent_sandbox.SandboxClient, "close")]:
        if hasattr(kind, name):
            raise SystemExit(f"{kind.__name__}.{name} is there now")
