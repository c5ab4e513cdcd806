// Package cri serves the Kubernetes Container Runtime Interface on top of local processes.
//
// One rule for locks: Server.mu guards all maps and the mutable fields of pods and containers; it is never held while
// waiting for a process, a file system walk or the network.
package cri

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"

	"trainyard.dev/process-runtime/internal/config"
	"trainyard.dev/process-runtime/internal/images"
)

// RuntimeName is what the node shows as its runtime.
const RuntimeName = "trainyard-process"

// Version of the runtime.
const Version = "0.1.0"

// Server is one node's runtime.
type Server struct {
	cri.UnimplementedRuntimeServiceServer
	cri.UnimplementedImageServiceServer

	config    *config.Config
	images    *images.Table
	records   *records
	streaming streaming.Server
	// singleUser is set where a user namespace gives only one user ID.
	singleUser bool

	mu         sync.Mutex
	pods       map[string]*pod
	containers map[string]*member
	addresses  *addresses
	stats      statsCache
}

// New makes a server from a node's configuration and what an earlier one recorded.
func New(c *config.Config) (*Server, error) {
	s := &Server{
		config: c, images: images.Open(c.Images), pods: map[string]*pod{}, containers: map[string]*member{},
		addresses: newAddresses(c.PodNetwork), singleUser: hasSingleUser(),
	}
	var err error
	if s.records, err = openRecords(c.RuntimeDir()); err != nil {
		return nil, err
	}
	return s, s.recover()
}

// Serve listens on the node's socket until the context ends, then stops all containers.
func (s *Server) Serve(ctx context.Context) error {
	listener, err := net.Listen("tcp", net.JoinHostPort(s.config.StreamingAddress, "0"))
	if err != nil {
		return fmt.Errorf("cannot listen for exec and port-forward: %w", err)
	}
	if err := s.startStreaming(listener); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(s.config.Socket), 0o700); err != nil {
		return err
	}
	// Only one runtime serves a node (see node.Lock), so a socket that is there was left behind.
	if err := os.Remove(s.config.Socket); err != nil && !os.IsNotExist(err) {
		return err
	}
	socket, err := net.Listen("unix", s.config.Socket)
	if err != nil {
		return fmt.Errorf("cannot listen for CRI: %w", err)
	}
	if err := os.Chmod(s.config.Socket, 0o600); err != nil {
		return err
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(logFailures), grpc.MaxRecvMsgSize(16<<20), grpc.MaxSendMsgSize(16<<20))
	cri.RegisterRuntimeServiceServer(server, s)
	cri.RegisterImageServiceServer(server, s)
	go s.watchMemory(ctx)
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(socket) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	s.stopAll()
	server.Stop()
	return nil
}

// logFailures writes each failed call to the runtime's log, as the kubelet's own message often lacks the reason.
func logFailures(ctx context.Context, q any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	answer, err := handle(ctx, q)
	if err != nil && ctx.Err() == nil && !expected(err) {
		log.Printf("%s: %v", filepath.Base(info.FullMethod), err)
	}
	return answer, err
}

// expected failures are everyday answers: what the kubelet asks after has been removed, or was never asked for.
func expected(err error) bool {
	code := status.Code(err)
	return code == codes.NotFound || code == codes.Unimplemented
}

// stopGrace is what containers get between SIGTERM and SIGKILL when the whole node stops.
const stopGrace = 3 * time.Second

func (s *Server) stopAll() {
	s.mu.Lock()
	var wait sync.WaitGroup
	for _, c := range s.containers {
		wait.Go(func() { s.stop(c, stopGrace) })
	}
	s.mu.Unlock()
	wait.Wait()
}

func newID() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	return hex.EncodeToString(b)
}

func notFound(kind, id string) error {
	return status.Errorf(codes.NotFound, "%s %q not found", kind, id)
}

func invalid(format string, a ...any) error {
	return status.Errorf(codes.InvalidArgument, format, a...)
}
