package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func to[T any](v T) *T { return &v }

// vectors writes objects as Go encodes them both ways: base64 of the Protobuf envelope, tab, JSON.
func vectors() {
	at := metav1.NewTime(time.Unix(1700000000, 0).UTC())
	meta := metav1.ObjectMeta{Name: "a", Namespace: "b", Labels: map[string]string{"x": "y", "empty": ""}, CreationTimestamp: at,
		Generation: 3, Finalizers: []string{"f"}, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "u", Controller: to(false)}},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m", Operation: "Apply", APIVersion: "v1", Time: &at, FieldsType: "FieldsV1",
			FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:spec":{}}`)}}}}
	pod := corev1.PodSpec{RestartPolicy: "Never", TerminationGracePeriodSeconds: to(int64(0)),
		NodeSelector: map[string]string{}, SecurityContext: &corev1.PodSecurityContext{RunAsUser: to(int64(0)), FSGroup: to(int64(-1))},
		Containers: []corev1.Container{{Name: "c", Image: "i", Command: []string{"", "x"},
			Env: []corev1.EnvVar{{Name: "E"}, {Name: "S", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
				LocalObjectReference: corev1.LocalObjectReference{Name: "s"}, Key: "k", Optional: to(true)}}}},
			Ports:          []corev1.ContainerPort{{ContainerPort: 80, Protocol: "TCP"}},
			Resources:      corev1.ResourceRequirements{Limits: corev1.ResourceList{"cpu": resource.MustParse("250m"), "memory": resource.MustParse("1Gi")}},
			ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(8888)}}, PeriodSeconds: 1},
			LivenessProbe:  &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString("web")}}}}},
		Volumes: []corev1.Volume{{Name: "e", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			{Name: "m", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}, DefaultMode: to(int32(0))}}}}}
	micro := metav1.NewMicroTime(time.Unix(1700000000, 123456000).UTC())
	for _, o := range []struct {
		gvk schema.GroupVersionKind
		obj runtime.Object
	}{
		{corev1.SchemeGroupVersion.WithKind("Namespace"), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}},
		{corev1.SchemeGroupVersion.WithKind("ConfigMap"), &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"k": "v", "e": ""}, BinaryData: map[string][]byte{"b": {0, 255}}, Immutable: to(false)}},
		{corev1.SchemeGroupVersion.WithKind("Secret"), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Data: map[string][]byte{"b": {1, 2, 3}, "none": {}}, Type: "Opaque"}},
		{corev1.SchemeGroupVersion.WithKind("Pod"), &corev1.Pod{ObjectMeta: meta, Spec: pod}},
		{corev1.SchemeGroupVersion.WithKind("Event"), &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e"}, InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "p"}, EventTime: micro, FirstTimestamp: at, Count: 2, Type: "Normal"}},
		{appsv1.SchemeGroupVersion.WithKind("Deployment"), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d"}, Spec: appsv1.DeploymentSpec{
			Replicas: to(int32(0)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "d"}, MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "x", Operator: "In", Values: []string{"a"}}}},
			Template: corev1.PodTemplateSpec{Spec: pod}, Strategy: appsv1.DeploymentStrategy{RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: to(intstr.FromString("25%")), MaxUnavailable: to(intstr.FromInt32(0))}}}}},
		{coordinationv1.SchemeGroupVersion.WithKind("Lease"), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "l"}, Spec: coordinationv1.LeaseSpec{HolderIdentity: to(""), LeaseDurationSeconds: to(int32(15)), RenewTime: &micro}}},
		{authenticationv1.SchemeGroupVersion.WithKind("TokenReview"), &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: "t"}, Status: authenticationv1.TokenReviewStatus{User: authenticationv1.UserInfo{Extra: map[string]authenticationv1.ExtraValue{"k": {"a", "b"}}}}}},
		{authenticationv1.SchemeGroupVersion.WithKind("TokenRequest"), &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: to(int64(600))}}},
		{rbacv1.SchemeGroupVersion.WithKind("Role"), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}}}},
		{policyv1.SchemeGroupVersion.WithKind("Eviction"), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "p"}, DeleteOptions: &metav1.DeleteOptions{GracePeriodSeconds: to(int64(0)), Preconditions: &metav1.Preconditions{UID: to(meta.UID)}}}},
		{schema.GroupVersionKind{Version: "v1", Kind: "DeleteOptions"}, &metav1.DeleteOptions{PropagationPolicy: to(metav1.DeletePropagationBackground), DryRun: []string{"All"}}},
		{apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"), &apiextensionsv1.CustomResourceDefinition{Spec: apiextensionsv1.CustomResourceDefinitionSpec{Group: "g", Scope: "Namespaced",
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
				Type: "object", Minimum: to(0.5), Properties: map[string]apiextensionsv1.JSONSchemaProps{"a": {Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &apiextensionsv1.JSONSchemaProps{Type: "string"}}},
					"m": {AdditionalProperties: &apiextensionsv1.JSONSchemaPropsOrBool{Allows: true}, Default: &apiextensionsv1.JSON{Raw: []byte(`{"x":[1,"y"]}`)}}}}}}}}}},
	} {
		o.obj.GetObjectKind().SetGroupVersionKind(o.gvk)
		text, err := json.Marshal(o.obj)
		if err != nil {
			panic(err)
		}
		raw, err := runtime.Encode(protobuf.NewSerializer(nil, nil), o.obj)
		if err != nil {
			panic(err)
		}
		fmt.Printf("%s\t%s\n", base64.StdEncoding.EncodeToString(raw), text)
	}
}
