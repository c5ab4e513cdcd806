"""Training states on disk that are either whole or not there."""
