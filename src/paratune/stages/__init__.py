"""Where a model is cut into the stages of a pipeline, and which weights each needs. Floor 2: plans read it as well."""
