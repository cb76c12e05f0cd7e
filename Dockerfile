# The image of `tritonpipe operator` and of the init container `tritonpipe load`.
#
#   docker build --tag triton-pipelines/operator:dev .
#
# A stage with Rust builds the native tokenizer. With NATIVE=prebuilt no Rust is needed: the image then has the library
# that `make native` put into the package. Without one, only pipelines with `tokenizer.implementation: Native` do not load.
#
# Behind a package mirror or a private CA, hand both in as secrets; nothing of them ends up in the image:
#   --secret id=pip-config,src=pip.conf --secret id=ca-bundle,src=ca.crt
ARG BASE_IMAGE=python:3.12-slim-bookworm
# Debian 12, so that the library needs no newer glibc than the oldest supported server image has.
ARG RUST_IMAGE=rust:1.95-slim-bookworm
# `build`, or `prebuilt`.
ARG NATIVE=build

# The environment without the package itself: a layer that only a change of the locked requirements makes anew. pip and
# setuptools go again: neither is of use at run time, and what is not there needs no patching.
FROM ${BASE_IMAGE} AS runtime
LABEL org.opencontainers.image.title="triton-pipelines operator" \
      org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/opt/tritonpipe/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
COPY requirements/operator.txt /opt/tritonpipe/requirements.txt
RUN --mount=type=secret,id=pip-config,target=/run/secrets/pip.conf \
    --mount=type=secret,id=ca-bundle,target=/run/secrets/ca.crt \
    export PIP_CONFIG_FILE=/run/secrets/pip.conf; \
    if [ -s /run/secrets/ca.crt ]; then export PIP_CERT=/run/secrets/ca.crt; fi; \
    python3 -m venv /opt/tritonpipe \
 && pip install --compile --no-cache-dir --require-hashes --only-binary=:all: --requirement /opt/tritonpipe/requirements.txt \
 && pip uninstall --yes setuptools pip

FROM ${RUST_IMAGE} AS native-build
COPY native /src/native
WORKDIR /src/native
RUN --mount=type=secret,id=ca-bundle,target=/run/secrets/ca.crt \
    if [ -s /run/secrets/ca.crt ]; then export CARGO_HTTP_CAINFO=/run/secrets/ca.crt; fi; \
    RUSTFLAGS="--remap-path-prefix=/src/native=native --remap-path-prefix=${CARGO_HOME}=cargo" \
    cargo build --release --locked --lib \
 && mkdir -p "/native/$(uname -m)" \
 && cp target/release/libtriton_tritonpipe_tokenizer.so "/native/$(uname -m)/"

FROM ${BASE_IMAGE} AS native-prebuilt
RUN mkdir /native

FROM native-${NATIVE} AS native

FROM runtime AS package
COPY requirements/build.txt /build/requirements.txt
RUN --mount=type=secret,id=pip-config,target=/run/secrets/pip.conf \
    --mount=type=secret,id=ca-bundle,target=/run/secrets/ca.crt \
    export PIP_CONFIG_FILE=/run/secrets/pip.conf; \
    if [ -s /run/secrets/ca.crt ]; then export PIP_CERT=/run/secrets/ca.crt; fi; \
    python3 -m venv /build/tools \
 && /build/tools/bin/pip install --no-cache-dir --require-hashes --only-binary=:all: --requirement /build/requirements.txt
COPY pyproject.toml /src/
COPY operator /src/operator
COPY --from=native /native/ /src/operator/triton_pipelines/native/
# The description that a package index would show is not needed here, and would rebuild the layer with every edit of it.
RUN touch /src/README.md \
 && /build/tools/bin/pip wheel --no-cache-dir --no-deps --no-index --no-build-isolation --wheel-dir /build/wheels /src \
 && /build/tools/bin/pip --python /opt/tritonpipe/bin/python3 install --compile --no-cache-dir --no-deps --no-index --root /out /build/wheels/*.whl

FROM runtime
COPY --from=package /out/opt/tritonpipe /opt/tritonpipe
# Numeric, so that `runAsNonRoot` can be checked; nothing is written below /.
USER 65532:65532
WORKDIR /tmp
ENTRYPOINT ["tritonpipe"]
