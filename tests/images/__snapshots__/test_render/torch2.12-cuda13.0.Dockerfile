# trainyard training torch2.12-cuda13.0: training with torch 2.12.1, CUDA 13.0.
# Written by `trainyard images render torch2.12-cuda13.0`. To change it, change images/matrix.toml or the template.

ARG BASE_IMAGE=debian:bookworm-slim@sha256:88200866dfff7ea7f5cbcb6ec7c8a701889efe6fe859fe64d6990e4b07ea4171
ARG SOURCE_DATE_EPOCH=0
ARG VERSION=0.0.0
ARG REVISION=""
ARG CREATED="1970-01-01T00:00:00Z"

# What every stage begins with: Python of the distribution, tini.
FROM ${BASE_IMAGE} AS base
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
        ca-certificates \
        python3 \
        tini \
    && apt-get clean \
    && rm -rf /var/lib/apt/lists/* /var/log/apt /var/log/*.log /var/cache/ldconfig/aux-cache \
        /var/cache/debconf/*-old /var/lib/dpkg/*-old
RUN --mount=type=bind,source=build,target=/build \
    PYTHONHASHSEED=0 python3 /build/bytecode.py /usr/lib/python3*

FROM base AS tools
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
        python3-venv \
    && apt-get clean \
    && rm -rf /var/lib/apt/lists/* /var/log/apt /var/log/*.log /var/cache/ldconfig/aux-cache \
        /var/cache/debconf/*-old /var/lib/dpkg/*-old
COPY build/bytecode.py uv.txt /build/
RUN --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=uv,target=/etc/uv/uv.toml \
    python3 -m venv /opt/uv \
    && SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PIP_CERT=/etc/ssl/certs/ca-certificates.crt \
        /opt/uv/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r /build/uv.txt

# torch and all that it needs, exactly as locked.
FROM tools AS packages
COPY requirements.txt /build/
RUN --mount=type=cache,id=trainyard-uv,target=/var/cache/uv,sharing=locked \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=uv,target=/etc/uv/uv.toml \
    python3 -m venv --without-pip /opt/trainyard/venv \
    && SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt \
        UV_CACHE_DIR=/var/cache/uv UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never \
        /opt/uv/bin/uv pip sync --python /opt/trainyard/venv/bin/python --require-hashes --no-build \
        /build/requirements.txt \
    && printf '%s\n' /opt/trainyard/project \
        >"$(/opt/trainyard/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/trainyard.pth" \
    && PYTHONHASHSEED=0 /opt/trainyard/venv/bin/python /build/bytecode.py /opt/trainyard/venv

FROM tools AS project
COPY trainyard/ /opt/trainyard/project/
RUN PYTHONHASHSEED=0 python3 /build/bytecode.py /opt/trainyard/project

FROM base AS runtime
RUN groupadd --gid 65532 trainyard \
    && SOURCE_DATE_EPOCH=0 useradd --no-log-init --uid 65532 --gid 65532 \
        --create-home --shell /usr/sbin/nologin trainyard \
    && install --directory --owner=65532 --group=65532 /workspace \
    && rm -f /etc/passwd- /etc/group- /etc/shadow- /etc/gshadow- /etc/subuid- /etc/subgid-
COPY --from=packages /opt/trainyard/venv /opt/trainyard/venv
COPY --from=project /opt/trainyard/project /opt/trainyard/project
COPY image.json /etc/trainyard/
ENV PATH=/opt/trainyard/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
ENV NCCL_DEBUG=WARN
ENV TORCH_FR_BUFFER_SIZE=2000
ENV TORCH_NCCL_DUMP_ON_TIMEOUT=1
# One NCCL, torch with the matrix's CUDA: or there is no image.
RUN /opt/trainyard/venv/bin/python -B -m training.diagnose image --built

FROM runtime AS sbom
ARG SOURCE_DATE_EPOCH
ARG VERSION
COPY build/sbom.py /build/
RUN /opt/trainyard/venv/bin/python /build/sbom.py --facts /etc/trainyard/image.json --version "${VERSION}" \
        >/sbom.cdx.json

FROM runtime AS image
COPY --from=sbom /sbom.cdx.json /etc/trainyard/
ARG BASE_IMAGE
ARG VERSION
ARG REVISION
ARG CREATED
LABEL org.opencontainers.image.title="trainyard training torch2.12-cuda13.0" \
      org.opencontainers.image.description="training with torch 2.12.1, CUDA 13.0" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.base.name="${BASE_IMAGE}" \
      dev.trainyard.row="torch2.12-cuda13.0" \
      dev.trainyard.kind="training" \
      dev.trainyard.variant="cuda" \
      dev.trainyard.torch="2.12.1" \
      dev.trainyard.cuda="13.0" \
      dev.trainyard.nccl="2.29.7" \
      dev.trainyard.minimum-driver="580.65.06" \
      dev.trainyard.sm="amd64=sm_75,sm_80,sm_86,sm_90,sm_100,sm_120;arm64=sm_80,sm_90,sm_100,sm_110,sm_120"

WORKDIR /workspace
USER 65532:65532
ENTRYPOINT ["/usr/bin/tini", "-s", "--", "/opt/trainyard/venv/bin/python", "-m", "training"]
