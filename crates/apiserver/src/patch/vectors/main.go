// Command vectors answers the questions in a file (made by cases.py) with the libraries of Kubernetes 1.36: strategic merge
// patches, and sequences of applies and updates. Usage: go run . cases.json SWAGGER.JSON > ../vectors.txt
package main

import (
	"encoding/json"
	"fmt"
	"os"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/managedfields/managedfieldstest"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

type step struct {
	Op      string         `json:"op"`
	Manager string         `json:"manager"`
	Force   bool           `json:"force"`
	Object  map[string]any `json:"object"`
	Result  map[string]any `json:"result,omitempty"`
	Error   string         `json:"error,omitempty"`
}
type line struct {
	Kind     string         `json:"kind"`
	Steps    []step         `json:"steps,omitempty"`
	Original map[string]any `json:"original,omitempty"`
	Patch    map[string]any `json:"patch,omitempty"`
	Result   map[string]any `json:"result,omitempty"`
	Error    string         `json:"error,omitempty"`
}

func main() {
	raw, _ := os.ReadFile(os.Args[2])
	var sw struct {
		Definitions map[string]*spec.Schema `json:"definitions"`
	}
	if err := json.Unmarshal(raw, &sw); err != nil {
		panic(err)
	}
	tc, err := managedfields.NewTypeConverter(sw.Definitions, false)
	if err != nil {
		panic(err)
	}
	in, _ := os.ReadFile(os.Args[1])
	var lines []line
	if err := json.Unmarshal(in, &lines); err != nil {
		panic(err)
	}
	for _, l := range lines {
		gvk := schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: l.Kind}
		var typed any = appsv1.Deployment{}
		if l.Kind != "Deployment" {
			gvk.Group = ""
		}
		switch l.Kind {
		case "Pod":
			typed = corev1.Pod{}
		case "Service":
			typed = corev1.Service{}
		}
		if l.Patch != nil {
			o, _ := json.Marshal(l.Original)
			p, _ := json.Marshal(l.Patch)
			r, err := strategicpatch.StrategicMergePatch(o, p, typed)
			if err != nil {
				l.Error = err.Error()
			} else {
				json.Unmarshal(r, &l.Result)
			}
		} else {
			f := managedfieldstest.NewTestFieldManager(tc, gvk)
			for i := range l.Steps {
				s := &l.Steps[i]
				s.Object["apiVersion"] = gvk.GroupVersion().String()
				s.Object["kind"] = l.Kind
				u := &unstructured.Unstructured{Object: s.Object}
				u = u.DeepCopy()
				var err error
				if s.Op == "apply" {
					err = f.Apply(u, s.Manager, s.Force)
				} else {
					err = f.Update(u, s.Manager)
				}
				if err != nil {
					s.Error = err.Error()
				}
				live := f.Live().(*unstructured.Unstructured).DeepCopy()
				s.Result = live.Object
			}
		}
		out, _ := json.Marshal(l)
		fmt.Println(string(out))
	}
}
