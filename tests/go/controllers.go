package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	controller "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	managercache "sigs.k8s.io/controller-runtime/pkg/cache"
)

func init() {
	holds("an informer sees every change", func(ctx context.Context, all *clients) error {
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		factory := informers.NewSharedInformerFactoryWithOptions(all.typed, 0, informers.WithNamespace(namespace))
		seen := make(chan string, 100)
		say := func(what string, object any) {
			if config, ok := object.(*core.ConfigMap); ok && config.Name == "informed" {
				seen <- what + config.Data["a"]
			}
		}
		informer := factory.Core().V1().ConfigMaps().Informer()
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { say("added", object) },
			UpdateFunc: func(_, object any) { say("updated", object) },
			DeleteFunc: func(object any) { say("deleted", object) },
		}); err != nil {
			return err
		}
		factory.Start(ctx.Done())
		if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
			return fmt.Errorf("the cache is never complete")
		}
		api := all.typed.CoreV1().ConfigMaps(namespace)
		object := &core.ConfigMap{ObjectMeta: named("informed"), Data: map[string]string{"a": "1"}}
		made, err := api.Create(ctx, object, meta.CreateOptions{})
		if err != nil {
			return err
		}
		made.Data["a"] = "2"
		if _, err := api.Update(ctx, made, meta.UpdateOptions{}); err != nil {
			return err
		}
		if err := api.Delete(ctx, "informed", meta.DeleteOptions{}); err != nil {
			return err
		}
		for _, wanted := range []string{"added1", "updated2", "deleted2"} {
			select {
			case found := <-seen:
				if found != wanted {
					return fmt.Errorf("%s, and not %s", found, wanted)
				}
			case <-time.After(patience):
				return fmt.Errorf("never: %s", wanted)
			}
		}
		return nil
	})

	holds("one of two candidates leads, and the other follows it", func(ctx context.Context, all *clients) error {
		leads := make(chan string, 2)
		stops := map[string]context.CancelFunc{}
		for _, name := range []string{"one", "two"} {
			candidate, stop := context.WithCancel(ctx)
			defer stop()
			stops[name] = stop
			lock := &resourcelock.LeaseLock{LeaseMeta: named("elected"), Client: all.typed.CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: name}}
			go leaderelection.RunOrDie(candidate, leaderelection.LeaderElectionConfig{
				Lock: lock, ReleaseOnCancel: true, LeaseDuration: 30 * time.Second, RenewDeadline: 20 * time.Second, RetryPeriod: time.Second,
				Callbacks: leaderelection.LeaderCallbacks{
					OnStartedLeading: func(context.Context) { leads <- name },
					OnStoppedLeading: func() {},
				},
			})
		}
		var first string
		select {
		case first = <-leads:
		case <-time.After(patience):
			return fmt.Errorf("no candidate leads")
		}
		stops[first]()
		select {
		case second := <-leads:
			return must(second != first, "%s leads twice", first)
		case <-time.After(patience):
			return fmt.Errorf("no candidate follows")
		}
	})

	holds("a reconciler of controller-runtime comes to rest", func(ctx context.Context, all *clients) error {
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		log.SetLogger(logr.Discard())
		manager, err := controller.NewManager(all.config, controller.Options{
			Metrics:        server.Options{BindAddress: "0"},
			Cache:          managercache.Options{DefaultNamespaces: map[string]managercache.Config{namespace: {}}},
			LeaderElection: true, LeaderElectionID: "go-manager", LeaderElectionNamespace: namespace,
		})
		if err != nil {
			return err
		}
		var runs, writes atomic.Int64
		owner := func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
			var config core.ConfigMap
			if err := manager.GetClient().Get(ctx, request.NamespacedName, &config); err != nil {
				return reconcile.Result{}, client.IgnoreNotFound(err)
			}
			if config.Name != "operated" {
				return reconcile.Result{}, nil
			}
			runs.Add(1)
			owned := &apps.Deployment{ObjectMeta: named("operated")}
			result, err := controllerutil.CreateOrUpdate(ctx, manager.GetClient(), owned, func() error {
				wanted := deployment("operated")
				wanted.Spec.Replicas = pointer(int32(1))
				// As most operators do: a spec without the server's defaults takes the place of the one that was read.
				owned.Spec = wanted.Spec
				return controllerutil.SetControllerReference(&config, owned, manager.GetScheme())
			})
			if err == nil && result != controllerutil.OperationResultNone {
				writes.Add(1)
			}
			return reconcile.Result{}, err
		}
		err = controller.NewControllerManagedBy(manager).For(&core.ConfigMap{}).Owns(&apps.Deployment{}).Complete(reconcile.Func(owner))
		if err != nil {
			return err
		}
		ended := make(chan error, 1)
		go func() { ended <- manager.Start(ctx) }()
		config := &core.ConfigMap{ObjectMeta: named("operated")}
		if _, err := all.typed.CoreV1().ConfigMaps(namespace).Create(ctx, config, meta.CreateOptions{}); err != nil {
			return err
		}
		api := all.typed.AppsV1().Deployments(namespace)
		var found *apps.Deployment
		if err := until(ctx, "its Deployment is available", func() (bool, error) {
			found, err = api.Get(ctx, "operated", meta.GetOptions{})
			return err == nil && found.Status.AvailableReplicas == 1, nil
		}); err != nil {
			return err
		}
		// At rest: no run within two seconds.
		if err := until(ctx, "it comes to rest", func() (bool, error) {
			before := runs.Load()
			time.Sleep(2 * time.Second)
			return runs.Load() == before, nil
		}); err != nil {
			return fmt.Errorf("%w: %d runs, %d writes", err, runs.Load(), writes.Load())
		}
		found, err = api.Get(ctx, "operated", meta.GetOptions{})
		if err != nil {
			return err
		}
		if err := must(found.Generation == 1, "generation %d after %d writes", found.Generation, writes.Load()); err != nil {
			return err
		}
		stop()
		return <-ended
	})
}
