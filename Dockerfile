# The image of `tritonpipe operator` and of the init container `tritonpipe load`.
#
#   docker build --tag triton-pipelines/operator:dev .
#
# A stage compiles the native tokenizer (Rust). `--build-arg NATIVE=package` uses the libraries that
# `make native-release` has put into the package instead; then the build does not pull the Rust image.
#
# Behind a package mirror or a private CA, hand both in as secrets; nothing of them ends up in the image:
#   --secret id=pip-config,src=pip.conf --secret id=ca-bundle,src=ca.crt
ARG BASE_IMAGE=python:3.12-slim-bookworm
# The image of the stages that run commands: the same, but always for the building machine.
ARG BUILD_IMAGE=${BASE_IMAGE}
ARG RUST_IMAGE=rust:1.95-slim-bookworm
# `build` or `package`
ARG NATIVE=build

# The environment without the package itself: a layer that only a change of the locked requirements rebuilds. The last
# stage runs nothing, so an image for another architecture needs no emulation: pip fetches the wheels of that
# architecture. Bytecode is the same for all, and does not depend on the times of files. There is no pip in the
# environment: it is of no use at run time, and what is not there needs no patching.
FROM --platform=${BUILDPLATFORM} ${BUILD_IMAGE} AS runtime
ARG TARGETARCH
COPY requirements/operator.txt requirements/build.txt /build/
RUN --mount=type=secret,id=pip-config,target=/run/secrets/pip.conf \
    --mount=type=secret,id=ca-bundle,target=/run/secrets/ca.crt \
    set -e; \
    export PIP_CONFIG_FILE=/run/secrets/pip.conf PIP_DISABLE_PIP_VERSION_CHECK=1; \
    if [ -s /run/secrets/ca.crt ]; then export PIP_CERT=/run/secrets/ca.crt; fi; \
    case "${TARGETARCH}" in amd64) machine=x86_64 ;; arm64) machine=aarch64 ;; *) machine=$(uname -m) ;; esac; \
    platforms="--platform manylinux2014_${machine}"; \
    for minor in $(seq 17 36); do platforms="${platforms} --platform manylinux_2_${minor}_${machine}"; done; \
    python3 -m venv /build/tools; \
    /build/tools/bin/pip install --no-cache-dir --require-hashes --only-binary=:all: --requirement /build/build.txt; \
    python3 -m venv --without-pip /opt/tritonpipe; \
    packages=$(/opt/tritonpipe/bin/python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
    /build/tools/bin/pip --python /opt/tritonpipe/bin/python3 install --no-compile --no-cache-dir --require-hashes --no-deps \
      --only-binary=:all: ${platforms} --target "${packages}" --requirement /build/operator.txt; \
    mv "${packages}"/bin/* /opt/tritonpipe/bin/; \
    rmdir "${packages}/bin"; \
    python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash "${packages}"

# Zig links against glibc 2.28, which all supported server images have, for any architecture.
FROM --platform=${BUILDPLATFORM} ${BUILD_IMAGE} AS zig
COPY requirements/native.txt /build/
RUN --mount=type=secret,id=pip-config,target=/run/secrets/pip.conf \
    --mount=type=secret,id=ca-bundle,target=/run/secrets/ca.crt \
    set -e; \
    export PIP_CONFIG_FILE=/run/secrets/pip.conf PIP_DISABLE_PIP_VERSION_CHECK=1; \
    if [ -s /run/secrets/ca.crt ]; then export PIP_CERT=/run/secrets/ca.crt; fi; \
    python3 -m venv /build/tools; \
    /build/tools/bin/pip install --no-cache-dir --require-hashes --only-binary=:all: \
      --target /zig --requirement /build/native.txt

FROM --platform=${BUILDPLATFORM} ${RUST_IMAGE} AS native-build
ARG TARGETARCH
COPY --from=zig /zig /zig
COPY native /src
WORKDIR /src
RUN --mount=type=secret,id=ca-bundle,target=/run/secrets/ca.crt \
    set -e; \
    export PATH=/zig/bin:${PATH} CARGO_ZIGBUILD_ZIG_PATH=/zig/ziglang/zig CARGO_TARGET_DIR=/target; \
    export RUSTFLAGS="--remap-path-prefix=/src=native --remap-path-prefix=${CARGO_HOME:-/root/.cargo}=cargo"; \
    if [ -s /run/secrets/ca.crt ]; then \
      export CARGO_HTTP_CAINFO=/run/secrets/ca.crt SSL_CERT_FILE=/run/secrets/ca.crt; fi; \
    case "${TARGETARCH}" in amd64) machine=x86_64 ;; arm64) machine=aarch64 ;; *) machine=$(uname -m) ;; esac; \
    if command -v rustup >/dev/null; then rustup target add "${machine}-unknown-linux-gnu"; fi; \
    cargo zigbuild --release --locked --lib --target "${machine}-unknown-linux-gnu.2.28"; \
    mkdir -p "/native/${machine}"; \
    cp "/target/${machine}-unknown-linux-gnu/release/libtriton_tritonpipe_tokenizer.so" "/native/${machine}/"

FROM --platform=${BUILDPLATFORM} ${BUILD_IMAGE} AS native-package
ARG TARGETARCH
COPY operator/triton_pipelines /package
RUN set -e; \
    case "${TARGETARCH}" in amd64) machine=x86_64 ;; arm64) machine=aarch64 ;; *) machine=$(uname -m) ;; esac; \
    mkdir /native; \
    if [ -d "/package/native/${machine}" ]; then cp -r "/package/native/${machine}" /native/; fi

FROM native-${NATIVE} AS native

FROM runtime AS package
COPY pyproject.toml /src/
COPY operator /src/operator
COPY --from=native /native /native
# The description that a package index would show is not needed here, and would rebuild the layer with every edit of it.
RUN rm -rf /src/operator/triton_pipelines/native \
 && mv /native /src/operator/triton_pipelines/native \
 && touch /src/README.md \
 && /build/tools/bin/pip wheel --no-cache-dir --no-deps --no-index --no-build-isolation --wheel-dir /build/wheels /src \
 && /build/tools/bin/pip --python /opt/tritonpipe/bin/python3 install --no-compile --no-cache-dir --no-deps --no-index \
      --root /out /build/wheels/*.whl \
 && python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash -s /out /out

# Redundant for Docker, needed by older releases of buildah.
FROM --platform=${TARGETPLATFORM} ${BASE_IMAGE}
# Set by `make release`.
ARG VERSION=dev
ARG CREATED=1970-01-01T00:00:00Z
LABEL org.opencontainers.image.title="triton-pipelines operator" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.created="${CREATED}"
# gRPC would write lines to the log for some frames that pods send, megabytes per probe. Its errors
# are reported anyway.
ENV PATH=/opt/tritonpipe/bin:/usr/local/bin:/usr/bin:/bin \
    GRPC_VERBOSITY=NONE \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
COPY --from=runtime /opt/tritonpipe /opt/tritonpipe
COPY --from=package /out/opt/tritonpipe /opt/tritonpipe
# Numeric, so that `runAsNonRoot` can be checked; nothing is written below /.
USER 65532:65532
WORKDIR /tmp
ENTRYPOINT ["tritonpipe"]
