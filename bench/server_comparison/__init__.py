"""S7: the pipeline next to other model servers, all with the same model, texts and limits.

`run` is the benchmark; `servers` starts what is measured; `environments` installs the other
servers, each into its own virtual environment; `apps` holds their applications; `handwritten` is
the ensemble as tutorials build it; `models` makes the two models; `figures` computes results.
"""
