// Command derive writes messages.txt: the Protobuf messages of the built-in kinds as text, read from the struct tags of
// k8s.io/api (Apache-2.0), here at v0.36.3.
//
// One message a line: its name, then its fields as NUMBER:NAME:TYPE, where NAME is the JSON name (empty for a field
// whose own fields stand in the parent). TYPE is string, bool, int, double, bytes or a message, with a prefix "[]" for
// lists, "{}" for maps by string, "?" for what JSON leaves out when it is zero, "*" for what is optional.
package main

import (
	"fmt"
	"os"
	"reflect"
	"sort"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var roots = []struct {
	apiVersion string
	objects    []any
}{
	{"v1", []any{corev1.ConfigMap{}, corev1.Endpoints{}, corev1.Event{}, corev1.Namespace{}, corev1.Node{},
		corev1.PersistentVolumeClaim{}, corev1.PersistentVolume{}, corev1.Pod{}, corev1.Secret{}, corev1.ServiceAccount{},
		corev1.Service{}, corev1.Binding{}, corev1.LimitRange{}, corev1.ResourceQuota{}, corev1.PodTemplate{},
		corev1.ReplicationController{}, metav1.DeleteOptions{}}},
	{"admissionregistration.k8s.io/v1", []any{admissionregistrationv1.MutatingWebhookConfiguration{},
		admissionregistrationv1.ValidatingAdmissionPolicy{}, admissionregistrationv1.ValidatingAdmissionPolicyBinding{},
		admissionregistrationv1.ValidatingWebhookConfiguration{}}},
	{"apiextensions.k8s.io/v1", []any{apiextensionsv1.CustomResourceDefinition{}}},
	{"apps/v1", []any{appsv1.ControllerRevision{}, appsv1.DaemonSet{}, appsv1.Deployment{}, appsv1.ReplicaSet{},
		appsv1.StatefulSet{}}},
	{"authentication.k8s.io/v1", []any{authenticationv1.SelfSubjectReview{}, authenticationv1.TokenReview{},
		authenticationv1.TokenRequest{}}},
	{"authorization.k8s.io/v1", []any{authorizationv1.LocalSubjectAccessReview{}, authorizationv1.SelfSubjectAccessReview{},
		authorizationv1.SelfSubjectRulesReview{}, authorizationv1.SubjectAccessReview{}}},
	{"autoscaling/v1", []any{autoscalingv1.Scale{}}},
	{"autoscaling/v2", []any{autoscalingv2.HorizontalPodAutoscaler{}}},
	{"batch/v1", []any{batchv1.CronJob{}, batchv1.Job{}}},
	{"certificates.k8s.io/v1", []any{certificatesv1.CertificateSigningRequest{}}},
	{"coordination.k8s.io/v1", []any{coordinationv1.Lease{}}},
	{"discovery.k8s.io/v1", []any{discoveryv1.EndpointSlice{}}},
	{"events.k8s.io/v1", []any{eventsv1.Event{}}},
	{"networking.k8s.io/v1", []any{networkingv1.Ingress{}, networkingv1.IngressClass{}, networkingv1.NetworkPolicy{}}},
	{"node.k8s.io/v1", []any{nodev1.RuntimeClass{}}},
	{"policy/v1", []any{policyv1.PodDisruptionBudget{}, policyv1.Eviction{}}},
	{"rbac.authorization.k8s.io/v1", []any{rbacv1.ClusterRoleBinding{}, rbacv1.ClusterRole{}, rbacv1.RoleBinding{},
		rbacv1.Role{}}},
	{"scheduling.k8s.io/v1", []any{schedulingv1.PriorityClass{}}},
	{"storage.k8s.io/v1", []any{storagev1.StorageClass{}}},
}

// Types with a JSON form of their own: read by code.
var special = map[string]string{
	"meta.Time": "Time", "meta.MicroTime": "MicroTime", "meta.Duration": "Duration", "meta.FieldsV1": "FieldsV1",
	"resource.Quantity": "Quantity", "intstr.IntOrString": "IntOrString", "runtime.RawExtension": "RawExtension",
	"apiextensions.JSON": "JSON", "apiextensions.JSONSchemaPropsOrArray": "JSONSchemaPropsOrArray",
	"apiextensions.JSONSchemaPropsOrBool":        "JSONSchemaPropsOrBool",
	"apiextensions.JSONSchemaPropsOrStringArray": "JSONSchemaPropsOrStringArray",
}

var lines = map[string]string{}

func name(t reflect.Type) string {
	parts := strings.Split(t.PkgPath(), "/")
	last := parts[len(parts)-1]
	if strings.HasPrefix(last, "v") && len(last) <= 2 && len(parts) > 1 {
		group := parts[len(parts)-2]
		if group == "autoscaling" {
			group += last
		}
		return group + "." + t.Name()
	}
	return last + "." + t.Name()
}

func kindOf(t reflect.Type) string {
	if s, ok := special[name(t)]; ok {
		return s
	}
	switch t.Kind() {
	case reflect.Pointer:
		return kindOf(t.Elem())
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "bool"
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint8, reflect.Uint32:
		return "int"
	case reflect.Float64:
		return "double"
	case reflect.Struct:
		message(t)
		return name(t)
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "bytes"
		}
		// A named list is a message of its own.
		if t.Name() == "ExtraValue" {
			return "Strings"
		}
		return "[]" + kindOf(t.Elem())
	case reflect.Map:
		return "{}" + kindOf(t.Elem())
	}
	panic(t.String())
}

func message(t reflect.Type) {
	n := name(t)
	if _, ok := lines[n]; ok {
		return
	}
	lines[n] = ""
	var fields []string
	for i := range t.NumField() {
		f := t.Field(i)
		tag, ok := f.Tag.Lookup("protobuf")
		if !ok || tag == "-" {
			if f.Name != "TypeMeta" {
				println("no tag:", n, f.Name)
			}
			continue
		}
		number := strings.Split(tag, ",")[1]
		json := strings.Split(f.Tag.Get("json"), ",")
		kind := kindOf(f.Type)
		if f.Type.Kind() == reflect.Pointer {
			kind = "*" + kind
		} else if strings.Contains(f.Tag.Get("json"), ",omit") {
			kind = "?" + kind
		}
		fields = append(fields, fmt.Sprintf("%s:%s:%s", number, json[0], kind))
	}
	lines[n] = strings.Join(fields, " ")
}

func main() {
	if len(os.Args) > 1 {
		vectors()
		return
	}
	for _, r := range roots {
		for _, o := range r.objects {
			t := reflect.TypeOf(o)
			message(t)
			fmt.Printf("%s %s = %s\n", r.apiVersion, t.Name(), name(t))
		}
	}
	names := []string{}
	for n := range lines {
		names = append(names, n)
	}
	sort.Strings(names)
	for _, n := range names {
		fmt.Println(strings.TrimSpace(n + " " + lines[n]))
	}
}
