package cri

import (
	"context"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Version tells name and version.
func (s *Server) Version(context.Context, *cri.VersionRequest) (*cri.VersionResponse, error) {
	return &cri.VersionResponse{
		Version: "0.1.0", RuntimeName: RuntimeName, RuntimeVersion: Version, RuntimeApiVersion: "v1",
	}, nil
}

// Status says that the runtime works, and what it can do.
func (s *Server) Status(_ context.Context, q *cri.StatusRequest) (*cri.StatusResponse, error) {
	condition := &cri.RuntimeCondition{Type: cri.RuntimeReady, Status: true}
	if _, err := s.images.List(); err != nil {
		condition.Status, condition.Reason, condition.Message = false, "NoImageTable", err.Error()
	}
	answer := &cri.StatusResponse{
		Status: &cri.RuntimeStatus{Conditions: []*cri.RuntimeCondition{
			condition, {Type: cri.NetworkReady, Status: true},
		}},
		RuntimeHandlers: []*cri.RuntimeHandler{{
			Features: &cri.RuntimeHandlerFeatures{RecursiveReadOnlyMounts: true},
		}},
		// An ordinary user has no groups to give.
		Features: &cri.RuntimeFeatures{SupplementalGroupsPolicy: !s.singleUser},
	}
	if q.Verbose {
		answer.Info = map[string]string{"note": "containers are processes of this computer; images come from an image table"}
	}
	return answer, nil
}

// RuntimeConfig answers the kubelet's question for a cgroup driver. No cgroup is made; the answer is the kubelet's own
// default.
func (s *Server) RuntimeConfig(context.Context, *cri.RuntimeConfigRequest) (*cri.RuntimeConfigResponse, error) {
	return &cri.RuntimeConfigResponse{
		Linux: &cri.LinuxRuntimeConfiguration{CgroupDriver: cri.CgroupDriver_CGROUPFS},
	}, nil
}

// UpdateRuntimeConfig is told the node's pod network, which node.json decides here.
func (s *Server) UpdateRuntimeConfig(
	context.Context, *cri.UpdateRuntimeConfigRequest,
) (*cri.UpdateRuntimeConfigResponse, error) {
	return &cri.UpdateRuntimeConfigResponse{}, nil
}
