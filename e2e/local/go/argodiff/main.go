// Command argodiff compares desired manifests with a cluster the way Argo CD does, with the comparison code of its GitOps engine.
//
// It reads a JSON array of objects from standard input and prints a JSON array with one entry per object: for each of Argo CD's three
// strategies (three-way merge, structured merge, server-side dry run) the JSON merge patch from the live to the predicted object.
// An empty patch means that Argo CD shows the object as Synced.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"

	"github.com/argoproj/argo-cd/gitops-engine/pkg/diff"
	"github.com/argoproj/argo-cd/gitops-engine/pkg/utils/kube"
	"github.com/argoproj/argo-cd/gitops-engine/pkg/utils/tracing"
	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// manager is the field manager that Argo CD applies and compares with.
const manager = "argocd-controller"

type comparison struct {
	ThreeWay   json.RawMessage `json:"threeWay"`
	Structured json.RawMessage `json:"structured"`
	ServerSide json.RawMessage `json:"serverSide"`
}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "path of the kubeconfig")
	contextName := flag.String("context", "", "context in the kubeconfig; default: its current one")
	flag.Parse()
	if err := run(*kubeconfig, *contextName); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(kubeconfig, contextName string) error {
	var desired []*unstructured.Unstructured
	var raw []json.RawMessage
	if err := json.NewDecoder(os.Stdin).Decode(&raw); err != nil {
		return fmt.Errorf("standard input is not a JSON array: %w", err)
	}
	for index, item := range raw {
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(item); err != nil {
			return fmt.Errorf("object %d: %w", index, err)
		}
		desired = append(desired, object)
	}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig},
		&clientcmd.ConfigOverrides{CurrentContext: contextName},
	).ClientConfig()
	if err != nil {
		return err
	}
	result, err := compareAll(context.Background(), config, desired)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}

func compareAll(ctx context.Context, config *rest.Config, desired []*unstructured.Unstructured) ([]comparison, error) {
	kubectl := &kube.KubectlCmd{Log: logr.Discard(), Tracer: tracing.NopTracer{}}
	_, parser, err := kubectl.LoadOpenAPISchema(config)
	if err != nil {
		return nil, err
	}
	applier, cleanup, err := kubectl.ManageServerSideDiffDryRuns(config)
	if err != nil {
		return nil, err
	}
	defer cleanup()
	common := []diff.Option{
		diff.WithLogr(logr.Discard()), diff.IgnoreAggregatedRoles(true), diff.WithManager(manager), diff.WithGVKParser(parser),
	}
	result := make([]comparison, 0, len(desired))
	for _, object := range desired {
		live, err := kubectl.GetResource(ctx, config, object.GroupVersionKind(), object.GetName(), object.GetNamespace())
		if err != nil {
			return nil, fmt.Errorf("%s %s/%s: %w", object.GetKind(), object.GetNamespace(), object.GetName(), err)
		}
		compare := func(options ...diff.Option) (json.RawMessage, error) {
			outcome, err := diff.Diff(object.DeepCopy(), live.DeepCopy(), append(options, common...)...)
			if err != nil {
				return nil, err
			}
			return jsonpatch.CreateMergePatch(outcome.NormalizedLive, outcome.PredictedLive)
		}
		var entry comparison
		if entry.ThreeWay, err = compare(); err != nil {
			return nil, fmt.Errorf("three-way: %w", err)
		}
		if entry.Structured, err = compare(diff.WithStructuredMergeDiff(true)); err != nil {
			return nil, fmt.Errorf("structured: %w", err)
		}
		dryRunner := diff.WithServerSideDryRunner(diff.NewK8sServerSideDryRunner(applier))
		if entry.ServerSide, err = compare(diff.WithServerSideDiff(true), dryRunner); err != nil {
			return nil, fmt.Errorf("server-side: %w", err)
		}
		result = append(result, entry)
	}
	return result, nil
}
