// Runs client-go and controller-runtime against the server of KUBECONFIG, as operators use them: built-in kinds travel as
// Protobuf. Prints a line of JSON for each check. An argument is the part of a name: only these checks run.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const protobuf = runtime.ContentTypeProtobuf

// The checks have one namespace, which is empty at first.
const namespace = "go"

// Long enough for anything that happens at all on a busy machine.
const patience = 90 * time.Second

// Clients of the server.
type clients struct {
	config *rest.Config
	// Speaks Protobuf, and accepts nothing else.
	typed kubernetes.Interface
	// Speaks JSON.
	plain kubernetes.Interface
	any   dynamic.Interface
}

type check struct {
	name string
	run  func(context.Context, *clients) error
}

var checks []check

// Adds a check; its name is what holds.
func holds(name string, run func(context.Context, *clients) error) {
	checks = append(checks, check{name, run})
}

func main() {
	part := ""
	if len(os.Args) > 1 {
		part = os.Args[1]
	}
	all, err := connect()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if err := makeNamespace(context.Background(), all); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	failed := false
	for _, each := range checks {
		if !strings.Contains(each.name, part) {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
		err := each.run(ctx, all)
		cancel()
		line := map[string]any{"name": each.name}
		if err != nil {
			line["error"], failed = err.Error(), true
		}
		text, _ := json.Marshal(line)
		fmt.Println(string(text))
	}
	if failed {
		os.Exit(1)
	}
}

func connect() (*clients, error) {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = 200, 400
	binary := rest.CopyConfig(config)
	binary.ContentType, binary.AcceptContentTypes = protobuf, protobuf
	typed, err := kubernetes.NewForConfig(binary)
	if err != nil {
		return nil, err
	}
	plain, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	any, err := dynamic.NewForConfig(config)
	return &clients{config, typed, plain, any}, err
}

// Makes the namespace of the checks, and waits until Pods can be made in it.
func makeNamespace(ctx context.Context, all *clients) error {
	object := &core.Namespace{ObjectMeta: meta.ObjectMeta{Name: namespace}}
	if _, err := all.typed.CoreV1().Namespaces().Create(ctx, object, meta.CreateOptions{}); err != nil {
		return err
	}
	return until(ctx, "its ServiceAccount", func() (bool, error) {
		_, err := all.typed.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", meta.GetOptions{})
		return err == nil, nil
	})
}

// Waits until a condition holds.
func until(ctx context.Context, what string, condition func() (bool, error)) error {
	deadline := time.Now().Add(patience)
	for {
		done, err := condition()
		if err != nil || done {
			return err
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return fmt.Errorf("never: %s", what)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// Returns an error unless the condition holds.
func must(condition bool, format string, words ...any) error {
	if condition {
		return nil
	}
	return fmt.Errorf(format, words...)
}

func pointer[T any](value T) *T {
	return &value
}
