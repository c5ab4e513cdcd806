"""What a training job would take and cost on spot machines: a trace of availability, replayed without a cluster."""
