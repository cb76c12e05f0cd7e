// Gpu-device-plugin is a stand-in for NVIDIA's device plugin: it offers devices that do not exist through the kubelet's real
// device-plugin API, so that scheduling, allocation and accounting of nvidia.com/gpu are those of a node with GPUs.
//
// The number of devices is read from a file and follows its changes, as do the numbers of unhealthy devices that may stand after it;
// the plugin registers anew whenever the kubelet makes its socket anew.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	socketName      = "fake-gpu.sock"
	registerTimeout = 10 * time.Second
	maxDevices      = 1024
)

type plugin struct {
	api.UnimplementedDevicePluginServer

	mu      sync.Mutex
	health  []string
	changed chan struct{}
}

func newPlugin(health []string) *plugin {
	return &plugin{health: health, changed: make(chan struct{})}
}

// set changes the health of all devices, and so their number, and wakes every stream.
func (p *plugin) set(health []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Equal(p.health, health) {
		p.health = health
		close(p.changed)
		p.changed = make(chan struct{})
		log.Printf("devices: %v", health)
	}
}

func (p *plugin) devices() ([]*api.Device, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	devices := make([]*api.Device, len(p.health))
	for i, health := range p.health {
		devices[i] = &api.Device{ID: fmt.Sprintf("fake-gpu-%d", i), Health: health}
	}
	return devices, p.changed
}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

// ListAndWatch sends the devices at once and again after every change.
func (p *plugin) ListAndWatch(_ *api.Empty, stream api.DevicePlugin_ListAndWatchServer) error {
	for {
		devices, changed := p.devices()
		if err := stream.Send(&api.ListAndWatchResponse{Devices: devices}); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

// Allocate tells the container which devices it got, in the variable that NVIDIA's container runtime reads.
func (p *plugin) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	response := &api.AllocateResponse{}
	for _, container := range request.GetContainerRequests() {
		ids := strings.Join(container.GetDevicesIds(), ",")
		response.ContainerResponses = append(response.ContainerResponses, &api.ContainerAllocateResponse{
			Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": ids},
		})
	}
	return response, nil
}

// readHealth returns the health of each device from a file such as "3 1": three devices, of which number 1 is unhealthy.
func readHealth(path string) ([]string, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	text := strings.TrimSpace(string(raw))
	refused := fmt.Errorf("%s: want a number of devices from 0 to %d and the numbers of unhealthy ones, got %q", path, maxDevices, text)
	var health []string
	for i, field := range strings.Fields(text) {
		number, err := strconv.Atoi(field)
		switch {
		case err != nil || number < 0 || number > maxDevices:
			return nil, refused
		case i == 0:
			health = slices.Repeat([]string{api.Healthy}, number)
		case number < len(health):
			health[number] = api.Unhealthy
		default:
			return nil, refused
		}
	}
	if text == "" {
		return nil, refused
	}
	return health, nil
}

func serve(p *plugin, socket string) (*grpc.Server, error) {
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, p)
	go func() {
		if err := server.Serve(listener); err != nil {
			log.Printf("serving %s: %v", socket, err)
		}
	}()
	return server, nil
}

func register(ctx context.Context, kubeletSocket, resource string) error {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	connection, err := grpc.NewClient("unix://"+kubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	_, err = api.NewRegistrationClient(connection).Register(ctx, &api.RegisterRequest{
		Version:      api.Version,
		Endpoint:     socketName,
		ResourceName: resource,
		Options:      &api.DevicePluginOptions{},
	}, grpc.WaitForReady(true))
	return err
}

func run(ctx context.Context, folder, countFile, resource string) error {
	health, err := readHealth(countFile)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o750); err != nil {
		return err
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer watcher.Close()
	for _, watched := range []string{folder, filepath.Dir(countFile)} {
		if err := watcher.Add(watched); err != nil {
			return fmt.Errorf("watching %s: %w", watched, err)
		}
	}

	p := newPlugin(health)
	kubeletSocket := filepath.Join(folder, filepath.Base(api.KubeletSocket))
	var server *grpc.Server
	defer func() {
		if server != nil {
			server.Stop()
		}
	}()
	// The kubelet empties the folder when it starts: serve and register from scratch whenever its socket appears.
	start := func() error {
		if server != nil {
			server.Stop()
		}
		if server, err = serve(p, filepath.Join(folder, socketName)); err != nil {
			return err
		}
		if err := register(ctx, kubeletSocket, resource); err != nil {
			return fmt.Errorf("registering %s at %s: %w", resource, kubeletSocket, err)
		}
		log.Printf("registered %s", resource)
		return nil
	}
	if _, err := os.Stat(kubeletSocket); err == nil {
		if err := start(); err != nil {
			return err
		}
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case event := <-watcher.Events:
			switch {
			case event.Name == kubeletSocket && event.Has(fsnotify.Create):
				if err := start(); err != nil {
					return err
				}
			case event.Name == countFile && (event.Has(fsnotify.Create) || event.Has(fsnotify.Write)):
				if health, err := readHealth(countFile); err != nil {
					log.Print(err)
				} else {
					p.set(health)
				}
			}
		case err := <-watcher.Errors:
			return err
		}
	}
}

func main() {
	folder := flag.String("folder", strings.TrimSuffix(api.DevicePluginPath, "/"), "the kubelet's folder of device plugins")
	countFile := flag.String("count-file", "", "file that holds the number of devices and the numbers of unhealthy ones (absolute path; replaced by rename)")
	resource := flag.String("resource", "nvidia.com/gpu", "name of the extended resource")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *folder, *countFile, *resource); err != nil {
		log.Fatal(err)
	}
}
