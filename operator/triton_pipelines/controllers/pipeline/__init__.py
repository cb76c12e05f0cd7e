"""The pipeline controller: observe a pipeline's objects, plan, apply, write the status."""
