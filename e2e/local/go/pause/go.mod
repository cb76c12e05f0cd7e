module triton-pipelines.local/pause

go 1.26.0
