"""What a job says about itself while it runs."""
