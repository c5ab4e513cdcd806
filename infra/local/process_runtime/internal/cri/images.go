package cri

import (
	"context"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"trainyard.dev/process-runtime/internal/images"
)

func describe(image *images.Image) *cri.Image {
	answer := &cri.Image{
		Id: image.ID, RepoTags: image.Tags(), RepoDigests: image.RepoDigests(), Size: max(image.Size, 1),
		Spec: &cri.ImageSpec{Image: image.Name},
	}
	user, _, _ := strings.Cut(image.User, ":")
	if uid, err := strconv.ParseInt(user, 10, 64); err == nil {
		answer.Uid = &cri.Int64Value{Value: uid}
	} else if user != "" {
		answer.Username = user
	} else {
		answer.Uid = &cri.Int64Value{Value: 0}
	}
	return answer
}

// ListImages lists the image table.
func (s *Server) ListImages(_ context.Context, q *cri.ListImagesRequest) (*cri.ListImagesResponse, error) {
	answer := &cri.ListImagesResponse{}
	if name := q.GetFilter().GetImage().GetImage(); name != "" {
		image, err := s.images.Find(name)
		if image != nil {
			answer.Images = append(answer.Images, describe(image))
		}
		return answer, err
	}
	list, err := s.images.List()
	for _, image := range list {
		answer.Images = append(answer.Images, describe(image))
	}
	return answer, err
}

// ImageStatus tells about one image; an unknown one is no error but an empty answer.
func (s *Server) ImageStatus(_ context.Context, q *cri.ImageStatusRequest) (*cri.ImageStatusResponse, error) {
	image, err := s.images.Find(q.GetImage().GetImage())
	if err != nil || image == nil {
		return &cri.ImageStatusResponse{}, err
	}
	answer := &cri.ImageStatusResponse{Image: describe(image)}
	if q.Verbose {
		answer.Info = map[string]string{"note": "an entry of the image table; its processes run this computer's programs"}
		if image.Rootfs != "" {
			answer.Info["note"] = "a loaded image; its root file system is " + image.Rootfs
		}
	}
	return answer, nil
}

// PullImage looks an image up in the table; nothing is ever downloaded. One whose content is gone is no image.
func (s *Server) PullImage(_ context.Context, q *cri.PullImageRequest) (*cri.PullImageResponse, error) {
	image, err := s.images.Pull(q.GetImage().GetImage())
	if err != nil {
		return nil, status.Error(codes.NotFound, err.Error())
	}
	if err := s.originOf(image).check(); err != nil {
		return nil, status.Errorf(codes.NotFound, "image %s: %v", image.Name, err)
	}
	return &cri.PullImageResponse{ImageRef: image.ID}, nil
}

// RemoveImage hides a table entry until it is pulled again.
func (s *Server) RemoveImage(_ context.Context, q *cri.RemoveImageRequest) (*cri.RemoveImageResponse, error) {
	return &cri.RemoveImageResponse{}, s.images.Remove(q.GetImage().GetImage())
}

// ImageFsInfo tells how much disk the containers' own files use. Images are not the node's: they
// serve all nodes of this computer.
func (s *Server) ImageFsInfo(context.Context, *cri.ImageFsInfoRequest) (*cri.ImageFsInfoResponse, error) {
	usage := []*cri.FilesystemUsage{s.diskUsage(s.config.RuntimeDir())}
	return &cri.ImageFsInfoResponse{ImageFilesystems: usage, ContainerFilesystems: usage}, nil
}
