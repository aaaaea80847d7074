#!/usr/bin/env python3
"""Writes kubernetes.txt: the OpenAPI definitions of the built-in kinds, one a line: name, tab, JSON.

Usage: derive.py FOLDER > kubernetes.txt
where FOLDER is api/openapi-spec/v3 of the Go module k8s.io/kubernetes (Apache-2.0), here at v1.36.3.
"""
import json
import re
import sys
from pathlib import Path

# The kinds served, and the bodies of their subresources.
ROOTS = {
    "api__v1": "ConfigMap Endpoints Event Namespace Node PersistentVolumeClaim PersistentVolume Pod Secret "
    "ServiceAccount Service Binding LimitRange ResourceQuota PodTemplate ReplicationController",
    "apis__admissionregistration.k8s.io__v1": "MutatingWebhookConfiguration ValidatingAdmissionPolicy "
    "ValidatingAdmissionPolicyBinding ValidatingWebhookConfiguration",
    "apis__apiextensions.k8s.io__v1": "CustomResourceDefinition",
    "apis__apps__v1": "ControllerRevision DaemonSet Deployment ReplicaSet StatefulSet",
    "apis__authentication.k8s.io__v1": "SelfSubjectReview TokenReview",
    "apis__authorization.k8s.io__v1": "LocalSubjectAccessReview SelfSubjectAccessReview SelfSubjectRulesReview "
    "SubjectAccessReview",
    "apis__autoscaling__v2": "HorizontalPodAutoscaler",
    "apis__batch__v1": "CronJob Job",
    "apis__certificates.k8s.io__v1": "CertificateSigningRequest",
    "apis__coordination.k8s.io__v1": "Lease",
    "apis__discovery.k8s.io__v1": "EndpointSlice",
    "apis__events.k8s.io__v1": "Event",
    "apis__networking.k8s.io__v1": "Ingress IngressClass NetworkPolicy",
    "apis__node.k8s.io__v1": "RuntimeClass",
    "apis__policy__v1": "PodDisruptionBudget",
    "apis__rbac.authorization.k8s.io__v1": "ClusterRoleBinding ClusterRole RoleBinding Role",
    "apis__scheduling.k8s.io__v1": "PriorityClass",
    "apis__storage.k8s.io__v1": "StorageClass",
}
REF = re.compile(r'"#/components/schemas/([^"]+)"')
found = {}
for document, kinds in ROOTS.items():
    schemas = json.loads((Path(sys.argv[1]) / f"{document}_openapi.json").read_text())["components"]["schemas"]
    own = document.split("__", 1)[1].split("__")
    group, version = own if len(own) == 2 else ("", own[0])
    wanted = ["io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions", "io.k8s.apimachinery.pkg.apis.meta.v1.Status"]
    wanted += ["io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta"]
    if document == "api__v1":
        # Bodies of subresources of Pods and ServiceAccounts.
        bodies = ["policy.v1.Eviction", "autoscaling.v1.Scale", "authentication.v1.TokenRequest"]
        wanted += [f"io.k8s.api.{name}" for name in bodies]
    for name, schema in schemas.items():
        for gvk in schema.get("x-kubernetes-group-version-kind", []):
            if gvk == {"group": group, "version": version, "kind": gvk["kind"]} and gvk["kind"] in kinds.split():
                wanted.append(name)
    while wanted:
        name = wanted.pop()
        if name in found:
            continue
        schema = dict(schemas[name])
        if name.endswith((".DeleteOptions", ".Status")):
            # They carry every group of a whole Kubernetes; only the one that is meant remains.
            schema["x-kubernetes-group-version-kind"] = [
                g for g in schema.get("x-kubernetes-group-version-kind", []) if g["group"] == "" and g["version"] == "v1"
            ]
        found[name] = json.dumps(schema, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
        wanted += REF.findall(found[name])
for name in sorted(found):
    print(f"{name}\t{found[name]}")
