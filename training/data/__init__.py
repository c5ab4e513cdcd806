"""Which samples a training step consumes, whatever the number of workers."""
