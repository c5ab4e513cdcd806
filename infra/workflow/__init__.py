"""prepare, train, evaluate, publish: one definition that runs on this computer and compiles for Kubeflow Pipelines.

definition   the file: what each step runs, and when a model may be published
steps        what a step does, wherever it runs; each leaves a record, so that a run goes on where it was
pipeline     the same four steps as a pipeline of kfp: the only module that needs it (requirements/workflow.txt)
models       the published models: versions, and which of them is current
"""
