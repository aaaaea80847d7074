package main

import (
	"context"
	"fmt"
	"strings"

	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func ready(pod *core.Pod) *core.PodCondition {
	for index := range pod.Status.Conditions {
		if pod.Status.Conditions[index].Type == core.PodReady {
			return &pod.Status.Conditions[index]
		}
	}
	return &core.PodCondition{}
}

// Creates a Pod, and waits until it is Ready.
func running(ctx context.Context, all *clients, pod *core.Pod) (*core.Pod, error) {
	api := all.typed.CoreV1().Pods(namespace)
	if _, err := api.Create(ctx, pod, meta.CreateOptions{}); err != nil {
		return nil, err
	}
	var found *core.Pod
	err := until(ctx, pod.Name+" is Ready", func() (done bool, err error) {
		found, err = api.Get(ctx, pod.Name, meta.GetOptions{})
		return err == nil && ready(found).Status == core.ConditionTrue, err
	})
	return found, err
}

func init() {
	holds("a deleted Pod that a finalizer holds is not Ready", func(ctx context.Context, all *clients) error {
		pod := &core.Pod{ObjectMeta: named("held"), Spec: sleeper()}
		pod.Finalizers = []string{"hutch.dev/go"}
		if _, err := running(ctx, all, pod); err != nil {
			return err
		}
		api := all.typed.CoreV1().Pods(namespace)
		if err := api.Delete(ctx, "held", meta.DeleteOptions{}); err != nil {
			return err
		}
		if err := until(ctx, "its processes have ended", func() (bool, error) {
			found, err := api.Get(ctx, "held", meta.GetOptions{})
			if err != nil {
				return false, err
			}
			return found.Status.Phase != core.PodRunning && ready(found).Status == core.ConditionFalse, nil
		}); err != nil {
			return err
		}
		if _, err := api.Patch(ctx, "held", "application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`), meta.PatchOptions{}); err != nil {
			return err
		}
		return until(ctx, "it is gone", func() (bool, error) {
			_, err := api.Get(ctx, "held", meta.GetOptions{})
			return errors.IsNotFound(err), nil
		})
	})

	holds("a Pod has seen its generation", func(ctx context.Context, all *clients) error {
		found, err := running(ctx, all, &core.Pod{ObjectMeta: named("generation"), Spec: sleeper()})
		if err != nil {
			return err
		}
		return must(found.Generation == 1 && found.Status.ObservedGeneration == 1 && ready(found).ObservedGeneration == 1,
			"%d %d %d", found.Generation, found.Status.ObservedGeneration, ready(found).ObservedGeneration)
	})

	holds("a limit of CPU that is not set is that of the node", func(ctx context.Context, all *clients) error {
		spec := sleeper()
		field := &core.ResourceFieldSelector{ContainerName: "main", Resource: "limits.cpu", Divisor: resource.MustParse("1m")}
		spec.Containers[0].Env = []core.EnvVar{{Name: "CPU", ValueFrom: &core.EnvVarSource{ResourceFieldRef: field}}}
		spec.RestartPolicy = core.RestartPolicyNever
		spec.Containers[0].Command = []string{"sh", "-c", "echo $CPU > /dev/termination-log"}
		api := all.typed.CoreV1().Pods(namespace)
		if _, err := api.Create(ctx, &core.Pod{ObjectMeta: named("limits"), Spec: spec}, meta.CreateOptions{}); err != nil {
			return err
		}
		nodes, err := all.typed.CoreV1().Nodes().List(ctx, meta.ListOptions{})
		if err != nil {
			return err
		}
		wanted := fmt.Sprint(nodes.Items[0].Status.Allocatable.Cpu().MilliValue())
		return until(ctx, "it prints "+wanted, func() (bool, error) {
			found, err := api.Get(ctx, "limits", meta.GetOptions{})
			if err != nil || len(found.Status.ContainerStatuses) == 0 || found.Status.ContainerStatuses[0].State.Terminated == nil {
				return false, err
			}
			said := strings.TrimSpace(found.Status.ContainerStatuses[0].State.Terminated.Message)
			return true, must(said == wanted, "%q, and not %q", said, wanted)
		})
	})
}
