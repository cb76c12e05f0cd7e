// Command kstatus prints the status that kstatus computes for Kubernetes objects, as kubectl-style waiting in Flux, Helm 4 and
// `kustomize` tooling sees it.
//
// It reads a JSON array of objects from standard input and writes a JSON array of {"status", "message"} in the same order.
// Status is one of Current, InProgress, Failed, Terminating, NotFound, Unknown.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

type verdict struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run() error {
	var objects []map[string]any
	decoder := json.NewDecoder(os.Stdin)
	if err := decoder.Decode(&objects); err != nil {
		return fmt.Errorf("standard input is not a JSON array of objects: %w", err)
	}
	verdicts := make([]verdict, 0, len(objects))
	for index, content := range objects {
		normalize(content)
		result, err := status.Compute(&unstructured.Unstructured{Object: content})
		if err != nil {
			return fmt.Errorf("object %d: %w", index, err)
		}
		verdicts = append(verdicts, verdict{Status: result.Status.String(), Message: result.Message})
	}
	return json.NewEncoder(os.Stdout).Encode(verdicts)
}

// normalize turns whole float64 numbers, which encoding/json makes, into int64, which unstructured accessors expect.
func normalize(value any) any {
	switch typed := value.(type) {
	case map[string]any:
		for key, item := range typed {
			typed[key] = normalize(item)
		}
		return typed
	case []any:
		for index, item := range typed {
			typed[index] = normalize(item)
		}
		return typed
	case float64:
		if whole := int64(typed); float64(whole) == typed {
			return whole
		}
		return typed
	default:
		return value
	}
}
