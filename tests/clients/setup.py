"""Templates and pools that the cells take sandboxes from."""

from places import POOL, Place

# Answers `POST /agent` as the computer-use example does, and returns the request.
AGENT = """
import http.server, json, os
class Agent(http.server.BaseHTTPRequestHandler):
    def do_GET(self): self.answer(b"")
    def do_POST(self):
        sent = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path != "/agent": return self.send_error(404)
        told = {"stdout": json.loads(sent)["query"][::-1], "stderr": self.headers["X-Sandbox-ID"], "exit_code": 0}
        self.answer(json.dumps(told).encode())
    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer((os.environ["POD_IP"], 8888), Agent).serve_forever()
"""


def container(**more):
    probe = {"httpGet": {"path": "/", "port": 8888}, "periodSeconds": 1}
    own = {"name": "runtime", "image": "hutch/python-runtime", "ports": [{"containerPort": 8888}], "readinessProbe": probe}
    return own | more


def make(settings):
    place = Place("up", settings)
    place.core.create_namespace({"metadata": {"name": place.namespace}})
    own = container(env=[{"name": "GREETING", "value": "template"}])
    agent = container(name="agent", image="hutch/host", command=["/usr/bin/python3", "-c", AGENT],
                      env=[{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}])
    for name, containers, replicas, more in [
        (POOL, [container()], 2, {"service": True}),
        ("wishes", [own], 0, {"envVarsInjectionPolicy": "Overrides", "volumeClaimTemplatesPolicy": "Allowed"}),
        ("agent", [agent], 1, {}),
    ]:
        spec = {"podTemplate": {"spec": {"containers": containers}}} | more
        place.create("SandboxTemplate", name, spec)
        place.create("SandboxWarmPool", name, {"replicas": replicas, "sandboxTemplateRef": {"name": name}})
    place.create("SandboxWarmPool", "no-template", {"replicas": 0, "sandboxTemplateRef": {"name": "no-such-template"}})
