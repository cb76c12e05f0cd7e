# The image of `tritonpipe operator` and of the init container `tritonpipe load`.
#
#   docker build --tag triton-pipelines/operator:dev .
#
# Behind a package mirror or a private CA, hand both in as secrets; nothing of them ends up in the image:
#   --secret id=pip-config,src=pip.conf --secret id=ca-bundle,src=ca.crt
ARG BASE_IMAGE=python:3.12-slim-bookworm

FROM ${BASE_IMAGE} AS dependencies
RUN python3 -m venv /opt/tritonpipe
COPY requirements/operator.txt requirements/build.txt /build/
RUN --mount=type=secret,id=pip-config,target=/run/secrets/pip.conf \
    --mount=type=secret,id=ca-bundle,target=/run/secrets/ca.crt \
    export PIP_CONFIG_FILE=/run/secrets/pip.conf; \
    if [ -s /run/secrets/ca.crt ]; then export PIP_CERT=/run/secrets/ca.crt; fi; \
    /opt/tritonpipe/bin/pip install --no-cache-dir --require-hashes --only-binary=:all: --requirement /build/operator.txt

FROM dependencies AS package
RUN --mount=type=secret,id=pip-config,target=/run/secrets/pip.conf \
    --mount=type=secret,id=ca-bundle,target=/run/secrets/ca.crt \
    export PIP_CONFIG_FILE=/run/secrets/pip.conf; \
    if [ -s /run/secrets/ca.crt ]; then export PIP_CERT=/run/secrets/ca.crt; fi; \
    /opt/tritonpipe/bin/pip install --no-cache-dir --require-hashes --only-binary=:all: --requirement /build/build.txt
COPY pyproject.toml /src/
COPY operator /src/operator
# The description that a package index would show is not needed here, and would rebuild the layer with every edit of it.
RUN touch /src/README.md \
 && /opt/tritonpipe/bin/pip install --no-cache-dir --no-deps --no-index --no-build-isolation --root /out /src

# pip is of no use at run time and one thing less to patch.
FROM dependencies AS runtime
RUN /opt/tritonpipe/bin/pip uninstall --yes pip

FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="triton-pipelines operator" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=runtime /opt/tritonpipe /opt/tritonpipe
# A change of the source alone ends here.
COPY --from=package /out/opt/tritonpipe /opt/tritonpipe
ENV PATH=/opt/tritonpipe/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# Numeric, so that `runAsNonRoot` can be checked; nothing is written below /.
USER 65532:65532
WORKDIR /tmp
ENTRYPOINT ["tritonpipe"]
