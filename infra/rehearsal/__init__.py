"""AWS without an account: stand-ins under the real engine, the real program and a real Kubernetes control plane."""
