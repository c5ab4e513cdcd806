package container

// origin is where a container's files come from. There are two: the computer, and the root file system of an image. All
// that a container gets besides (processes, devices, volumes, …) is laid over either of them in the same way.
type origin interface {
	// lay makes v.root a mount that shows the files. Their originals must stay as they are, whatever the container does.
	lay(v *view) error
	// remedy ends the sentence about a program that is a link to a file which is not there: whose fault, what to do.
	remedy() string
}

// origin of the container's files.
func (s *Spec) origin() origin {
	if s.Image != nil {
		return s.Image
	}
	return computer{hide: s.Hide}
}
