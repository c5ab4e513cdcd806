"""From a stack file to a running cluster: settings -> wiring -> components, and the `trainyard` command."""
