package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	apps "k8s.io/api/apps/v1"
	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	events "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	corev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func named(name string) meta.ObjectMeta {
	return meta.ObjectMeta{Name: name, Namespace: namespace}
}

func sleeper() core.PodSpec {
	return core.PodSpec{
		TerminationGracePeriodSeconds: pointer(int64(0)),
		Containers:                    []core.Container{{Name: "main", Image: "hutch/host", Command: []string{"sleep", "infinity"}}},
	}
}

func deployment(name string) *apps.Deployment {
	labels := map[string]string{"app": name}
	return &apps.Deployment{ObjectMeta: named(name), Spec: apps.DeploymentSpec{
		Replicas: pointer(int32(0)),
		Selector: &meta.LabelSelector{MatchLabels: labels},
		Template: core.PodTemplateSpec{ObjectMeta: meta.ObjectMeta{Labels: labels}, Spec: sleeper()},
	}}
}

func init() {
	holds("objects outside of core are deleted with options", func(ctx context.Context, all *clients) error {
		api := all.typed.AppsV1().Deployments(namespace)
		if _, err := api.Create(ctx, deployment("deleted"), meta.CreateOptions{}); err != nil {
			return err
		}
		options := meta.DeleteOptions{PropagationPolicy: pointer(meta.DeletePropagationForeground)}
		if err := api.Delete(ctx, "deleted", options); err != nil {
			return err
		}
		return until(ctx, "it is gone", func() (bool, error) {
			_, err := api.Get(ctx, "deleted", meta.GetOptions{})
			return errors.IsNotFound(err), nil
		})
	})

	holds("updates that change nothing leave generation and version", func(ctx context.Context, all *clients) error {
		deployments := all.typed.AppsV1().Deployments(namespace)
		if _, err := deployments.Create(ctx, deployment("same"), meta.CreateOptions{}); err != nil {
			return err
		}
		var before *apps.Deployment
		// Its controller writes the status first.
		err := until(ctx, "its status", func() (found bool, err error) {
			before, err = deployments.Get(ctx, "same", meta.GetOptions{})
			return err == nil && before.Status.ObservedGeneration == before.Generation, err
		})
		if err != nil {
			return err
		}
		for range 3 {
			after, err := deployments.Update(ctx, before.DeepCopy(), meta.UpdateOptions{})
			if err != nil {
				return err
			}
			if err := must(after.Generation == before.Generation && after.ResourceVersion == before.ResourceVersion,
				"Deployment: %d %s, then %d %s", before.Generation, before.ResourceVersion, after.Generation, after.ResourceVersion); err != nil {
				return err
			}
		}
		services := all.typed.CoreV1().Services(namespace)
		service := &core.Service{ObjectMeta: named("same"), Spec: core.ServiceSpec{Ports: []core.ServicePort{{Port: 80}}}}
		made, err := services.Create(ctx, service, meta.CreateOptions{})
		if err != nil {
			return err
		}
		again, err := services.Update(ctx, made.DeepCopy(), meta.UpdateOptions{})
		if err != nil {
			return err
		}
		return must(again.ResourceVersion == made.ResourceVersion && equality.Semantic.DeepEqual(made, again),
			"Service: %v, then %v", made, again)
	})

	holds("times on a whole second are read by every client", func(ctx context.Context, all *clients) error {
		whole := time.Unix(1_800_000_000, 0)
		lease := &coordination.Lease{ObjectMeta: named("whole"), Spec: coordination.LeaseSpec{
			HolderIdentity: pointer("go"), AcquireTime: pointer(meta.NewMicroTime(whole)), RenewTime: pointer(meta.NewMicroTime(whole)),
		}}
		event := &events.Event{ObjectMeta: named("whole"), EventTime: meta.NewMicroTime(whole), ReportingController: "hutch.dev/go",
			ReportingInstance: "go", Action: "Test", Reason: "Test", Type: "Normal",
			Regarding: core.ObjectReference{Kind: "Namespace", Name: namespace, Namespace: namespace}}
		for index, client := range []kubernetes.Interface{all.typed, all.plain} {
			one, another := lease.DeepCopy(), event.DeepCopy()
			one.Name, another.Name = fmt.Sprintf("whole-%d", index), fmt.Sprintf("whole-%d", index)
			if _, err := client.CoordinationV1().Leases(namespace).Create(ctx, one, meta.CreateOptions{}); err != nil {
				return fmt.Errorf("Lease: %w", err)
			}
			if _, err := client.EventsV1().Events(namespace).Create(ctx, another, meta.CreateOptions{}); err != nil {
				return fmt.Errorf("Event: %w", err)
			}
		}
		for _, client := range []kubernetes.Interface{all.typed, all.plain} {
			leases, err := client.CoordinationV1().Leases(namespace).List(ctx, meta.ListOptions{})
			if err != nil {
				return err
			}
			for _, one := range leases.Items {
				if !strings.HasPrefix(one.Name, "whole-") {
					continue
				}
				if err := must(one.Spec.RenewTime.Time.Equal(whole), "Lease: %v", one.Spec.RenewTime); err != nil {
					return err
				}
			}
			found, err := client.EventsV1().Events(namespace).Get(ctx, "whole-0", meta.GetOptions{})
			if err != nil {
				return err
			}
			if err := must(found.EventTime.Time.Equal(whole), "Event: %v", found.EventTime); err != nil {
				return err
			}
			if _, err := client.CoreV1().Events(namespace).List(ctx, meta.ListOptions{}); err != nil {
				return err
			}
		}
		return nil
	})

	holds("what is immutable stays as it is", func(ctx context.Context, all *clients) error {
		api := all.typed.CoreV1().ConfigMaps(namespace)
		made, err := api.Create(ctx, &core.ConfigMap{ObjectMeta: named("fixed"), Immutable: pointer(true), Data: map[string]string{"a": "b"}}, meta.CreateOptions{})
		if err != nil {
			return err
		}
		made.Data["a"] = "c"
		_, err = api.Update(ctx, made, meta.UpdateOptions{})
		if err := must(errors.IsInvalid(err), "ConfigMap: %v", err); err != nil {
			return err
		}
		secret := &core.Secret{ObjectMeta: named("fixed"), Immutable: pointer(true), Data: map[string][]byte{"a": []byte("b")}}
		hidden, err := all.typed.CoreV1().Secrets(namespace).Create(ctx, secret, meta.CreateOptions{})
		if err != nil {
			return err
		}
		hidden.Immutable = nil
		_, err = all.typed.CoreV1().Secrets(namespace).Update(ctx, hidden, meta.UpdateOptions{})
		return must(errors.IsInvalid(err), "Secret: %v", err)
	})

	holds("an unknown RuntimeClass is forbidden", func(ctx context.Context, all *clients) error {
		spec := sleeper()
		spec.RuntimeClassName = pointer("no-such-class")
		_, err := all.typed.CoreV1().Pods(namespace).Create(ctx, &core.Pod{ObjectMeta: named("classless"), Spec: spec}, meta.CreateOptions{})
		return must(errors.IsForbidden(err) && strings.Contains(err.Error(), "no-such-class"), "%v", err)
	})

	holds("pages of a list are of one moment", func(ctx context.Context, all *clients) error {
		api := all.typed.CoreV1().ConfigMaps(namespace)
		labels := map[string]string{"paged": "true"}
		for index := range 5 {
			object := &core.ConfigMap{ObjectMeta: named(fmt.Sprintf("page-%d", index))}
			object.Labels = labels
			if _, err := api.Create(ctx, object, meta.CreateOptions{}); err != nil {
				return err
			}
		}
		options := meta.ListOptions{LabelSelector: "paged=true", Limit: 2}
		page, err := api.List(ctx, options)
		if err != nil {
			return err
		}
		version := page.ResourceVersion
		if err := api.Delete(ctx, "page-4", meta.DeleteOptions{}); err != nil {
			return err
		}
		late := &core.ConfigMap{ObjectMeta: named("page-3-later")}
		late.Labels = labels
		if _, err := api.Create(ctx, late, meta.CreateOptions{}); err != nil {
			return err
		}
		var names []string
		for {
			for _, item := range page.Items {
				names = append(names, item.Name)
			}
			if page.Continue == "" {
				break
			}
			options.Continue = page.Continue
			if page, err = api.List(ctx, options); err != nil {
				return err
			}
			if err := must(page.ResourceVersion == version, "version %s, then %s", version, page.ResourceVersion); err != nil {
				return err
			}
		}
		return must(strings.Join(names, " ") == "page-0 page-1 page-2 page-3 page-4", "%v", names)
	})

	holds("defaults of a definition are in what is read", func(ctx context.Context, all *clients) error {
		definitions := all.any.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
		definition := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "widgets.go.test"},
			"spec": map[string]any{"group": "go.test", "scope": "Namespaced",
				"names": map[string]any{"plural": "widgets", "kind": "Widget"},
				"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "schema": map[string]any{
					"openAPIV3Schema": map[string]any{"type": "object", "properties": map[string]any{
						"spec": map[string]any{"type": "object", "properties": map[string]any{"size": map[string]any{"type": "integer"}}}}}}}}}}}
		if _, err := definitions.Create(ctx, definition, meta.CreateOptions{}); err != nil {
			return err
		}
		widgets := all.any.Resource(schema.GroupVersionResource{Group: "go.test", Version: "v1", Resource: "widgets"}).Namespace(namespace)
		widget := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "go.test/v1", "kind": "Widget",
			"metadata": map[string]any{"name": "w"}, "spec": map[string]any{}}}
		if err := until(ctx, "widgets are served", func() (bool, error) {
			_, err := widgets.Create(ctx, widget, meta.CreateOptions{})
			return err == nil, nil
		}); err != nil {
			return err
		}
		patch := `[{"op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/size/default", "value": 7}]`
		if _, err := definitions.Patch(ctx, "widgets.go.test", "application/json-patch+json", []byte(patch), meta.PatchOptions{}); err != nil {
			return err
		}
		return until(ctx, "the default is read", func() (bool, error) {
			found, err := widgets.Get(ctx, "w", meta.GetOptions{})
			if err != nil {
				return false, err
			}
			size, _, _ := unstructured.NestedInt64(found.Object, "spec", "size")
			return size == 7, nil
		})
	})

	holds("unknown fields are refused by name", func(ctx context.Context, all *clients) error {
		body := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"strict","unknown":1},"dat":{},"data":{"a":"b","a":"c"}}`
		result := all.plain.CoreV1().RESTClient().Post().Namespace(namespace).Resource("configmaps").Param("fieldValidation", "Strict").
			Body([]byte(body)).SetHeader("Content-Type", "application/json").Do(ctx)
		err := result.Error()
		for _, part := range []string{`strict decoding error: `, `duplicate field "data.a"`, `unknown field "dat"`, `unknown field "metadata.unknown"`} {
			if !errors.IsBadRequest(err) || !strings.Contains(err.Error(), part) {
				return fmt.Errorf("%s is not in: %v", part, err)
			}
		}
		return nil
	})

	holds("health and version need no credential", func(ctx context.Context, all *clients) error {
		anonymous, err := kubernetes.NewForConfig(rest.AnonymousClientConfig(all.config))
		if err != nil {
			return err
		}
		for _, path := range []string{"/livez", "/healthz", "/readyz", "/version"} {
			if _, err := anonymous.Discovery().RESTClient().Get().AbsPath(path).DoRaw(ctx); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
		}
		_, err = anonymous.CoreV1().Pods(namespace).List(ctx, meta.ListOptions{})
		return must(errors.IsUnauthorized(err) || errors.IsForbidden(err), "pods: %v", err)
	})

	holds("discovery and both schemas are read", func(ctx context.Context, all *clients) error {
		_, lists, err := all.typed.Discovery().ServerGroupsAndResources()
		if err != nil {
			return err
		}
		document, err := all.typed.Discovery().OpenAPISchema()
		if err != nil {
			return err
		}
		paths, err := all.typed.Discovery().OpenAPIV3().Paths()
		if err != nil {
			return err
		}
		return must(len(lists) > 10 && len(document.GetDefinitions().GetAdditionalProperties()) > 100 && len(paths) > 10,
			"%d %d %d", len(lists), len(document.GetDefinitions().GetAdditionalProperties()), len(paths))
	})

	holds("fields are applied and owned", func(ctx context.Context, all *clients) error {
		api := all.typed.CoreV1().ConfigMaps(namespace)
		apply := func(manager, key string) (*core.ConfigMap, error) {
			config := corev1.ConfigMap("applied", namespace).WithData(map[string]string{key: manager})
			return api.Apply(ctx, config, meta.ApplyOptions{FieldManager: manager})
		}
		if _, err := apply("one", "a"); err != nil {
			return err
		}
		both, err := apply("two", "b")
		if err != nil {
			return err
		}
		if err := must(both.Data["a"] == "one" && both.Data["b"] == "two", "%v", both.Data); err != nil {
			return err
		}
		_, err = apply("two", "a")
		return must(errors.IsConflict(err), "%v", err)
	})

	holds("a namespace says what keeps it", func(ctx context.Context, all *clients) error {
		const name = "go-held"
		namespaces := all.typed.CoreV1().Namespaces()
		if _, err := namespaces.Create(ctx, &core.Namespace{ObjectMeta: meta.ObjectMeta{Name: name}}, meta.CreateOptions{}); err != nil {
			return err
		}
		api := all.typed.CoreV1().ConfigMaps(name)
		held := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: "held", Finalizers: []string{"hutch.dev/go"}}}
		if _, err := api.Create(ctx, held, meta.CreateOptions{}); err != nil {
			return err
		}
		if err := namespaces.Delete(ctx, name, meta.DeleteOptions{}); err != nil {
			return err
		}
		if err := until(ctx, "its conditions", func() (bool, error) {
			found, err := namespaces.Get(ctx, name, meta.GetOptions{})
			if err != nil {
				return false, err
			}
			for _, condition := range found.Status.Conditions {
				if condition.Type == core.NamespaceFinalizersRemaining && condition.Status == core.ConditionTrue {
					return strings.Contains(condition.Message, "hutch.dev/go"), nil
				}
			}
			return false, nil
		}); err != nil {
			return err
		}
		if _, err := api.Patch(ctx, "held", "application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`), meta.PatchOptions{}); err != nil {
			return err
		}
		return until(ctx, "it is gone", func() (bool, error) {
			_, err := namespaces.Get(ctx, name, meta.GetOptions{})
			return errors.IsNotFound(err), nil
		})
	})
}
